# SPDX-License-Identifier: Apache-2.0
"""Memory of the host that NumPy allocates.

python examples/resources/numpy_memory.py
"""

import operator

import numpy

from cuda.core import Buffer, MemoryResource


class NumpyMemoryResource(MemoryResource):
    """Buffers over NumPy arrays: the array is the memory, and lives in a table until its buffer is freed."""

    is_device_accessible = False
    is_host_accessible = True
    device_id = -1

    def __init__(self):
        self.arrays = {}

    def allocate(self, size, *, stream=None):
        array = numpy.empty(operator.index(size), dtype=numpy.uint8)
        address = array.ctypes.data if array.size else 0  # arrays without elements share an address
        if array.size:
            self.arrays[address] = array
        try:
            return Buffer.from_handle(address, array.size, mr=self, stream=stream)
        except BaseException:
            self.arrays.pop(address, None)  # a stream that is none: the memory was not taken
            raise

    def deallocate(self, ptr, size, *, stream=None):
        # The stream need not be waited for: work on a stream has read this memory before its call returned. One
        # operation forgets the array and lets NumPy free it, so no lock is needed.
        if size:
            del self.arrays[ptr]


def main():
    resource = NumpyMemoryResource()
    with resource.allocate(16) as buffer:
        view = numpy.frombuffer(buffer, dtype=numpy.uint8)
        view[:] = range(16)
        print(f"{buffer.size} bytes, their sum is {view.sum()}, arrays in use: {len(resource.arrays)}")
        del view  # it is a loan on the buffer
    print(f"arrays in use: {len(resource.arrays)}")


if __name__ == "__main__":
    main()
