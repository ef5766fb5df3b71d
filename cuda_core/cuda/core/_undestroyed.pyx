# SPDX-License-Identifier: Apache-2.0
"""Streams, events and user objects that the driver would not destroy where nobody could be told.

The last holder of a stream may be a buffer, a queued release or a pool, on a thread that runs no Python; an event may
go with a collection, or be one that the package has made for itself. There a refusal has no caller. So the object is
kept, one ``CUDAWarning`` tells of it, and it is tried again when another stream or event is made or destroyed.
"""

import warnings

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic, memory_order_relaxed

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport ask_for_id, context_is_gone
from cuda.core._driver cimport error_for, is_finalizing, is_hopeless
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

from cuda.core._errors import CUDAWarning

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil

cdef struct Kept:
    ObjectKind kind
    void* handle
    cydriver.CUcontext context
    unsigned long long context_id
    cydriver.CUresult refusal
    bint told
    Kept* next

cdef enum:
    _AT_ONCE = 16

_NAMES = (("a stream", b"cuStreamDestroy"), ("an event", b"cuEventDestroy"), ("a user object", b"cuUserObjectRelease"))

# Guards the list only; no call is made under it.
cdef pthread_mutex_t _mutex
cdef Kept* _first = NULL
cdef Kept* _last = NULL
cdef Kept* _untold = NULL  # the first in the list that nobody was told of
cdef atomic[long] _count        # of those in the list, and those for which there was no memory
cdef atomic[long] _counts[3]    # the same by kind


cdef void _forget_all() noexcept nogil:
    """In the child of a fork they are the parent's."""
    global _first, _last, _untold
    cdef int kind
    pthread_mutex_init(&_mutex, NULL)
    _first = _last = _untold = NULL
    _count.store(0)
    for kind in range(3):
        _counts[kind].store(0)


_forget_all()
if pthread_atfork(NULL, NULL, _forget_all) != 0:
    raise MemoryError("no memory for a fork handler")


cdef Kept* _untold_from(Kept* one) noexcept nogil:
    while one != NULL and one.told:
        one = one.next
    return one


cdef void _append(Kept* one) noexcept nogil:
    global _first, _last, _untold
    pthread_mutex_lock(&_mutex)
    one.next = NULL
    if _untold == NULL and not one.told:
        _untold = one
    if _last == NULL:
        _first = one
    else:
        _last.next = one
    _last = one
    pthread_mutex_unlock(&_mutex)


cdef Kept* _take() noexcept nogil:
    global _first, _last, _untold
    cdef Kept* one
    pthread_mutex_lock(&_mutex)
    one = _first
    if one != NULL:
        if one == _untold:
            _untold = _untold_from(one.next)
        _first = one.next
        if _first == NULL:
            _last = NULL
    pthread_mutex_unlock(&_mutex)
    return one


cdef bint _next_untold(Kept* facts) noexcept nogil:
    """Copy the facts of one that was not told of yet. False where there is none."""
    global _untold
    cdef Kept* one
    pthread_mutex_lock(&_mutex)
    one = _untold
    if one != NULL:
        one.told = True
        facts[0] = one[0]
        _untold = _untold_from(one.next)
    pthread_mutex_unlock(&_mutex)
    return one != NULL


cdef int _tell_of(Kept* facts) noexcept:
    """Warn of one. Where warnings are errors this one is printed, and the others have their turn all the same."""
    what, function = _NAMES[<int>facts.kind]
    warnings.warn(
        f"{what} at {<size_t>facts.handle:#x} could not be destroyed: {error_for(facts.refusal, function)}. It is "
        "tried again with the next stream or event that is made or closed.",
        CUDAWarning,
        stacklevel=1,
    )
    return 0


cdef int _tell(void* unused) noexcept:
    """Warn of what was kept and is still there. A pending call: the main thread makes it, with the GIL.

    Of a few at a time: other threads may keep more than one thread can tell of.
    """
    cdef Kept facts
    cdef int _turn
    if is_finalizing():
        return 0
    for _turn in range(_AT_ONCE):
        if not _next_untold(&facts):
            return 0
        _tell_of(&facts)
    Py_AddPendingCall(_tell, NULL)
    return 0


cdef bint _is_gone(cydriver.CUresult refusal) noexcept nogil:
    """Whether a refusal says that there is nothing to destroy any more."""
    return is_hopeless(refusal) or refusal in (
        cydriver.CUresult.CUDA_ERROR_INVALID_HANDLE,
        cydriver.CUresult.CUDA_ERROR_INVALID_CONTEXT,
    )


cdef void keep_undestroyed(ObjectKind kind, void* handle, cydriver.CUcontext context, unsigned long long context_id,
                           cydriver.CUresult refusal) noexcept nogil:
    """Keep what the driver has refused to destroy, unless it is gone: with its context, or destroyed by other code."""
    cdef Kept* one
    if _is_gone(refusal) or context_is_gone(context, context_id):
        return
    _count.fetch_add(1)
    _counts[<int>kind].fetch_add(1)
    one = <Kept*>calloc(1, sizeof(Kept))
    if one == NULL:
        return  # counted, and never tried again
    one.kind, one.handle, one.context, one.context_id = kind, handle, context, context_id
    one.refusal = refusal
    if not context_id and ask_for_id(context, &one.context_id) != cydriver.CUresult.CUDA_SUCCESS:
        one.context_id = 0
    _append(one)
    Py_AddPendingCall(_tell, NULL)


cdef long undestroyed(ObjectKind kind) noexcept nogil:
    """Return how many of a kind are kept."""
    return _counts[<int>kind].load()


cdef void try_undestroyed() noexcept nogil:
    """Destroy what could not be destroyed before, as far as the driver does it now.

    The first that is refused again ends the attempt and goes behind the others: what is refused for good costs each
    caller one call, however much it is. Not for callers that hold captures off.
    """
    cdef Kept* one
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    if not _count.load(memory_order_relaxed):
        return
    while result == cydriver.CUresult.CUDA_SUCCESS:
        one = _take()
        if one == NULL:
            return
        # A real driver may crash where it is given what went with its context.
        if not context_is_gone(one.context, one.context_id):
            if one.kind == A_USER_OBJECT:
                result = cydriver.cuUserObjectRelease(<cydriver.CUuserObject>one.handle, 1)
            else:
                hold_captures_off()  # it may be of one
                if one.kind == A_STREAM:
                    result = cydriver.cuStreamDestroy(<cydriver.CUstream>one.handle)
                else:
                    result = cydriver.cuEventDestroy(<cydriver.CUevent>one.handle)
                let_captures_begin()
        if result != cydriver.CUresult.CUDA_SUCCESS and not _is_gone(result):
            _append(one)
        else:
            _count.fetch_sub(1)
            _counts[<int>one.kind].fetch_sub(1)
            free(one)


cdef void end_own_event(cydriver.CUevent event, cydriver.CUcontext context) noexcept nogil:
    """Destroy an event that the package has made for itself; what it was made for has succeeded or failed already."""
    cdef cydriver.CUresult result = cydriver.cuEventDestroy(event)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        keep_undestroyed(AN_EVENT, event, context, 0, result)


cdef void end_user_object(cydriver.CUuserObject object_) noexcept nogil:
    """Let go of a user object that no graph has taken, or keep it."""
    cdef cydriver.CUresult result = cydriver.cuUserObjectRelease(object_, 1)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        keep_undestroyed(A_USER_OBJECT, object_, NULL, 0, result)
