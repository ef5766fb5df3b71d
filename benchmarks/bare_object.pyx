# SPDX-License-Identifier: Apache-2.0
"""The least that an allocation can be as a Python object: the two driver calls, without the GIL, and nothing else.

It keeps no promise: no state, no owner, no look at captures, no error that says anything, no device, no thread. What a
pair takes here is what Python itself takes.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t


cdef class BareBuffer:
    cdef uintptr_t pointer
    cdef size_t size
    cdef cydriver.CUstream stream
    cdef object pool

    def close(self, stream=None):
        cdef cydriver.CUresult result
        with nogil:
            result = cydriver.cuMemFreeAsync(self.pointer, self.stream)
        if result:
            raise RuntimeError(f"the driver answered error {<int>result}")


cdef class BarePool:
    cdef cydriver.CUmemoryPool pool
    cdef cydriver.CUstream stream

    def __init__(self, uintptr_t pool, uintptr_t stream):
        self.pool, self.stream = <cydriver.CUmemoryPool>pool, <cydriver.CUstream>stream

    def allocate(self, size_t size, *, stream):
        cdef cydriver.CUdeviceptr pointer = 0
        cdef cydriver.CUresult result
        cdef BareBuffer buffer
        with nogil:
            result = cydriver.cuMemAllocFromPoolAsync(&pointer, size, self.pool, self.stream)
        if result:
            raise RuntimeError(f"the driver answered error {<int>result}")
        buffer = BareBuffer.__new__(BareBuffer)
        buffer.pointer, buffer.size, buffer.stream, buffer.pool = <uintptr_t>pointer, size, self.stream, self
        return buffer
