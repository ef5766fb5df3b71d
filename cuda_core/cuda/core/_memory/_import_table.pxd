# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._memory._pending_frees cimport PendingFrees
from cuda.core._memory._pool_handle cimport PoolHandle
from cuda.core._stream_handle cimport StreamHandle

# One address that was imported, for all buffers that were imported from it. Guarded by the mutex of the table.
cdef struct ImportedPointer:
    uintptr_t address
    cydriver.CUmemoryPool pool              # and the payload that it was imported by
    cydriver.CUmemPoolPtrExportData data
    long shares
    StreamHandle** closers      # the busy streams of shares that were given up, each retained
    int closer_count
    ImportedPointer* next       # with the same hash of the address, or among those that have ended
    ImportedPointer* next_name  # with the same hash of the payload

cdef cydriver.CUresult import_counted(PoolHandle* handle, cydriver.CUmemPoolPtrExportData* data,
                                      ImportedPointer** entry, const char** function) noexcept nogil
cdef cydriver.CUresult give_up_counted(ImportedPointer* entry, StreamHandle* order, PendingFrees* frees,
                                       const char** function) noexcept nogil
cdef void abandon_counted(ImportedPointer* entry) noexcept nogil
cdef bint has_shares(uintptr_t address) noexcept nogil
cdef long shares_of(ImportedPointer* entry) noexcept nogil
cpdef long live_imports() noexcept
