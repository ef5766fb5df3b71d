# SPDX-License-Identifier: Apache-2.0
"""The counted C handle of a stream, which buffers hold, and the questions that a release asks it.

A buffer that is freed in the order of a stream must be able to do so after the ``Stream`` object was closed and in
places where no Python may run. So it holds the C handle, which is counted: the driver's stream is destroyed when the
last holder lets go.
"""

cimport cython
from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport ask_for_context, context_is_gone, current_context
from cuda.core._driver cimport check, error_for, is_finalizing, is_hopeless
from cuda.core._undestroyed cimport A_STREAM, keep_undestroyed, try_undestroyed, undestroyed

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil
    void Py_XDECREF(PyObject*) noexcept

cdef atomic[long] _live


cpdef long live_stream_handles() noexcept:
    """Return the number of stream handles that this package holds, without the two default streams.

    A stream that the driver would not destroy is one of them.
    """
    return _live.load() + undestroyed(A_STREAM)


cdef StreamHandle* new_stream_handle(cydriver.CUstream stream, cydriver.CUcontext context, int device_id,
                                     StreamKind kind) except NULL:
    cdef StreamHandle* handle = <StreamHandle*>calloc(1, sizeof(StreamHandle))
    if handle == NULL:
        raise MemoryError("no memory for a stream handle")
    handle.count = 1
    handle.stream = stream
    handle.context = context
    handle.device_id = device_id
    handle.kind = kind
    handle.generation = fork_generation()
    handle.thread = PyThread_get_thread_ident()
    _live.fetch_add(1)
    return handle


