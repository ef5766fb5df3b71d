# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._indexed_resource cimport IndexedResource
from cuda.core._stream_handle cimport StreamHandle

cdef class PlainResource(IndexedResource):
    cdef cydriver.CUresult raw_allocate(self, size_t size, uintptr_t* address, const char** function) noexcept nogil
    cdef int _free(self, uintptr_t address) except -1
    cdef cydriver.CUcontext context_to_allocate_in(self) except? NULL
    cdef int ordinal(self) noexcept
    cdef int prepare(self) except -1
    cdef cydriver.CUcontext context_of_memory(self, Record record, unsigned long long* id) noexcept
    cdef int ensure_not_gone(self, Record record) except -1
    cdef int _queue_free(self, Record record, StreamHandle* order, int waiting) except -1
    cdef int _free_now(self, Record record, StreamHandle* order) except -1
    cdef int mark_as_lost(self, Record record, object error) except -1

cdef int return_plain(Record record, StreamHandle* order, int waiting) except -1
