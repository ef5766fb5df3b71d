# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject

from cuda.core._memory._allocation cimport Record

# What a thread is asking an author's code to free, and how.
cdef struct Asking:
    PyObject* record    # whose release it is; whoever asks holds it. NULL where the thread asks nobody
    int waiting         # what that release does about work in flight
    bint queued         # something that the author's code has released waits in the queue
    bint freed          # memory at the very address was returned, or is in the queue
    bint lost           # or is out of reach for good

cdef Asking begin_asking(Record record, int waiting) noexcept
cdef int end_asking(Record record, Asking outer) noexcept
cdef Record record_being_asked(object resource, size_t pointer)
cdef int waiting_of_asked(int waiting) noexcept nogil
cdef void note_outcome(int outcome, size_t pointer) noexcept
cdef void note_loss(size_t pointer) noexcept
cdef bint is_freed_by_asking(Record record) noexcept
cdef bint is_lost_by_asking(Record record) noexcept
cdef void leave_outcome_before_interrupt(int outcome) noexcept
cdef int take_outcome_before_interrupt() noexcept
