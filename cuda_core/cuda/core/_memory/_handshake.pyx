# SPDX-License-Identifier: Apache-2.0
"""Streams of other libraries: what their numbers mean, and how one is ordered behind the streams of a buffer.

Consumers of DLPack and of the array interfaces name their stream by a number. The work that is in the producer's
streams has to be seen by whatever the consumer does later in its own.
"""

cimport cython
from cuda.bindings cimport cydriver

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport current_context, device_of_context, primary_context
from cuda.core._driver cimport check, ensure_driver, error_for
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._loans cimport Loan
from cuda.core._memory._ownership cimport CLAIM_MASK, CLAIMED_TO_RELEASE
from cuda.core._stream_handle cimport (
    STREAM_FOREIGN,
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    STREAM_SET,
    StreamHandle,
    StreamKind,
    add_stream,
    ask_for_stream,
    new_stream_handle,
    retain_stream,
    stream_is_capturing,
    stream_is_idle,
)
from cuda.core._stream_order cimport are_one_capture, context_of_stream, wait_behind_stream

from cuda.core._address import address_of
from cuda.core._error_text import shown


cdef object stream_number(object stream, str name):
    """Return NO_STREAM, NO_SYNC or the number of a stream; 0 is left to the caller to judge.

    Raises
    ------
    TypeError
        If it is neither None nor a number.
    ValueError
        If it is a negative number other than -1, or does not fit into 64 bits.
    """
    if stream is None:
        return NO_STREAM
    try:
        number = address_of(stream)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be an int or None, got {type(stream).__name__}: {shown(stream)}"
        ) from None
    if number < -1 or number >= 2**64:
        raise ValueError(f"{name} must be -1 or the address of a stream, got {shown(number)}")
    return number


cdef StreamHandle* consumer_handle(object number, int device_id, StreamHandle* producer) except? NULL:
    """Return a counted handle for a consumer's stream number; NULL where a default stream has no context to be in.

    1 and 2 are the default streams of the memory's device: in the current context if that is one of the device, in the
    device's primary context otherwise. Memory of no device takes the current context, or else the producer's.
    """
    cdef cydriver.CUcontext context
    cdef StreamKind kind
    if number > 2:
        return new_stream_handle(<cydriver.CUstream><size_t>number, NULL, -1, STREAM_FOREIGN)
    kind = STREAM_PER_THREAD if number == 2 else STREAM_LEGACY
    context = current_context()
    if device_id >= 0 and (context == NULL or device_of_context(context) != device_id):
        context = primary_context(device_id)
    elif context == NULL and producer != NULL:
        context = producer.context
    if context == NULL:
        return NULL
    return new_stream_handle(<cydriver.CUstream><size_t>(2 if kind == STREAM_PER_THREAD else 1), context, -1, kind)


cdef Record ordering_record(Record record):
    """Return the record whose streams order the free of this memory: of a slice, that of the whole."""
    cdef object owner = record.held_owner()
    cdef Record whole, heir = None
    while type(owner) is Loan:
        whole = (<Loan>owner).held_record()
        if whole is None:
            break  # another thread has ended this loan
        record, owner = whole, whole.held_owner()
    if record.range is not None:
        with cython.critical_section(record.range):
            heir = record.range.heir
    return record if heir is None else heir  # the buffer was closed, and the loans hold its memory


