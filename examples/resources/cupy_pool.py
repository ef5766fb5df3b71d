# SPDX-License-Identifier: Apache-2.0
"""Device memory of a CuPy memory pool. Needs a GPU and CuPy.

python examples/resources/cupy_pool.py
"""

import operator

import cupy

from cuda.core import Buffer, Device, MemoryResource


class CupyPoolResource(MemoryResource):
    """Buffers of a pool of CuPy's, which keeps what is freed for the next allocation in the same stream."""

    is_device_accessible = True
    is_host_accessible = False

    def __init__(self, device_id=0):
        self._device_id = device_id
        self.pool = cupy.cuda.MemoryPool()
        self.pointers = {}  # address -> the object that keeps the memory, and the stream it was allocated in

    @property
    def device_id(self):
        return self._device_id

    def _cupy_stream(self, stream):
        if stream is None:
            return cupy.cuda.Stream.null
        if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
            return cupy.cuda.Stream.from_external(stream)
        return cupy.cuda.ExternalStream(int(stream.handle))

    def allocate(self, size, *, stream=None):
        size = operator.index(size)
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        at = 0 if stream is None else int(stream.handle)
        with cupy.cuda.Device(self._device_id), self._cupy_stream(stream):
            pointer = self.pool.malloc(size)
        address = int(pointer.ptr) if size else 0
        if size:
            self.pointers[address] = (pointer, at)
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            self.pointers.pop(address, None)
            raise

    def deallocate(self, ptr, size, *, stream=None):
        if not size:
            return
        entry = self.pointers.pop(ptr)  # first: when the pool has it back, another thread may get the address
        try:
            if int(stream.handle) != entry[1]:
                # The pool gives the memory to who allocates next in the first stream, and knows no other.
                stream.sync()
        except BaseException:
            self.pointers[ptr] = entry
            raise
        # The pool has the memory back when the last reference to the pointer goes, which is here.

    def close(self):
        """Give back what the pool keeps and nobody uses. CuPy does not when the pool itself is dropped."""
        self.pool.free_all_blocks()


def main():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = CupyPoolResource()
    with resource.allocate(1 << 20, stream=stream) as buffer:
        buffer.fill(7, stream=stream)
        array = cupy.from_dlpack(buffer)
        print(f"{buffer.size} bytes of CuPy's pool, their sum is {int(array.sum(dtype=cupy.int64))}")
        del array  # it is a loan on the buffer
    print(f"in use: {resource.pool.used_bytes()} bytes")
    resource.close()
    stream.close()


if __name__ == "__main__":
    main()
