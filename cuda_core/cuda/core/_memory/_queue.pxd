# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t, uintptr_t

from cuda.core._memory._virtual_range cimport Failure
from cuda.core._stream_handle cimport StreamHandle

# Returns what a job holds, True when all of it is back. Runs without the GIL; what was refused stays in ``data``.
ctypedef bint (*JobFunction)(void* data, Failure* failure) noexcept nogil

cdef struct Job:
    Job* next
    StreamHandle* order
    JobFunction give_back
    JobFunction discard        # frees the memory of ``data``
    void* data
    uint64_t serial
    uintptr_t pointer
    size_t size
    Failure failure
    size_t context
    bint context_is_dead

cdef Job* new_job(JobFunction give_back, JobFunction discard, void* data) except NULL
cdef void discard_job(Job* job) noexcept nogil
cdef int enqueue(Job* job) except -1
cdef int wait_for_room() except -1
cdef void wait_a_moment() noexcept
cdef bint drain_for_memory() noexcept nogil
cdef bint first_report_of_context(size_t context) except -1
cpdef dict queue_counts()