cdef StreamHandle* lasting_stream(StreamHandle* consumer) except NULL:
    """Return a counted handle of what can order the free for a consumer whose stream may be destroyed before it.

    No consumer says that its stream has ended, and drivers crash where a destroyed stream is used. What a blocking
    stream has been given lies before all later work of its context's legacy stream, which is always there. A
    non-blocking stream has nothing that could take its place; nor can one in a capture be asked which kind it is.
    """
    cdef cydriver.CUcontext context = NULL
    cdef bint capturing = False
    cdef const char* function = NULL
    cdef unsigned int flags = 0
    cdef cydriver.CUresult result
    if consumer.kind != STREAM_FOREIGN:
        return retain_stream(consumer)
    with nogil:
        hold_captures_off()
        result = ask_for_stream(consumer, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = stream_is_capturing(consumer, &capturing, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS and not capturing:
            function = b"cuStreamGetFlags"
            result = cydriver.cuStreamGetFlags(consumer.stream, &flags)
        if result == cydriver.CUresult.CUDA_SUCCESS and not capturing:
            result = context_of_stream(consumer, &context, &function)
        let_captures_begin()
    check(result, function)
    if capturing or flags & cydriver.CUstream_flags.CU_STREAM_NON_BLOCKING:
        return retain_stream(consumer)
    return new_stream_handle(<cydriver.CUstream>1, context, -1, STREAM_LEGACY)


cdef int join_order(Record record, StreamHandle* consumer, StreamHandle* lasting) except -1:
    """Let ``lasting`` order the free too, unless the consumer's stream does already under another name."""
    cdef StreamHandle* known
    cdef StreamHandle* one
    cdef int member
    with cython.critical_section(record):
        if (record.word.load() & CLAIM_MASK) == CLAIMED_TO_RELEASE:
            return 0  # its release is under way, by somebody who does not know of the consumer
        known = record.stream
        for member in range(known.member_count if known != NULL and known.kind == STREAM_SET else 1):
            one = known.members[member] if known != NULL and known.kind == STREAM_SET else known
            # The address of a stream is the stream, whoever made it. The tokens mean nothing without their context.
            if one != NULL and one.stream == consumer.stream and consumer.kind == STREAM_FOREIGN:
                return 0
        record.stream = add_stream(known, retain_stream(lasting))
    return 0


# --- one stream behind another ------------------------------------------------------------------------------------


cdef int _order_behind_one(StreamHandle* consumer, StreamHandle* producer) except -1:
    cdef bint producer_captures = False, consumer_captures = False, idle = False, gone = False, none
    cdef StreamHandle* both[2]
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if producer.stream == consumer.stream and (producer.kind == STREAM_FOREIGN or producer.context == consumer.context):
        if producer.kind != STREAM_PER_THREAD or producer.thread == consumer.thread:
            return 0
    with nogil:
        hold_captures_off()
        result = stream_is_capturing(producer, &producer_captures, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = stream_is_capturing(consumer, &consumer_captures, &function)
        none = result == cydriver.CUresult.CUDA_SUCCESS and not producer_captures and not consumer_captures
        if none:
            result = wait_behind_stream(consumer, producer, False, &gone, &function)
        let_captures_begin()
    if not gone:
        check(result, function)
    if none:
        return 0
    if producer_captures or consumer_captures:
        if not producer_captures:
            with nogil:
                result = stream_is_idle(producer, &idle, &function)
            check(result, function)
        if idle:
            return 0  # nothing to wait for, so the capture needs no edge to the outside
        both[0], both[1] = producer, consumer
        if not (producer_captures and consumer_captures and are_one_capture(both, 2)):
            error = error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION, b"cuStreamIsCapturing")
            error.args = (
                f"{error.args[0]}: the consumer's stream and the stream of the memory are not in the same capture, and "
                "ordering one behind the other would break it; export before or after the capture, or give stream=-1 "
                "and order the work yourself",
            )
            raise error
    with nogil:
        hold_captures_off()
        result = wait_behind_stream(consumer, producer, True, &gone, &function)
        let_captures_begin()
    if not gone:
        check(result, function)
    return 0


cdef int order_behind(StreamHandle* consumer, StreamHandle* producer) except -1:
    """Let all later work of the consumer's stream wait for what is in the producer's streams now. Nothing waits here.

    Raises
    ------
    CUDAError
        If the driver refuses, or one of the streams is being captured and the other is not in that capture. No stream
        waits for another then, except that of several producers the first ones may be waited for.
    """
    cdef int member
    if consumer == NULL or producer == NULL:
        return 0
    ensure_driver()
    if producer.kind != STREAM_SET:
        return _order_behind_one(consumer, producer)
    for member in range(producer.member_count):
        _order_behind_one(consumer, producer.members[member])
    return 0
