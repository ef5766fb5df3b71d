# SPDX-License-Identifier: Apache-2.0
"""Returning memory to a pool in the order of the streams that used it, without waiting for any.

The driver frees behind the work of one stream. What that means where the stream is a default one, several, captured, or
gone is settled here.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._driver cimport check, direct, is_hopeless
from cuda.core._memory._allocation cimport CLOSE_QUEUED, Record
from cuda.core._memory._pending_frees cimport FreeEvent, PendingFrees, finish_note, note_free, prepare_note
from cuda.core._memory._pool_handle cimport PoolHandle, PoolReference, release_pool, retain_pool
from cuda.core._memory._queue cimport Job, discard_job, enqueue, new_job
from cuda.core._memory._release cimport capture_in_the_way
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._stream_handle cimport (
    STREAM_FOREIGN,
    STREAM_OWNED,
    STREAM_SET,
    StreamHandle,
    ask_whether_captured,
    create_own_stream,
    enter_stream,
    leave_stream,
    release_stream,
    stream_as_seen_here,
    stream_is_capturing,
    stream_is_gone,
)
from cuda.core._stream_order cimport context_of_stream, wait_behind

cdef struct QueuedFree:
    uintptr_t address
    StreamHandle* order  # the job's
    PoolHandle* pool


cdef cydriver.CUresult free_in_order(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                     const char** function) noexcept nogil:
    """Free behind the work of these streams. No stream waits for another through this, and no capture is disturbed.

    The free is noted in ``frees``, which is NULL for memory of a pool that is not ours. The caller keeps that pool.

    A stream that is being captured is answered with STREAM_CAPTURE_UNSUPPORTED, without any effect; ``function`` then
    names the question. On failure ``function`` names the call that was refused.
    """
    cdef StreamHandle* used = NULL
    cdef const char* asked = NULL
    cdef bint capturing = False
    cdef cydriver.CUresult result
    hold_captures_off()
    result = _free_uncaptured(address, order, frees, &used, function)
    let_captures_begin()
    if result == cydriver.CUresult.CUDA_SUCCESS:
        if used != NULL:
            note_free(frees, used)
    elif (
        order != NULL
        and result != cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        and not is_hopeless(result)
        and ask_whether_captured(order, &capturing, &asked) == cydriver.CUresult.CUDA_SUCCESS
        and capturing
    ):
        # Begun meanwhile, elsewhere: that is what the refusal is about, whatever it says.
        function[0] = b"cuStreamIsCapturing"
        result = cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    if used != NULL and used != order:
        release_stream(used)  # destroyed now or by the pool: the driver lets what is in it run
    return result


cdef cydriver.CUresult _free_uncaptured(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                        StreamHandle** used, const char** function) noexcept nogil:
    """The same with captures held off. ``used`` gets the stream to note; if that is not ``order``, it is retained.

    It is noted when captures may begin again: a note may put an event into another stream, which holds them off itself.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUresult result
    if order == NULL or order.kind > STREAM_FOREIGN:
        return _free_behind_others(address, order, frees, used, function)
    function[0] = b"cuStreamIsCapturing"
    result = direct.stream_is_capturing(order.stream, &status)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        if status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        # The call counts among those that a capture anywhere in the process forbids.
        function[0] = b"cuThreadExchangeStreamCaptureMode"
        result = direct.exchange_capture_mode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            if order.kind == STREAM_OWNED:
                function[0] = b"cuMemFreeAsync"
                result = direct.free_in_stream(address, order.stream)
                used[0] = order
            else:
                result = _free_in_foreign(address, order, frees, function)
            direct.exchange_capture_mode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS and stream_is_gone(order, result):
        used[0] = NULL
        return _free_behind_others(address, NULL, frees, used, function)
    return result


