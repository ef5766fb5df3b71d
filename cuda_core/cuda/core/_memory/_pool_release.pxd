# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._pending_frees cimport PendingFrees
from cuda.core._stream_handle cimport StreamHandle

cdef cydriver.CUresult free_in_order(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                     const char** function) noexcept nogil
cdef int ensure_freed(cydriver.CUresult result, const char* function) except -1
cdef bint may_be_queued(StreamHandle* order, cydriver.CUresult result, const char* function,
                        bint whatever) noexcept nogil
cdef int queue_free(Record record, StreamHandle* order, bint once) except -1