cdef cydriver.CUresult create_own_stream(cydriver.CUcontext context, StreamHandle** made) noexcept nogil:
    """Create a stream for a work of this package, in its context, which is current. NULL where that fails."""
    cdef StreamHandle* handle = <StreamHandle*>calloc(1, sizeof(StreamHandle))
    cdef cydriver.CUresult result
    made[0] = NULL
    if handle == NULL:
        return cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    result = cydriver.cuStreamCreate(&handle.stream, cydriver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        free(handle)
        return result
    handle.count = 1
    handle.context = context
    handle.device_id = -1
    handle.kind = STREAM_OWNED
    handle.generation = fork_generation()
    _live.fetch_add(1)
    made[0] = handle
    return result


cdef cydriver.CUresult _destroy(StreamHandle* handle) noexcept nogil:
    """Destroy the stream of a handle that nobody holds any more, where it is ours and still there."""
    cdef cydriver.CUresult result
    if (
        handle.kind == STREAM_OWNED
        and not is_inherited(handle)
        # A stream whose context is gone is gone with it, and a real driver does not survive that it is named again.
        and not context_is_gone(handle.context, handle.context_id)
    ):
        hold_captures_off()  # it may have joined one
        result = cydriver.cuStreamDestroy(handle.stream)
        let_captures_begin()
        if not stream_is_gone(handle, result):
            return result
    return cydriver.CUresult.CUDA_SUCCESS


cdef void _forget(StreamHandle* handle) noexcept nogil:
    """Free a handle, and let go of what it holds."""
    cdef int member
    if handle.owner != NULL and not is_finalizing():
        with gil:
            Py_XDECREF(handle.owner)
    for member in range(handle.member_count):
        release_stream(handle.members[member])
    free(handle.members)
    free(handle)
    _live.fetch_sub(1)


cdef void end_stream(StreamHandle* handle) noexcept nogil:
    """End a stream that nobody holds any more. What the driver refuses is kept: there is nobody here to tell."""
    cdef bint ours = handle.kind == STREAM_OWNED and not is_inherited(handle)
    cdef cydriver.CUresult result = _destroy(handle)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        keep_undestroyed(A_STREAM, handle.stream, handle.context, handle.context_id, result)
    _forget(handle)
    if ours and result == cydriver.CUresult.CUDA_SUCCESS:
        try_undestroyed()


cdef cydriver.CUresult close_stream(StreamHandle* handle) noexcept nogil:
    """Let go of a handle, for a caller that can be told. Refused, the caller has it still, unless it is lost."""
    cdef cydriver.CUresult result
    cdef bint ours
    if handle == NULL or __atomic_add_fetch(&handle.count, -1, __ATOMIC_ACQ_REL) != 0:
        return cydriver.CUresult.CUDA_SUCCESS
    ours = handle.kind == STREAM_OWNED and not is_inherited(handle)
    result = _destroy(handle)
    if result != cydriver.CUresult.CUDA_SUCCESS and not is_hopeless(result):
        handle.count = 1  # nobody else has a way to it
        return result
    _forget(handle)
    if ours and result == cydriver.CUresult.CUDA_SUCCESS:
        try_undestroyed()
    return result


cdef cydriver.CUresult enter_stream(StreamHandle* handle, bint* pushed, const char** function) noexcept nogil:
    """Make the context current in which a default stream was bound, unless it is.

    The two default streams are tokens: the driver resolves them in the calling thread's current context.
    """
    cdef cydriver.CUcontext current = NULL
    cdef cydriver.CUresult result
    pushed[0] = False
    if handle.kind not in (STREAM_LEGACY, STREAM_PER_THREAD) or handle.context == NULL:
        return cydriver.CUresult.CUDA_SUCCESS
    function[0] = b"cuCtxGetId"
    result = ask_for_context(handle.context, handle.context_id)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuCtxGetCurrent"
    result = cydriver.cuCtxGetCurrent(&current)
    if result == cydriver.CUresult.CUDA_SUCCESS and current != handle.context:
        function[0] = b"cuCtxPushCurrent"
        result = cydriver.cuCtxPushCurrent(handle.context)
        pushed[0] = result == cydriver.CUresult.CUDA_SUCCESS
    return result


cdef cydriver.CUresult ask_for_stream(StreamHandle* handle, const char** function) noexcept nogil:
    """Answer with a failure if a stream is gone, or went with its context. To be asked before the stream is named.

    A driver may crash where a stream of a context that is gone is named. Of a stream made elsewhere nothing is known
    before its context was asked for; the default streams are asked for when they are entered. With captures held off.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    function[0] = b"cuCtxGetId"
    if handle.kind == STREAM_FOREIGN and handle.context == NULL:
        # Whether it is captured can be asked wherever it is: of a stream that is gone, a real driver says so.
        function[0] = b"cuStreamIsCapturing"
        return cydriver.cuStreamIsCapturing(handle.stream, &status)
    if handle.kind in (STREAM_OWNED, STREAM_FOREIGN):
        return ask_for_context(handle.context, handle.context_id)
    return cydriver.CUresult.CUDA_SUCCESS


cdef bint stream_is_gone(StreamHandle* handle, cydriver.CUresult result) noexcept nogil:
    """Whether an answer says that the stream itself is no more: destroyed by its owner, or with its context.

    Nothing of it is left to wait for. The tokens of the default streams are never gone by themselves.
    """
    return handle.kind in (STREAM_OWNED, STREAM_FOREIGN) and result in (
        cydriver.CUresult.CUDA_ERROR_INVALID_CONTEXT,
        cydriver.CUresult.CUDA_ERROR_INVALID_HANDLE,
        cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
    )


cdef cydriver.CUstream stream_as_seen_here(StreamHandle* handle) noexcept nogil:
    """Return what to wait for on this thread.

    The per-thread token would name this thread's own stream. Another thread's cannot be named; the legacy stream,
    which waits for all of them, takes its place: slower, never unordered.
    """
    if (
        handle.kind == STREAM_PER_THREAD
        and handle.context != NULL  # else it was not bound, and is the calling thread's
        and handle.thread != PyThread_get_thread_ident()
    ):
        return <cydriver.CUstream>1
    return handle.stream


cdef void leave_stream(bint pushed) noexcept nogil:
    cdef cydriver.CUcontext popped = NULL
    if pushed:
        cydriver.cuCtxPopCurrent(&popped)


cdef cydriver.CUresult stream_is_capturing(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil:
    """Ask whether work on the stream is being captured, with captures held off. Never a disturbance of the capture."""
    cdef bint pushed = False
    cdef cydriver.CUresult result
    cdef int member
    capturing[0] = False
    if handle.kind == STREAM_SET:
        for member in range(handle.member_count):
            result = stream_is_capturing(handle.members[member], capturing, function)
            if result != cydriver.CUresult.CUDA_SUCCESS or capturing[0]:
                return result
        return cydriver.CUresult.CUDA_SUCCESS
    result = ask_for_stream(handle, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return cydriver.CUresult.CUDA_SUCCESS if stream_is_gone(handle, result) else result
    result = enter_stream(handle, &pushed, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    result = _entered_is_capturing(handle, capturing, function)
    leave_stream(pushed)
    return result


cdef cydriver.CUresult _entered_is_capturing(StreamHandle* handle, bint* capturing,
                                             const char** function) noexcept nogil:
    """The same of one stream whose context is there, and current where it has to be."""
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUresult result
    function[0] = b"cuStreamIsCapturing"
    result = cydriver.cuStreamIsCapturing(stream_as_seen_here(handle), &status)
    if result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        # The legacy stream waits for every blocking stream, and one of those is being captured.
        capturing[0] = True
        return cydriver.CUresult.CUDA_SUCCESS
    if stream_is_gone(handle, result):
        return cydriver.CUresult.CUDA_SUCCESS
    capturing[0] = status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return result


cdef bint is_of_capture(cydriver.CUresult result) noexcept nogil:
    """Whether an answer says that a stream is being captured, or that one is which it would wait for."""
    return result in (
        cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    )


cdef cydriver.CUresult refuse_capturing(StreamHandle* handle, const char** function) noexcept nogil:
    """Answer with a failure for a stream that is being captured, or that is gone. With captures held off."""
    cdef bint capturing = False
    cdef cydriver.CUresult result = ask_for_stream(handle, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = stream_is_capturing(handle, &capturing, function)
    return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if capturing else result


cdef cydriver.CUresult ask_whether_captured(StreamHandle* handle, bint* capturing,
                                            const char** function) noexcept nogil:
    """``stream_is_capturing`` for callers that do not hold captures off: the answer may be an old one already."""
    cdef cydriver.CUresult result
    hold_captures_off()
    result = stream_is_capturing(handle, capturing, function)
    let_captures_begin()
    return result


cdef bint is_captured(StreamHandle* handle) except -1:
    """Whether work on the stream is being captured, for callers that raise what the driver answers."""
    cdef bint capturing = False
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    with nogil:
        result = ask_whether_captured(handle, &capturing, &function)
    check(result, function)
    return capturing


cdef int refuse_captured(StreamHandle* handle, str refusal) except -1:
    """Raise the driver's error, with this text behind it, for a stream that is being captured.

    The driver itself would break the capture, which belongs to somebody else.
    """
    if is_captured(handle):
        raise captured_error(refusal)
    return 0


cdef object captured_error(str refusal):
    error = error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, b"cuStreamIsCapturing")
    error.args = (f"{error.args[0]}: {refusal}",)
    return error


cdef cydriver.CUresult stream_is_idle(StreamHandle* handle, bint* idle, const char** function) noexcept nogil:
    """Ask, without waiting, whether everything in the stream has run. A capturing stream is not idle."""
    cdef cydriver.CUresult result
    cdef bint capturing
    cdef int member
    idle[0] = False
    if handle.kind == STREAM_SET:
        for member in range(handle.member_count):
            result = stream_is_idle(handle.members[member], idle, function)
            if result != cydriver.CUresult.CUDA_SUCCESS or not idle[0]:
                return result
        return cydriver.CUresult.CUDA_SUCCESS
    hold_captures_off()
    result = query_uncaptured(handle, idle, &capturing, function)
    let_captures_begin()
    return cydriver.CUresult.CUDA_SUCCESS if idle[0] else result


cdef cydriver.CUresult query_uncaptured(StreamHandle* handle, bint* idle, bint* capturing,
                                        const char** function) noexcept nogil:
    """Ask one stream for its work, unless it is being captured. With captures held off.

    One that is gone is idle, and the answer says that it is gone.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef bint pushed = False
    cdef cydriver.CUresult result = ask_for_stream(handle, function)
    idle[0] = capturing[0] = False
    if result != cydriver.CUresult.CUDA_SUCCESS:
        idle[0] = stream_is_gone(handle, result)
        return result
    result = enter_stream(handle, &pushed, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    # Asking a capturing stream for its work would invalidate the capture.
    result = _entered_is_capturing(handle, capturing, function)
    if result != cydriver.CUresult.CUDA_SUCCESS or capturing[0]:
        leave_stream(pushed)
        return result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuStreamQuery"
        result = cydriver.cuStreamQuery(stream_as_seen_here(handle))
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    leave_stream(pushed)
    if is_of_capture(result):  # begun meanwhile, elsewhere
        capturing[0] = True
        return cydriver.CUresult.CUDA_SUCCESS
    if result == cydriver.CUresult.CUDA_ERROR_NOT_READY:
        return cydriver.CUresult.CUDA_SUCCESS
    idle[0] = result == cydriver.CUresult.CUDA_SUCCESS or stream_is_gone(handle, result)
    return result


cdef bint _same_stream(StreamHandle* one, StreamHandle* other) noexcept nogil:
    return (
        one.stream == other.stream
        and one.kind == other.kind
        and one.context == other.context
        and (one.kind != STREAM_PER_THREAD or one.thread == other.thread)
    )


cdef StreamHandle* add_stream(StreamHandle* handle, StreamHandle* added) except NULL:
    """Return a set of the streams of ``handle`` (NULL for none) and ``added``. Takes over both references."""
    cdef StreamHandle* result
    cdef int count = 0, member
    if handle == NULL:
        return added
    count = handle.member_count if handle.kind == STREAM_SET else 1
    for member in range(count):
        if _same_stream(handle.members[member] if handle.kind == STREAM_SET else handle, added):
            release_stream(added)
            return handle
    result = new_stream_handle(NULL, NULL, -1, STREAM_SET)
    result.members = <StreamHandle**>calloc(count + 1, sizeof(StreamHandle*))
    if result.members == NULL:
        release_stream(result)
        raise MemoryError("no memory for a set of streams")
    for member in range(count):
        result.members[member] = retain_stream(handle.members[member] if handle.kind == STREAM_SET else handle)
    result.members[count] = added
    result.member_count = count + 1
    release_stream(handle)
    return result


# The handles that were bound last, one for each token: programs bind the same one again and again.
cdef StreamHandle* _last_bound[2]
cdef object _slots = object()  # what a thread locks to look at them where there is no GIL


cdef void always_there() noexcept nogil:
    """Leave a handle that lives as long as the process out of the count."""
    _live.fetch_sub(1)


cdef StreamHandle* bind_token(StreamHandle* token) except? NULL:
    """Return a handle of a default stream in the current context, or NULL where no context is current."""
    cdef cydriver.CUcontext context = current_context()
    cdef int slot = token.kind == STREAM_PER_THREAD
    cdef StreamHandle* last
    cdef StreamHandle* bound
    if context == NULL:
        return NULL
    with cython.critical_section(_slots):
        last = _last_bound[slot]
        if last != NULL and last.context == context and (slot == 0 or last.thread == PyThread_get_thread_ident()):
            if not is_inherited(last):
                return retain_stream(last)
    bound = retain_stream(new_stream_handle(token.stream, context, -1, token.kind))  # for the slot and the caller
    with cython.critical_section(_slots):
        last, _last_bound[slot] = _last_bound[slot], bound
    _live.fetch_sub(1)  # the one in the slot is always there
    if last != NULL:
        _live.fetch_add(1)  # out of the slot, it counts again until its last holder lets go
        release_stream(last)
    return bound
