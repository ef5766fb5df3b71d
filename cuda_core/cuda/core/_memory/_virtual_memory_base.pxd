# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._indexed_resource cimport IndexedResource
from cuda.core._memory._virtual_parts cimport ChunkRequest, Failure
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle

cdef class VirtualMemoryBase(IndexedResource):
    cdef readonly object config  # type: VirtualMemoryResourceOptions
    cdef int _ordinal
    # What the options say, as of this revision of theirs.
    cdef int _revision
    cdef bint _at_each_node     # a request is for the calling thread's NUMA node
    cdef size_t _granularity
    cdef size_t _ahead          # bytes of addresses to reserve
    cdef size_t _alignment
    cdef uintptr_t _hint
    cdef ChunkRequest _request
    cdef tuple _facts
    cdef list _leftovers    # ranges of failed allocations that could not be undone
    cdef dict __dict__
    cdef object _options(self)
    cdef int _refresh(self) except -1
    cdef size_t held_request(self, ChunkRequest* request) noexcept
    cdef int _retry_leftovers(self) except -1
    cdef object _failed(self, VirtualRange range_, Failure failure, size_t reserved)
    cdef int _ensure_place(self, ChunkRequest* request, size_t granularity) except -1
    cdef size_t granularity_now(self) except 0
    cdef int _return_parts(self, VirtualRange range_, Record record, StreamHandle* order) except -1
    cdef int _queue_parts(self, Record record, StreamHandle* order, int waiting, bint refused) except -1

cdef object grow_error(Failure failure, size_t reserved)
cdef int return_range(Record record, StreamHandle* order, int waiting) except -1
cdef bint worth_another_try(Failure* failure) noexcept nogil
