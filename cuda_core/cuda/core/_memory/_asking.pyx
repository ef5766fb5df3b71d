# SPDX-License-Identifier: Apache-2.0
"""What a thread asks an author's code for: the release that is in progress, and how it deals with work in flight.

A ``deallocate`` often frees by closing another buffer, or by the ``deallocate`` of a built-in resource. That is a part
of the release which has asked, and does about streams what that one does: an explicit close waits, a collection never
does, and leaves to the queue what is behind work or behind a capture. A collection that waited inside an author's code
would be a collection that waits; one that was refused there would lose the memory, since it asks only once.

What an author's code raises may come before or behind the free, and may be about something else that it frees. So the
thread notes whether the very address was returned, or lost, since the code was asked.
"""

from cpython.ref cimport PyObject

from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, WAIT, Record

cdef extern from *:
    """
    struct cuda_core_asking { PyObject *record; int waiting; int queued; int freed; int lost; };
    static thread_local struct cuda_core_asking cuda_core_asking_now = {nullptr, 0, 0, 0, 0};
    static thread_local int cuda_core_outcome_before_interrupt = -1;
    #define cuda_core_asking_here() (&cuda_core_asking_now)
    """
    struct _Asking "cuda_core_asking":
        PyObject* record
        int waiting
        int queued
        int freed
        int lost

    _Asking* _here "cuda_core_asking_here"() noexcept nogil
    int _outcome_before_interrupt "cuda_core_outcome_before_interrupt"


cdef Asking begin_asking(Record record, int waiting) noexcept:
    """Note that this thread asks an author's code to free. Returns what it was asking before, for the end."""
    cdef _Asking* here = _here()
    cdef Asking outer
    outer.record, outer.waiting, outer.queued = here.record, here.waiting, here.queued
    outer.freed, outer.lost = here.freed, here.lost
    here.record, here.waiting, here.queued = <PyObject*>record, waiting, False
    here.freed = here.lost = False
    return outer


cdef int end_asking(Record record, Asking outer) noexcept:
    """Go back to what the thread was asking before; return what became of what was asked in between.

    Where the author's code has switched stacks (greenlets), releases of one thread may end in another order than they
    began in. What was asked before may then be over, and its record gone, so that the thread asks nobody.
    """
    cdef _Asking* here = _here()
    cdef bint queued = here.queued
    if here.record != <PyObject*>record:
        here.record = NULL
        here.waiting, here.queued = WAIT, False
        here.freed = here.lost = False
        return CLOSE_DONE
    here.record, here.waiting, here.queued = outer.record, outer.waiting, outer.queued
    here.freed, here.lost = outer.freed, outer.lost
    return CLOSE_QUEUED if queued else CLOSE_DONE


cdef Record record_being_asked(object resource, size_t pointer):
    """Return the record whose release is asking ``resource`` on this thread to free ``pointer``, or None."""
    cdef PyObject* record = _here().record
    if record == NULL or (<Record>record).resource is not resource or (<Record>record).pointer != pointer:
        return None
    return <Record>record


cdef int waiting_of_asked(int waiting) noexcept nogil:
    """What a release does about work in flight, where it may be a part of another one.

    Parts of a collection are tried again where they are refused: of the whole, nobody is left who could.
    """
    cdef _Asking* here = _here()
    if here.record == NULL or waiting >= NEVER_WAIT or here.waiting == WAIT:
        return waiting
    return LAST_LOAN if here.waiting >= NEVER_WAIT else here.waiting


cdef void note_outcome(int outcome, size_t pointer) noexcept:
    """Note what became of a part of a release, which was at an address."""
    cdef _Asking* here = _here()
    if outcome == CLOSE_QUEUED:
        here.queued = True
    if here.record != NULL and (<Record>here.record).pointer == pointer:
        here.freed = True


cdef void note_loss(size_t pointer) noexcept:
    """Note that what was at an address is out of reach for good."""
    cdef _Asking* here = _here()
    if here.record != NULL and (<Record>here.record).pointer == pointer:
        here.lost = True


cdef bint is_freed_by_asking(Record record) noexcept:
    """Whether the very memory of a record has been freed since this thread asked an author's code for it."""
    return _here().record == <PyObject*>record and _here().freed != 0


cdef bint is_lost_by_asking(Record record) noexcept:
    """The same of memory that was lost. A failure may be about something else that the author's code has freed."""
    return _here().record == <PyObject*>record and _here().lost != 0


cdef void leave_outcome_before_interrupt(int outcome) noexcept:
    """Say, to whoever has started the deleter, that an interrupt comes out of it behind the free."""
    global _outcome_before_interrupt
    _outcome_before_interrupt = outcome


cdef int take_outcome_before_interrupt() noexcept:
    """Return what that was, or -1 where the exception has come before the free."""
    global _outcome_before_interrupt
    cdef int outcome = _outcome_before_interrupt
    _outcome_before_interrupt = -1
    return outcome
