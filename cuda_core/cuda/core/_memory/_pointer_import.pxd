# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._import_table cimport ImportedPointer
from cuda.core._memory._pool_handle cimport PoolReference
from cuda.core._stream_handle cimport StreamHandle

cdef class ImportReference(PoolReference):
    cdef ImportedPointer* pointer   # whose share this is; NULL once it was given up

cdef ImportReference import_pointer(PoolReference pool, bytes payload)
cdef int give_up(Record record, ImportReference reference, StreamHandle* order) except -1
cdef void abandon(ImportReference reference) noexcept
cdef int return_import(Record record, StreamHandle* order, int waiting) except -1
cdef tuple imported_range(uintptr_t address)
