# SPDX-License-Identifier: Apache-2.0
"""One stream, or a thread, behind another stream, in whatever context each of them is."""

from cuda.bindings cimport cydriver
from posix.unistd cimport usleep

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport ask_for_context, ask_for_id, context_is_gone
from cuda.core._driver cimport check
from cuda.core._stream_handle cimport (
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    STREAM_SET,
    StreamHandle,
    ask_for_stream,
    ask_whether_captured,
    is_of_capture,
    leave_stream,
    query_uncaptured,
    stream_as_seen_here,
    stream_is_capturing,
    stream_is_gone,
)
from cuda.core._undestroyed cimport end_own_event


cdef enum:
    _TURNS = 1000  # of asking a stream that is captured and not, by turns
    _PAUSE = 50  # microseconds between two questions


cdef cydriver.CUresult context_of_stream(StreamHandle* handle, cydriver.CUcontext* context,
                                         const char** function) noexcept nogil:
    """Find the context of a stream; of a default stream that was not bound to one, the current context or NULL.

    With captures held off: a stream that was made elsewhere is asked. One that is gone is answered with
    CONTEXT_IS_DESTROYED: it could be made current all the same.
    On failure ``function`` names the call that was refused.
    """
    cdef cydriver.CUresult result
    context[0] = handle.context
    if handle.context != NULL:
        function[0] = b"cuCtxGetId"
        return ask_for_context(handle.context, handle.context_id)
    if handle.kind == STREAM_LEGACY or handle.kind == STREAM_PER_THREAD:
        function[0] = b"cuCtxGetCurrent"
        return cydriver.cuCtxGetCurrent(context)
    result = ask_for_stream(handle, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuStreamGetCtx"
        result = cydriver.cuStreamGetCtx(handle.stream, context)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuCtxGetId"
        result = ask_for_id(context[0], &handle.context_id)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        handle.context = context[0]
    return result


cdef cydriver.CUresult ask_for_context_of(StreamHandle* handle, cydriver.CUcontext* context,
                                          const char** function) noexcept nogil:
    """The same for callers that do not hold captures off."""
    cdef cydriver.CUresult result
    hold_captures_off()
    result = context_of_stream(handle, context, function)
    let_captures_begin()
    return result


cdef cydriver.CUresult enter_context_of_stream(StreamHandle* handle, bint* pushed,
                                               const char** function) noexcept nogil:
    """Make a stream's context current for a call that needs one, unless it is; undone by ``leave_stream``."""
    cdef cydriver.CUcontext context = NULL, current = NULL
    cdef cydriver.CUresult result = context_of_stream(handle, &context, function)
    pushed[0] = False
    if result != cydriver.CUresult.CUDA_SUCCESS or context == NULL:
        return result
    function[0] = b"cuCtxGetCurrent"
    result = cydriver.cuCtxGetCurrent(&current)
    if result == cydriver.CUresult.CUDA_SUCCESS and current != context:
        function[0] = b"cuCtxPushCurrent"
        result = cydriver.cuCtxPushCurrent(context)
        pushed[0] = result == cydriver.CUresult.CUDA_SUCCESS
    return result


cdef cydriver.CUresult _refuse_captured(cydriver.CUstream stream, const char** function) noexcept nogil:
    """Answer STREAM_CAPTURE_UNSUPPORTED if a stream, of the current context, is being captured.

    Other code can begin a capture at any time. Asked behind the record of an event, this tells that the event is none
    of a capture that goes on: a wait for one would break the capture, or take another stream into it.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUresult result = cydriver.cuStreamIsCapturing(stream, &status)
    function[0] = b"cuStreamIsCapturing"
    if status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    return result


cdef cydriver.CUresult wait_behind(cydriver.CUstream later, cydriver.CUcontext context, StreamHandle* earlier,
                                   bint captured, bint* gone, const char** function) noexcept nogil:
    """Let ``later``, a stream of ``context``, wait for what is in ``earlier`` now. With captures held off.

    Each call is made in its own stream's context, in which the tokens of the default streams are resolved. On failure
    ``function`` names the call that was refused, and ``gone`` tells whether ``earlier`` is no more: then nothing is
    left to wait for.

    Unless ``captured``, an ``earlier`` that is being captured is answered with STREAM_CAPTURE_UNSUPPORTED, without a
    wait: that would take ``later`` into the capture.
    """
    cdef cydriver.CUcontext first = NULL, popped = NULL
    cdef cydriver.CUevent event = NULL
    cdef cydriver.CUresult result = context_of_stream(earlier, &first, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuCtxPushCurrent"
        result = cydriver.cuCtxPushCurrent(first)
    gone[0] = stream_is_gone(earlier, result)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuEventCreate"
    result = cydriver.cuEventCreate(&event, cydriver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        event = NULL
    else:
        function[0] = b"cuEventRecord"
        result = cydriver.cuEventRecord(event, stream_as_seen_here(earlier))
        gone[0] = stream_is_gone(earlier, result)
        if result == cydriver.CUresult.CUDA_SUCCESS and not captured:
            result = _refuse_captured(stream_as_seen_here(earlier), function)
    cydriver.cuCtxPopCurrent(&popped)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuCtxPushCurrent"
        result = cydriver.cuCtxPushCurrent(context)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function[0] = b"cuStreamWaitEvent"
            result = cydriver.cuStreamWaitEvent(later, event, 0)
            cydriver.cuCtxPopCurrent(&popped)
    if event != NULL:
        end_own_event(event, first)  # the driver keeps it until the wait is over
    return result


cdef cydriver.CUresult wait_behind_stream(StreamHandle* later, StreamHandle* earlier, bint captured, bint* gone,
                                          const char** function) noexcept nogil:
    """The same of a stream whose context has to be found."""
    cdef cydriver.CUcontext context = NULL
    cdef cydriver.CUresult result = context_of_stream(later, &context, function)
    gone[0] = False
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = wait_behind(stream_as_seen_here(later), context, earlier, captured, gone, function)
    return result


cdef cydriver.CUresult join_first(StreamHandle* all_, bint* capturing, const char** function) noexcept nogil:
    """Let the first stream of a set wait for the others, unless one of them is being captured: nothing is done then."""
    cdef StreamHandle* first = all_.members[0]
    cdef cydriver.CUcontext context = NULL
    cdef cydriver.CUresult result
    cdef bint gone
    cdef int member
    hold_captures_off()
    result = stream_is_capturing(all_, capturing, function)
    if result == cydriver.CUresult.CUDA_SUCCESS and not capturing[0]:
        result = context_of_stream(first, &context, function)
        for member in range(1, all_.member_count):
            if result != cydriver.CUresult.CUDA_SUCCESS:
                break
            result = wait_behind(
                stream_as_seen_here(first), context, all_.members[member], False, &gone, function
            )
            if gone:
                result = cydriver.CUresult.CUDA_SUCCESS
            elif result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:  # begun meanwhile, elsewhere
                capturing[0] = True
                result = cydriver.CUresult.CUDA_SUCCESS
                break
    let_captures_begin()
    return result


cdef bint are_one_capture(StreamHandle** streams, int count) except -1:
    """Whether every one of these streams is being captured, all in the same capture."""
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.cuuint64_t first = 0, id = 0
    cdef cydriver.CUresult result
    cdef int index
    for index in range(count):
        if streams[index].stream == <cydriver.CUstream>1 and streams[index].kind in (STREAM_LEGACY, STREAM_PER_THREAD):
            return False  # the legacy stream is never captured itself; a stream that it waits for is
        with nogil:
            hold_captures_off()
            result = cydriver.cuStreamGetCaptureInfo(streams[index].stream, &status, &id, NULL, NULL, NULL, NULL)
            let_captures_begin()
        check(result, b"cuStreamGetCaptureInfo")
        if status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE or (index and id != first):
            return False
        first = id
    return True


cdef cydriver.CUresult wait_in_order(StreamHandle* handle, bint* waited, bint* capturing,
                                     const char** function) noexcept nogil:
    """Wait, without the GIL, for what is in a stream, and in a set each; not for one that is being captured.

    A capture that begins during the wait is not disturbed: it is an event that is waited for. ``waited`` becomes True
    where there was work. ``capturing`` tells that one of the streams is being captured; nothing was done to it then. On
    failure ``function`` names the call.
    """
    return _wait(handle, False, waited, capturing, function)


cdef cydriver.CUresult wait_for_stream(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil:
    """The same for a stream that a program names: one that is gone is refused.

    An idle one is waited for as well: there drivers give back what pools no longer need. The stream itself is not
    waited for: beside that a launch into it would be answered with UNKNOWN.
    """
    cdef bint waited = False
    return _wait(handle, True, &waited, capturing, function)


cdef cydriver.CUresult _wait(StreamHandle* handle, bint named, bint* waited, bint* capturing,
                             const char** function) noexcept nogil:
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUevent event = NULL
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS, refused
    cdef const char* refused_by
    cdef bint idle = False
    cdef int member, _turn
    capturing[0] = False
    if handle.kind == STREAM_SET:
        for member in range(handle.member_count):
            result = _wait(handle.members[member], named, waited, capturing, function)
            if capturing[0] or (
                result != cydriver.CUresult.CUDA_SUCCESS and not stream_is_gone(handle.members[member], result)
            ):
                return result
        return cydriver.CUresult.CUDA_SUCCESS
    for _turn in range(_TURNS):
        hold_captures_off()
        result = query_uncaptured(handle, &idle, capturing, function)
        if result == cydriver.CUresult.CUDA_SUCCESS and (named or not idle) and not capturing[0]:
            result = _mark(handle, &event, function)
        let_captures_begin()
        if not is_of_capture(result):
            break
        refused, refused_by = result, function[0]
        result = ask_whether_captured(handle, capturing, function)  # begun meanwhile, elsewhere
        if result != cydriver.CUresult.CUDA_SUCCESS or capturing[0]:
            return result
        # And over by now, so that there may be work in the stream again, or still.
        result, function[0] = refused, refused_by
    if idle and not named:
        return cydriver.CUresult.CUDA_SUCCESS
    if result != cydriver.CUresult.CUDA_SUCCESS or capturing[0]:
        return result
    if not idle:
        waited[0] = True
    if event == NULL:  # no memory for one: what is waited for may be what gives memory back
        return result if idle else _ask_until_idle(handle, capturing, function)
    # A wait counts among the calls that other captures forbid this thread.
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuEventSynchronize"
        result = cydriver.cuEventSynchronize(event)
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if not context_is_gone(handle.context, handle.context_id):  # else it went with that
        end_own_event(event, handle.context)
    return result


cdef cydriver.CUresult _ask_until_idle(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil:
    cdef bint idle = False
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    while result == cydriver.CUresult.CUDA_SUCCESS and not idle and not capturing[0]:
        usleep(_PAUSE)
        hold_captures_off()
        result = query_uncaptured(handle, &idle, capturing, function)
        let_captures_begin()
    return cydriver.CUresult.CUDA_SUCCESS if idle else result


cdef cydriver.CUresult _mark(StreamHandle* handle, cydriver.CUevent* event, const char** function) noexcept nogil:
    """Put an event behind what is in a stream now. NULL, without a failure, where none can be made."""
    cdef unsigned int flags = 0
    cdef bint pushed = False
    cdef cydriver.CUresult result = enter_context_of_stream(handle, &pushed, function)
    event[0] = NULL
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    # A thread waits for an event as the context says only if the event says so too.
    if cydriver.cuCtxGetFlags(&flags) != cydriver.CUresult.CUDA_SUCCESS:
        flags = 0
    if flags & cydriver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC:
        flags = cydriver.CUevent_flags.CU_EVENT_DISABLE_TIMING | cydriver.CUevent_flags.CU_EVENT_BLOCKING_SYNC
    else:
        flags = cydriver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    if cydriver.cuEventCreate(event, flags) != cydriver.CUresult.CUDA_SUCCESS:
        event[0] = NULL
    else:
        function[0] = b"cuEventRecord"
        result = cydriver.cuEventRecord(event[0], stream_as_seen_here(handle))
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = _refuse_captured(stream_as_seen_here(handle), function)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            end_own_event(event[0], handle.context)
            event[0] = NULL
    leave_stream(pushed)
    return result
