# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._virtual_range cimport ChunkRequest, CUdeviceptr, Failure, VirtualRange
from cuda.core._stream_handle cimport StreamHandle

cdef class VirtualMemoryResource(IndexedResource):
    cdef readonly object config
    cdef int _ordinal
    cdef int _revision
    cdef size_t _granularity
    cdef ChunkRequest _request
    cdef tuple _facts
    cdef list _leftovers    # ranges of failed allocations that could not be undone
    cdef dict __dict__
    cdef object _options(self)
    cdef int _refresh(self) except -1
    cdef int _retry_leftovers(self) except -1
    cdef object _failed(self, VirtualRange range_, Failure failure)
    cdef void _enter_grown(self, Buffer old, Buffer new, Holding entry, CUdeviceptr base) noexcept
    cdef int _retire(self, Buffer buffer) except -1
    cdef int _return_parts(self, VirtualRange range_, Record record, StreamHandle* order) except -1
    cdef int _queue_parts(self, Record record, StreamHandle* order, int waiting, bint refused) except -1
