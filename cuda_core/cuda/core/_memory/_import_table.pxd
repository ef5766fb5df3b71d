# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._stream_handle cimport StreamHandle

# One address that was imported, for all buffers that were imported from it. Guarded by the mutex of the table. Without
# shares it is an address whose free is behind streams that are busy still.
cdef struct ImportedPointer:
    uintptr_t address
    long shares
    StreamHandle** closers      # the busy streams of shares that were given up, each retained
    int closer_count
    int watchers                # jobs of the queue that look at it again
    bint ended                  # out of the table; the last of them frees it
    ImportedPointer* next       # in its bucket, or among those that have ended

cdef struct Busy:               # retained streams
    StreamHandle** streams
    int count

cdef cydriver.CUresult import_counted(cydriver.CUmemoryPool pool, cydriver.CUmemPoolPtrExportData* data,
                                      ImportedPointer** entry, const char** function) noexcept nogil
cdef cydriver.CUresult give_up_counted(ImportedPointer* entry, StreamHandle* order, bint* pending,
                                       const char** function) noexcept nogil
cdef void abandon_counted(ImportedPointer* entry) noexcept nogil
cdef bint has_shares(uintptr_t address) noexcept nogil
cdef long shares_of(ImportedPointer* entry) noexcept nogil
cdef bint copy_streams(ImportedPointer* entry, Busy* busy) noexcept nogil
cdef bint look_again(void* data, Failure* failure) noexcept nogil
cdef bint stop_watching(void* data, Failure* failure) noexcept nogil
cpdef long live_imports() noexcept
