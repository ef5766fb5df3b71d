# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t, uintptr_t

from cuda.core._memory._allocation cimport Keeper
from cuda.core._memory._pending_frees cimport PendingFrees

cdef struct PoolHandle:
    long count
    cydriver.CUmemoryPool pool   # NULL once it is destroyed
    uint16_t generation          # of forks, when it was made
    long opened                  # how often the driver has given it, for a pool that was imported; else 0
    PendingFrees frees           # that may not have run yet
    cydriver.CUmemAccessDesc* rights  # of devices, for what is imported: see _import_access
    int right_count
    bint granted                 # by now
    PoolHandle* next             # among those that could not be destroyed
    PoolHandle* next_opened      # among those that were imported

cdef class PoolReference(Keeper):
    cdef PoolHandle* handle
    cdef bint is_of_this_process(self) noexcept
    cdef void let_out(self) noexcept
    cdef void come_back(self) noexcept

cdef PoolReference make_pool(cydriver.CUmemPoolProps* properties)
cdef PoolReference import_pool(int descriptor)
cdef int export_pool(cydriver.CUmemoryPool pool) except -1
cdef int export_pointer(uintptr_t address, cydriver.CUmemPoolPtrExportData* data) except -1
cdef int destroy_pool(PoolReference reference) except -1
cdef PoolHandle* retain_pool(PoolHandle* handle) noexcept nogil
cdef PendingFrees* frees_of(object owner) noexcept
cdef bint pool_is_idle(PoolReference reference) noexcept
cdef void release_pool(PoolHandle* handle) noexcept nogil
cdef cydriver.CUresult current_pool(cydriver.CUmemLocation* location, cydriver.CUmemAllocationType kind,
                                    cydriver.CUmemoryPool* pool, const char** function) noexcept nogil
cpdef long live_pools() noexcept
