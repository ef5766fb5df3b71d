# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t, uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._stream_handle cimport StreamHandle

# Returns what a job holds, True when all of it is back. Runs without the GIL; what was refused stays in ``data``.
ctypedef bint (*JobFunction)(void* data, Failure* failure) noexcept nogil

# Whether a job that waits for no stream may be done.
cdef enum Readiness:
    NOT_YET
    READY
    BLOCKED     # by a capture, which may be up to a thread that waits for the queue

ctypedef Readiness (*JobQuestion)(void* data) noexcept nogil

# What an observer is told of a release that was queued, beside the changes of ownership words.
cdef enum QueueChange:
    CHANGE_QUEUED = 40
    CHANGE_RETURNED = 41    # by the reaper
    CHANGE_REFUSED = 42     # it stays with the queue
    CHANGE_JOB_LOST = 43

ctypedef void (*QueueObserver)(uint64_t serial, QueueChange change) noexcept nogil

cdef enum JobStanding:
    WAITING
    REFUSED     # tried again after later releases
    GIVEN_UP    # never tried again

cdef struct Job:
    Job* next
    Job* known_next            # among all releases that the queue answers for
    Job* known_before
    bint known
    JobStanding standing
    char resource[48]          # name of the type that the memory came from, cut if need be
    StreamHandle* order
    JobQuestion may_be_done    # NULL: when its streams are idle
    JobFunction give_back
    JobFunction discard        # frees the memory of ``data``
    void* data
    uint64_t serial
    uintptr_t pointer
    size_t size
    Failure failure
    size_t place               # what takes the memory along when it is lost
    cydriver.CUcontext context  # the memory goes with it; NULL for memory that outlives contexts
    unsigned long long context_id  # number of the one at that place when the memory was made, 0 where it is not known
    bint lost
    bint once                  # of a collection: never tried again
    bint told                  # that it could not be returned
    bint tried                 # and was refused
    # Of the first of those that wait behind one stream, in the reaper's hands:
    Job* next_group
    Job* last_in_group
    long in_group
    long blocked_in_group      # of these, how many count as blocked

cdef Job* new_job(JobFunction give_back, JobFunction discard, void* data, Record record,
                  StreamHandle* order) except NULL
cdef void discard_job(Job* job) noexcept nogil
cdef int enqueue(Job* job) except -1
cdef int append_question(JobQuestion may_be_done, JobFunction do, void* data) noexcept nogil
cdef void keep_refused(Job* job) noexcept nogil
cdef bint has_stuck() noexcept nogil
cdef void retry_stuck(bint at_once) noexcept nogil
cdef int wait_for_room() except -1
cdef void wait_a_moment() noexcept
cdef bint drain_for_memory() noexcept nogil
cpdef dict queue_counts()
cdef void observe_queue(QueueObserver observer) noexcept nogil