cdef cydriver.CUresult _free_in_foreign(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                        const char** function) noexcept nogil:
    """Free in a stream that somebody else may destroy."""
    cdef cydriver.CUcontext context = NULL, popped = NULL
    cdef cydriver.CUresult result
    cdef FreeEvent* note = NULL
    if frees == NULL:
        function[0] = b"cuMemFreeAsync"
        return direct.free_in_stream(address, order.stream)
    result = context_of_stream(order, &context, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuCtxPushCurrent"
    result = cydriver.cuCtxPushCurrent(context)  # the event has to be in the stream's
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    result = prepare_note(frees, &note, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuMemFreeAsync"
        result = direct.free_in_stream(address, order.stream)
        finish_note(frees, note, order.stream, result)
    cydriver.cuCtxPopCurrent(&popped)
    return result


cdef cydriver.CUresult _free_behind_others(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                           StreamHandle** used, const char** function) noexcept nogil:
    """Free behind a default stream, behind several streams, or behind none (NULL)."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    cdef bint capturing = False, pushed = False
    if order != NULL:
        result = stream_is_capturing(order, &capturing, function)
        if result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED:
            order = NULL  # the memory of a pool outlives contexts, and nothing of this one runs any more
        elif result != cydriver.CUresult.CUDA_SUCCESS:
            return result
        if capturing:
            return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = direct.exchange_capture_mode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    if order == NULL:
        result = _free_behind_nothing(address, frees, function)
    elif order.kind == STREAM_SET:
        result = _free_behind_all(address, order, frees, used, function)
    else:
        result = enter_stream(order, &pushed, function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function[0] = b"cuMemFreeAsync"
            result = direct.free_in_stream(address, stream_as_seen_here(order))
            leave_stream(pushed)
            used[0] = order
    direct.exchange_capture_mode(&mode)
    return result


cdef cydriver.CUresult _free_behind_nothing(uintptr_t address, PendingFrees* frees,
                                            const char** function) noexcept nogil:
    """Free what no stream uses any more: on the legacy stream where that can be, for the pool's count of used bytes."""
    cdef cydriver.CUcontext context = NULL
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUstream legacy = <cydriver.CUstream>1
    cdef cydriver.CUresult result
    cdef FreeEvent* note = NULL
    if (
        cydriver.cuCtxGetCurrent(&context) == cydriver.CUresult.CUDA_SUCCESS
        and context != NULL
        and cydriver.cuStreamIsCapturing(legacy, &status) == cydriver.CUresult.CUDA_SUCCESS
        and status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    ):
        result = prepare_note(frees, &note, function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function[0] = b"cuMemFreeAsync"
            result = direct.free_in_stream(address, legacy)
            finish_note(frees, note, legacy, result)
        return result
    function[0] = b"cuMemFree"
    return cydriver.cuMemFree(address)


cdef cydriver.CUresult _free_behind_all(uintptr_t address, StreamHandle* order, PendingFrees* frees,
                                        StreamHandle** used, const char** function) noexcept nogil:
    """Free behind several streams, on a stream of its own: none of the program's has to wait for another."""
    cdef cydriver.CUcontext context = NULL, popped = NULL
    cdef StreamHandle* own = NULL
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef StreamHandle* earlier
    cdef bint gone
    cdef int member
    for member in range(order.member_count):
        earlier = order.members[member]
        if own == NULL:
            result = context_of_stream(earlier, &context, function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function[0] = b"cuCtxPushCurrent"
                result = cydriver.cuCtxPushCurrent(context)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                if not stream_is_gone(earlier, result):
                    break
                result = cydriver.CUresult.CUDA_SUCCESS
                continue
            function[0] = b"cuStreamCreate"
            result = create_own_stream(context, &own)
            cydriver.cuCtxPopCurrent(&popped)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                break
        result = wait_behind(own.stream, context, earlier, False, &gone, function)
        if gone:
            result = cydriver.CUresult.CUDA_SUCCESS
        elif result != cydriver.CUresult.CUDA_SUCCESS:
            break
    if result == cydriver.CUresult.CUDA_SUCCESS:
        if own == NULL:  # all of them are gone
            result = _free_behind_nothing(address, frees, function)
        else:
            function[0] = b"cuMemFreeAsync"
            result = direct.free_in_stream(address, own.stream)
    used[0] = own
    return result


cdef int ensure_freed(cydriver.CUresult result, const char* function) except -1:
    """Raise what :func:`free_in_order` was refused with. A capture is explained."""
    if result == cydriver.CUresult.CUDA_SUCCESS:
        return 0
    if result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        raise capture_in_the_way()
    check(result, function)
    return 0


cdef bint may_be_queued(
    StreamHandle* order, cydriver.CUresult result, const char* function, bint whatever
) noexcept nogil:
    """Whether a free that was refused can be left to the queue: a capture is in the way, or it could not be asked.

    ``whatever``: also after any other refusal that is not final.
    """
    if result == cydriver.CUresult.CUDA_SUCCESS or order == NULL or is_hopeless(result):
        return False
    return (
        whatever
        or result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        or strcmp(function, b"cuStreamIsCapturing") == 0
    )


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    cdef QueuedFree* what = <QueuedFree*>data
    cdef const char* function = NULL
    cdef PendingFrees* frees = &what.pool.frees if what.pool != NULL else NULL
    cdef cydriver.CUresult result = free_in_order(what.address, what.order, frees, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        return True
    failure.result = result
    failure.function = function
    return False


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    release_pool((<QueuedFree*>data).pool)
    free(data)
    return True


cdef int queue_free(Record record, StreamHandle* order, bint once) except -1:
    """Leave a free to the queue, which makes it when the streams are neither captured nor busy.

    With ``once`` it is not tried again after a refusal.
    """
    cdef QueuedFree* what = <QueuedFree*>calloc(1, sizeof(QueuedFree))
    cdef Job* job
    if what == NULL:
        raise MemoryError("no memory for a queued release")
    what.address = record.pointer
    what.order = order
    if isinstance(record.owner, PoolReference):
        what.pool = retain_pool((<PoolReference>record.owner).handle)
    try:
        job = new_job(_give_back, _discard, what, record, order)
    except BaseException:
        _discard(what, NULL)
        raise
    job.once = once
    try:
        enqueue(job)
    except BaseException:  # nothing was queued, and the record still owns it
        discard_job(job)
        raise
    return CLOSE_QUEUED
