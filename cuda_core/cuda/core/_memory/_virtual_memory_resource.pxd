# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer, MemoryResource
from cuda.core._memory._virtual_range cimport ChunkRequest, Failure, VirtualRange

cdef class VirtualMemoryResource(MemoryResource):
    cdef readonly object config
    cdef int _ordinal
    cdef int _revision
    cdef size_t _granularity
    cdef ChunkRequest _request
    cdef tuple _facts
    cdef dict _ranges       # begin of each range -> range, for frees by address
    cdef list _leftovers    # ranges of failed allocations that could not be undone
    cdef dict __dict__
    cdef int _refresh(self) except -1
    cdef int _retry_leftovers(self) except -1
    cdef object _failed(self, VirtualRange range_, Failure failure)
    cdef int _retire(self, Buffer buffer) except -1
