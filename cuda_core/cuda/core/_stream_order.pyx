# SPDX-License-Identifier: Apache-2.0
"""One stream behind another, in whatever context each of them is."""

from cuda.bindings cimport cydriver

from cuda.core._context cimport ask_for_context, ask_for_id
from cuda.core._stream_handle cimport (
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    StreamHandle,
    stream_as_seen_here,
    stream_is_gone,
)
from cuda.core._undestroyed cimport end_own_event


cdef cydriver.CUresult context_of_stream(StreamHandle* handle, cydriver.CUcontext* context,
                                         const char** function) noexcept nogil:
    """Find the context of a stream; of a default stream that was not bound to one, the current context or NULL.

    One that is gone is answered with CONTEXT_IS_DESTROYED: it could be made current all the same.
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
    function[0] = b"cuStreamGetCtx"
    result = cydriver.cuStreamGetCtx(handle.stream, context)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuCtxGetId"
        result = ask_for_id(context[0], &handle.context_id)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        handle.context = context[0]
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


cdef cydriver.CUresult wait_behind(cydriver.CUstream later, cydriver.CUcontext context, StreamHandle* earlier,
                                   bint* gone, const char** function) noexcept nogil:
    """Let ``later``, a stream of ``context``, wait for what is in ``earlier`` now.

    Each call is made in its own stream's context, in which the tokens of the default streams are resolved. On failure
    ``function`` names the call that was refused, and ``gone`` tells whether ``earlier`` is no more: then nothing is
    left to wait for.
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
