# SPDX-License-Identifier: Apache-2.0
"""Memory of a C library, here pages that ``posix_memalign`` of the C library itself gives, through ctypes.

python examples/resources/c_library.py
"""

import ctypes
import operator
import os
import sys

from cuda.core import Buffer, MemoryResource

libc = ctypes.CDLL(None)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.posix_memalign.restype = ctypes.c_int
libc.free.argtypes = [ctypes.c_void_p]
libc.free.restype = None


class AlignedMemoryResource(MemoryResource):
    """Memory of the host whose addresses are multiples of a page. The library frees by the address: no table."""

    is_device_accessible = False
    is_host_accessible = True
    device_id = -1

    def __init__(self, alignment=4096):
        self.alignment = alignment

    def allocate(self, size, *, stream=None):
        size = operator.index(size)
        if not 0 <= size <= sys.maxsize:  # ctypes would cut off what does not fit into a size_t
            raise ValueError(f"size must be between 0 and {sys.maxsize}, got {size}")
        pointer = ctypes.c_void_p()
        if size:
            error = libc.posix_memalign(ctypes.byref(pointer), self.alignment, size)
            if error:
                raise MemoryError(f"posix_memalign could not allocate {size} bytes: {os.strerror(error)}")
        address = pointer.value or 0
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            libc.free(address)
            raise

    def deallocate(self, ptr, size, *, stream=None):
        # If the library's free could fail, raise here, and only where nothing was freed: it is then asked again.
        libc.free(ptr)


def main():
    resource = AlignedMemoryResource()
    with resource.allocate(1000) as buffer:
        print(f"{buffer.size} bytes, at a multiple of a page: {buffer.handle % 4096 == 0}")
    print(buffer.ownership.name)


if __name__ == "__main__":
    main()
