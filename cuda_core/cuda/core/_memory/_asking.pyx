# SPDX-License-Identifier: Apache-2.0
"""What a thread asks an author's code for: the release that is in progress, and how it deals with work in flight.

A ``deallocate`` often frees by closing another buffer, or by the ``deallocate`` of a built-in resource. That is a part
of the release which has asked, and does about streams what that one does: an explicit close waits, a collection never
does, and leaves to the queue what is behind work or behind a capture. A collection that waited inside an author's code
would be a collection that waits; one that was refused there would lose the memory, since it asks only once.
"""

from cpython.ref cimport PyObject

from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, WAIT, Record

cdef extern from *:
    """
    struct cuda_core_asking { PyObject *record; int waiting; int queued; };
    static thread_local struct cuda_core_asking cuda_core_asking_now = {nullptr, 0, 0};
    #define cuda_core_asking_here() (&cuda_core_asking_now)
    """
    struct _Asking "cuda_core_asking":
        PyObject* record
        int waiting
        int queued

    _Asking* _here "cuda_core_asking_here"() noexcept nogil


cdef Asking begin_asking(Record record, int waiting) noexcept:
    """Note that this thread asks an author's code to free. Returns what it was asking before, for the end."""
    cdef _Asking* here = _here()
    cdef Asking outer
    outer.record, outer.waiting, outer.queued = here.record, here.waiting, here.queued
    here.record, here.waiting, here.queued = <PyObject*>record, waiting, False
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
        return CLOSE_DONE
    here.record, here.waiting, here.queued = outer.record, outer.waiting, outer.queued
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


cdef void note_outcome(int outcome) noexcept nogil:
    """Note what became of a part of a release."""
    if outcome == CLOSE_QUEUED:
        _here().queued = True
