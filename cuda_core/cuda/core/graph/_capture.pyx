# SPDX-License-Identifier: Apache-2.0
"""Beginning and ending the capture of a stream, and asking how it goes."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t

from cuda.core._capture_lock cimport (
    capture_has_ended,
    enter_capture,
    hold_captures_off,
    leave_capture,
    let_captures_begin,
)
from cuda.core._driver cimport check, ensure_driver, error_for, is_hopeless
from cuda.core._memory._graph_place cimport (
    CapturedGraph,
    GraphReference,
    continue_on,
    part_ends,
    reference_of_capture,
)
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream_handle cimport (
    STREAM_LEGACY,
    StreamHandle,
    ask_for_stream,
    enter_stream,
    leave_stream,
    stream_as_seen_here,
    stream_is_gone,
)


cdef GraphReference begin_capture(StreamHandle* order, int mode):
    """Begin a capture.

    Raises
    ------
    CUDAError
        If the stream is never captured, or the driver refuses. Nothing is being captured then.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUgraph unused = NULL
    cdef cydriver.CUresult result
    cdef cydriver.cuuint64_t id = 0
    cdef const char* function = NULL
    cdef GraphReference reference
    cdef bint pushed = False, begun = False
    if order.kind == STREAM_LEGACY:
        # The driver would refuse it too, and break the captures that the legacy stream waits for.
        error = error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, b"GraphBuilder")
        error.args = (f"{error.args[0]}: the legacy default stream is never captured",)
        raise error
    ensure_driver()
    with nogil:
        result = enter_stream(order, &pushed, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            enter_capture()
            result = ask_for_stream(order, &function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuStreamBeginCapture"
                result = cydriver.cuStreamBeginCapture(order.stream, <cydriver.CUstreamCaptureMode>mode)
                begun = result == cydriver.CUresult.CUDA_SUCCESS
            if begun:
                function = b"cuStreamGetCaptureInfo"
                result = cydriver.cuStreamGetCaptureInfo(order.stream, &status, &id, NULL, NULL, NULL, NULL)
            leave_capture(begun)
    try:
        check(result, function)
        reference = reference_of_capture(id)
        continue_on(reference.graph, order.stream)
    except BaseException:
        if begun:
            with nogil:
                result = _end_any(order, &unused)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    cydriver.cuGraphDestroy(unused)
                capture_has_ended()
        raise
    finally:
        leave_stream(pushed)
    reference.graph.parts = 1
    return reference


cdef cydriver.CUresult _end_any(StreamHandle* order, cydriver.CUgraph* captured) noexcept nogil:
    """End the capture that was begun a moment ago, and of which no more is known."""
    cdef cydriver.CUresult result
    enter_capture()
    result = cydriver.cuStreamEndCapture(order.stream, captured)
    leave_capture(False)
    return result


cdef cydriver.CUresult _end(StreamHandle* order, uint64_t id, cydriver.CUgraph* captured, bint* over,
                            const char** function) noexcept nogil:
    """End a capture while no other thread uses its stream: a driver does not synchronise the graph of a capture.

    Whether it is over is asked before others come to the stream, which may be in another capture right behind. Such a
    one is not ended: it is answered with ILLEGAL_STATE, and this one is over.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.cuuint64_t seen = 0
    cdef cydriver.CUresult result, asked
    over[0] = False
    enter_capture()
    function[0] = b"cuStreamGetCaptureInfo"
    result = cydriver.cuStreamGetCaptureInfo(order.stream, &status, &seen, NULL, NULL, NULL, NULL)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        if status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE and seen != id:
            result = cydriver.CUresult.CUDA_ERROR_ILLEGAL_STATE
            over[0] = True
        else:
            function[0] = b"cuStreamEndCapture"
            result = cydriver.cuStreamEndCapture(order.stream, captured)
            over[0] = result == cydriver.CUresult.CUDA_SUCCESS
            if not over[0]:
                asked = cydriver.cuStreamGetCaptureInfo(order.stream, &status, &seen, NULL, NULL, NULL, NULL)
                over[0] = (
                    asked == cydriver.CUresult.CUDA_SUCCESS
                    and status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
                )
    leave_capture(False)
    return result


cdef int end_capture(StreamHandle* order, CapturedGraph* graph, cydriver.CUgraph* captured, bint* over) except -1:
    """End a capture.

    Raises
    ------
    CUDAError
        If the driver refuses.
    """
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef bint pushed = False
    over[0] = False
    with nogil:
        result = enter_stream(order, &pushed, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = _end(order, graph.id, captured, over, &function)
            leave_stream(pushed)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        captured[0] = NULL
        # A stream that is gone, with its context or without, has taken its capture along.
        over[0] = over[0] or is_hopeless(result) or stream_is_gone(order, result)
        if over[0]:
            with nogil:
                pthread_mutex_lock(&graph.mutex)
                part_ends(graph)
                pthread_mutex_unlock(&graph.mutex)
    if over[0]:
        capture_has_ended()
    check(result, function)
    return 0


cdef cydriver.CUstreamCaptureStatus capture_status(StreamHandle* order) except *:
    """Ask whether a stream is being captured, and whether that capture is whole."""
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    cdef bint pushed = False
    with nogil:
        result = enter_stream(order, &pushed, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuStreamIsCapturing"
            hold_captures_off()
            result = cydriver.cuStreamIsCapturing(stream_as_seen_here(order), &status)
            let_captures_begin()
            leave_stream(pushed)
    check(result, function)
    return status
