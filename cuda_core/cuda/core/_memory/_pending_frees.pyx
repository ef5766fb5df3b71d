# SPDX-License-Identifier: Apache-2.0
"""Which frees into a pool may not have run yet: a pool must not be destroyed before.

The driver promises to keep a destroyed pool until its last free has run. Drivers do not: seen on an H200 (580.159), a
pool destroyed with a free pending, or with memory allocated, ends the process at one of the next calls. Nor does the
pool itself tell: its used bytes fall when a free is submitted, and its reserved bytes when somebody has waited for the
very stream. So the streams are remembered, each once: the common free in the same stream as the one before costs one
look.

A stream of ours lives on in the list. One made elsewhere may be destroyed at any time: there, and for a stream that has
to leave the list, an event behind the free takes its place.
"""

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._driver cimport is_hopeless
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from cuda.core._stream_handle cimport (
    StreamHandle,
    release_stream,
    retain_stream,
    stream_as_seen_here,
    stream_is_capturing,
    stream_is_gone,
)
from cuda.core._stream_order cimport context_of_stream
from cuda.core._undestroyed cimport end_own_event

cdef extern from *:
    """
    static inline void _write_recent(void** place, void* value) { __atomic_store_n(place, value, __ATOMIC_SEQ_CST); }
    """
    void _write_recent(void** place, void* value) noexcept nogil

cdef enum:
    _MOST_STREAMS = 4  # that a pool keeps alive

# Guards the lists of all pools. It is held for a few instructions, never over a call of the driver.
cdef pthread_mutex_t _mutex


cdef void _init_mutex() noexcept nogil:
    pthread_mutex_init(&_mutex, NULL)


_init_mutex()
if pthread_atfork(NULL, NULL, _init_mutex) != 0:
    raise MemoryError("no memory for a fork handler")


cdef void _link_event(PendingFrees* frees, FreeEvent* one) noexcept nogil:
    pthread_mutex_lock(&_mutex)
    one.next = frees.events
    frees.events = one
    pthread_mutex_unlock(&_mutex)


