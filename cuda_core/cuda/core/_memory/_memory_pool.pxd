# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libcpp.atomic cimport atomic

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._pool_handle cimport PoolReference
from cuda.core._stream_handle cimport StreamHandle

cdef enum:
    INDEX_MISSING = 0  # it is built when it is first needed
    INDEX_BEGUN = 1
    INDEX_WHOLE = 2

cdef class _MemPool(IndexedResource):
    cdef cydriver.CUmemoryPool _pool      # NULL while there is none: before __init__, and once closed
    cdef PoolReference _reference         # None for a pool that belongs to the whole process
    cdef int _ordinal                     # device of the memory, -1 for memory of the host
    cdef bint _closed
    cdef bint _shareable                  # with other processes
    cdef bint _mapped                     # opened here, of another process
    cdef object _uuid
    cdef atomic[int] _index               # until it is whole, the list of what is live knows more
    cdef int _ensure_not_made(self) except -1
    cdef int take_current_pool(self, cydriver.CUmemLocation* location, cydriver.CUmemAllocationType kind) except -1
    cdef int take_own_pool(self, cydriver.CUmemPoolProps* properties) except -1
    cdef int ensure_open(self) except -1
    cdef bint _has_pool(self) noexcept
    cdef PoolReference held_pool(self, cydriver.CUmemoryPool* pool)
    cdef int ensure_index(self) except -1
    cdef int _remember_open(self, Record record) except -1
    cdef int note(self, Record record) except -1
    cdef int _choose_deleter(self) except -1
    cdef int _settle_allocation(self, cydriver.CUmemoryPool pool, size_t size, StreamHandle* order, uintptr_t* address,
                                cydriver.CUresult result, const char* function) except -1
    cdef int _refuse_capture(self, StreamHandle* order, bint capturing) except -1
    cdef int _free_behind(self, Record record, StreamHandle* order, int waiting) except -1
    cdef int _return_indexed(self, Record record, StreamHandle* order, int waiting) except -1
    cdef int _free(self, uintptr_t address, StreamHandle* order, object keeper) except -1

cdef int return_to_pool(Record record, StreamHandle* order, int waiting) except -1