cdef bint _events_have_run(PendingFrees* frees) noexcept nogil:
    """Destroy the events that have been reached. True if there is no other."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef FreeEvent* one
    cdef FreeEvent* following
    cdef FreeEvent* left = NULL
    pthread_mutex_lock(&_mutex)
    one = frees.events
    frees.events = NULL
    pthread_mutex_unlock(&_mutex)
    if one == NULL:
        return True
    # A question to any event would break the captures that this thread may not disturb.
    if cydriver.cuThreadExchangeStreamCaptureMode(&mode) != cydriver.CUresult.CUDA_SUCCESS:
        left = one
    else:
        while one != NULL:
            following = one.next
            # Any other error is that of a context that is gone, and its work with it.
            if cydriver.cuEventQuery(one.event) == cydriver.CUresult.CUDA_ERROR_NOT_READY:
                one.next = left
                left = one
            else:
                # It returns at once. Without it an opened pool keeps what was freed last, for ever (recorded).
                cydriver.cuEventSynchronize(one.event)
                end_own_event(one.event, one.context)
                free(one)
            one = following
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if left == NULL:
        return True
    one = left
    while one.next != NULL:
        one = one.next
    pthread_mutex_lock(&_mutex)
    one.next = frees.events
    frees.events = left
    pthread_mutex_unlock(&_mutex)
    return False


cdef cydriver.CUresult prepare_note(PendingFrees* frees, FreeEvent** note, const char** function) noexcept nogil:
    """Make what is needed to remember a free in a stream that may be destroyed at any time, before that free.

    In the context of the stream, and with the capture mode that the free needs. ``finish_note`` must follow.
    """
    cdef cydriver.CUresult result
    note[0] = NULL
    if frees == NULL:
        return cydriver.CUresult.CUDA_SUCCESS
    _events_have_run(frees)  # so that they do not gather
    function[0] = b"cuCtxGetCurrent"
    note[0] = <FreeEvent*>calloc(1, sizeof(FreeEvent))
    if note[0] == NULL:
        return cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    result = cydriver.cuCtxGetCurrent(&note[0].context)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuEventCreate"
        result = cydriver.cuEventCreate(&note[0].event, cydriver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        free(note[0])
        note[0] = NULL
    return result


cdef void finish_note(PendingFrees* frees, FreeEvent* note, cydriver.CUstream stream,
                      cydriver.CUresult freed) noexcept nogil:
    """Put the event behind the free, or give it back where the driver refused the free."""
    if note == NULL:
        return
    if freed == cydriver.CUresult.CUDA_SUCCESS:
        if cydriver.cuEventRecord(note.event, stream) == cydriver.CUresult.CUDA_SUCCESS:
            _link_event(frees, note)
            return
        frees.unknown = True
    end_own_event(note.event, note.context)
    free(note)


cdef bint _replace_by_event(PendingFrees* frees, StreamHandle* stream) noexcept nogil:
    """Put an event behind what a stream was given so far. False while that cannot be: the stream is captured, say."""
    cdef bint replaced
    hold_captures_off()
    replaced = _put_event(frees, stream)
    let_captures_begin()
    return replaced


cdef bint _put_event(PendingFrees* frees, StreamHandle* stream) noexcept nogil:
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUcontext context = NULL, popped = NULL
    cdef FreeEvent* note = NULL
    cdef bint capturing = False
    cdef const char* function = NULL
    cdef cydriver.CUresult result = stream_is_capturing(stream, &capturing, &function)
    if capturing:
        return False
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = context_of_stream(stream, &context, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        # An event belongs to a context, and is recorded in streams of that alone.
        result = cydriver.cuCtxPushCurrent(context)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = prepare_note(frees, &note, &function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                result = cydriver.cuEventRecord(note.event, stream_as_seen_here(stream))
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    _link_event(frees, note)
                else:
                    end_own_event(note.event, note.context)
                    free(note)
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        cydriver.cuCtxPopCurrent(&popped)
    # What is gone runs no more.
    return result == cydriver.CUresult.CUDA_SUCCESS or is_hopeless(result) or stream_is_gone(stream, result)


cdef void add_stream_of_free(PendingFrees* frees, StreamHandle* order) noexcept nogil:
    """Put a stream on the list, if it is not there, and take an older one off where the list is full."""
    cdef FreeingStream* one
    cdef FreeingStream* added = <FreeingStream*>calloc(1, sizeof(FreeingStream))
    cdef FreeingStream* full = NULL
    cdef FreeingStream** link
    if added == NULL:
        frees.unknown = True
        return
    pthread_mutex_lock(&_mutex)
    one = frees.streams
    while one != NULL and one.stream != order:
        one = one.next
    if one == NULL:
        if frees.stream_count >= _MOST_STREAMS:
            link = &frees.streams
            while link[0].next != NULL:
                link = &link[0].next
            full = link[0]
            link[0] = NULL
            frees.stream_count -= 1
            if frees.recent == full.stream:
                _write_recent(<void**>&frees.recent, NULL)
        added.stream = retain_stream(order)
        added.next = frees.streams
        frees.streams = added
        frees.stream_count += 1
        added = NULL
    _write_recent(<void**>&frees.recent, order)
    pthread_mutex_unlock(&_mutex)
    free(added)
    if full != NULL:
        if _replace_by_event(frees, full.stream):
            release_stream(full.stream)
            free(full)
        else:
            pthread_mutex_lock(&_mutex)
            full.next = frees.streams
            frees.streams = full
            frees.stream_count += 1
            pthread_mutex_unlock(&_mutex)


cdef bint all_is_known(PendingFrees* frees) noexcept nogil:
    """Whether no free can be pending that was not noted."""
    return not frees.unknown and frees.outside <= 0


cdef bint frees_have_run(PendingFrees* frees, bint* blocked) noexcept nogil:
    """Whether nothing is pending any more of what was noted so far. ``blocked``: a capture is in the way."""
    cdef FreeingStream* one
    cdef FreeingStream* following
    cdef bint none
    blocked[0] = False
    pthread_mutex_lock(&_mutex)
    _write_recent(<void**>&frees.recent, NULL)
    one = frees.streams
    frees.streams = NULL
    frees.stream_count = 0
    pthread_mutex_unlock(&_mutex)
    while one != NULL:
        following = one.next
        if _replace_by_event(frees, one.stream):
            release_stream(one.stream)
            free(one)
        else:
            pthread_mutex_lock(&_mutex)
            one.next = frees.streams
            frees.streams = one
            frees.stream_count += 1
            pthread_mutex_unlock(&_mutex)
            blocked[0] = True
        one = following
    none = _events_have_run(frees)
    pthread_mutex_lock(&_mutex)
    none = none and frees.streams == NULL
    pthread_mutex_unlock(&_mutex)
    return none


cdef void forget_frees(PendingFrees* frees) noexcept nogil:
    """Let go of what was remembered, without a call of the driver where nothing of it is ours any more."""
    cdef FreeingStream* one
    cdef FreeEvent* event
    while frees.streams != NULL:
        one = frees.streams
        frees.streams = one.next
        release_stream(one.stream)
        free(one)
    while frees.events != NULL:
        event = frees.events
        frees.events = event.next
        free(event)
