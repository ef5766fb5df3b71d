# SPDX-License-Identifier: Apache-2.0
"""Copies from one buffer to another, in the order of a stream.

A copy lends both buffers for the length of the call: whoever closes one meanwhile closes it at once, and the memory
goes back when the call has put the copy into the stream. A copy that is captured is lent to the graph.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._driver cimport check, ensure_driver, optional_function
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._graph_loans cimport (
    GraphLoan,
    hold_as_asked,
    hold_in_capture,
    lend_late,
    lend_to_graph,
    take_back,
)
from cuda.core._memory._location cimport location_argument
from cuda.core._memory._loans cimport end_loan, lend
from cuda.core._stream cimport Stream
from cuda.core._stream_handle cimport STREAM_LEGACY, StreamHandle, drop_stream, is_captured, refuse_capturing

from cuda.core._error_text import shown, size_hint
from cuda.core._memory._copy_options import CopyOptions, MemcpyOverlapMode, MemcpySrcAccessOrder

ctypedef cydriver.CUresult (*WithAttributes)(
    cydriver.CUdeviceptr dst, cydriver.CUdeviceptr src, size_t size, cydriver.CUmemcpyAttributes* attributes,
    cydriver.CUstream stream,
) noexcept nogil

cdef WithAttributes _with_attributes = NULL
cdef bint _looked = False

cdef dict _ORDERS = {
    MemcpySrcAccessOrder.STREAM: <int>cydriver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    MemcpySrcAccessOrder.DURING_API_CALL: (
        <int>cydriver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
    ),
    MemcpySrcAccessOrder.ANY: <int>cydriver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
}
cdef dict _FLAGS = {
    MemcpyOverlapMode.DEFAULT: <int>cydriver.CUmemcpyFlags.CU_MEMCPY_FLAG_DEFAULT,
    MemcpyOverlapMode.PREFER_OVERLAP_WITH_COMPUTE: (
        <int>cydriver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
    ),
}
_NEEDED = "a driver of CUDA 13.2 or newer (cuMemcpyWithAttributesAsync is unavailable here)"


cdef cydriver.CUmemcpyAttributes attributes_of(object options) except *:
    """Return options as the driver takes them. Refuses hints that are no places; the driver knows which exist."""
    cdef cydriver.CUmemcpyAttributes attributes
    cdef cydriver.CUmemLocation nowhere
    nowhere.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    nowhere.id = 0
    source, destination = options.src_location_hint, options.dst_location_hint
    attributes.srcAccessOrder = <cydriver.CUmemcpySrcAccessOrder><int>_ORDERS[options.src_access_order]
    attributes.srcLocHint = nowhere if source is None else location_argument(source, False)
    attributes.dstLocHint = nowhere if destination is None else location_argument(destination, False)
    attributes.flags = <unsigned int><int>_FLAGS[options.overlap_mode]
    return attributes


cdef int ensure_not_during_call(object options, str where, str requirement) except -1:
    """Refuse the one option that a plain copy cannot replace: it reads the source later, in the order of the stream."""
    if options is None or options.src_access_order is not MemcpySrcAccessOrder.DURING_API_CALL:
        return 0
    raise RuntimeError(
        f"src_access_order=DURING_API_CALL{where} requires {requirement}. A plain copy would read the source in the "
        "order of the stream, after the call has returned, when the caller already takes it for read. Use STREAM or "
        "ANY, or no options."
    )


cdef int ensure_no_capture(StreamHandle* order, str refusal) except -1:
    """Refuse a stream that is being captured, for what no graph has a node for: such a stream is a wrong argument."""
    ensure_driver()
    if is_captured(order):
        raise TypeError(refusal)
    return 0


cdef int ensure_disjoint(Record dst, Record src, str where) except -1:
    """Refuse ranges that overlap in a part: what then arrives is undefined. A copy onto itself changes nothing."""
    cdef uintptr_t low, high
    if dst.pointer == src.pointer:
        return 0
    low, high = min(dst.pointer, src.pointer), max(dst.pointer, src.pointer)
    if high - low < src.size:
        raise ValueError(
            f"the source and the destination of a copy must not overlap{where} (src={<size_t>src.pointer:#x}, "
            f"dst={<size_t>dst.pointer:#x}, {src.size} bytes)"
        )
    return 0


cdef bint may_wait(Record dst, Record src) except -1:
    """Whether the call of a copy may wait for work: with memory of the host on both sides, or that is pageable."""
    if src.device_id >= 0 and dst.device_id >= 0:
        return False
    if src.device_id < 0 and dst.device_id < 0:
        return True
    return not getattr(type((src if src.device_id < 0 else dst).held_resource()), "_page_locked", False)


cdef bint may_wait_with(Record dst, Record src, object options) except -1:
    """The same with options: one of them lets the call return when the source has been read."""
    return options.src_access_order is MemcpySrcAccessOrder.DURING_API_CALL or may_wait(dst, src)


cdef cydriver.CUresult hold_uncaptured(StreamHandle* order, bint waits, const char** function) noexcept nogil:
    """Hold captures off, and refuse a stream whose capture has begun meanwhile. Nothing of it where a call may wait."""
    if waits:
        return cydriver.CUresult.CUDA_SUCCESS
    hold_captures_off()
    return refuse_capturing(order, function)


cdef int plain_copy(Record dst, Record src, StreamHandle* order) except -1:
    """Put a copy into a stream, or into the graph that is being captured on it. Both records are lent by the caller."""
    cdef GraphLoan loan
    cdef bint captured = False, ready = False
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = b"cuMemcpyAsync"
    cdef bint waits = may_wait(dst, src)
    while not ready and result == cydriver.CUresult.CUDA_SUCCESS:
        captured = lend_to_graph(order, src, dst, &loan)
        with nogil:
            if not waits:
                ready = hold_as_asked(&loan)
            elif captured:  # what is captured waits for nothing
                ready = hold_in_capture(order, &loan, &result)
            else:
                ready = True  # and captures may begin
            if ready:
                result = cydriver.cuMemcpyAsync(dst.pointer, src.pointer, src.size, order.stream)
                if captured or not waits:
                    let_captures_begin()
            elif result != cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuStreamGetCaptureInfo"
    if captured and result != cydriver.CUresult.CUDA_SUCCESS:
        take_back(order, &loan)
    check(result, function)
    if waits and not captured:
        lend_late(order, src, dst, &loan)
    return 0


cdef WithAttributes _find_with_attributes() except? NULL:
    global _with_attributes, _looked
    if not _looked:
        _with_attributes = <WithAttributes>optional_function(b"cuMemcpyWithAttributesAsync", 13020)
        _looked = True
    return _with_attributes


cdef int _copy_with_options(Record dst, Record src, StreamHandle* order, object options, str caller) except -1:
    cdef cydriver.CUmemcpyAttributes attributes = attributes_of(options)
    cdef WithAttributes with_attributes
    cdef cydriver.CUresult result
    cdef const char* function = b"cuMemcpyWithAttributesAsync"
    cdef bint waits = may_wait_with(dst, src, options)
    ensure_no_capture(
        order,
        f"{caller} does not support graph capture with options: a graph has no node for a copy with attributes. "
        "Pass options=None.",
    )
    with_attributes = _find_with_attributes()
    if with_attributes == NULL:
        ensure_not_during_call(options, "", _NEEDED)
        return plain_copy(dst, src, order)
    with nogil:
        result = hold_uncaptured(order, waits, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemcpyWithAttributesAsync"
            result = with_attributes(dst.pointer, src.pointer, src.size, &attributes, order.stream)
        if not waits:
            let_captures_begin()
    check(result, function)
    return 0


cdef bint _is_legacy(Stream stream) except -1:
    cdef StreamHandle* order = stream._hold()
    cdef bint answer = order.kind == STREAM_LEGACY
    drop_stream(order)
    return answer


cdef int ensure_copy_options(object options, Stream stream, str caller) except -1:
    """Refuse options that are none, or that do not go with a stream. Calls no driver."""
    if options is None:
        return 0
    if not isinstance(options, CopyOptions):
        raise TypeError(f"{caller}: options must be CopyOptions, got {type(options).__name__}: {shown(options)}")
    if _is_legacy(stream):
        raise TypeError(
            f"{caller} does not accept LEGACY_DEFAULT_STREAM with options: the driver refuses it for a copy with "
            "attributes. Pass another stream, PER_THREAD_DEFAULT_STREAM for one, or options=None."
        )
    attributes_of(options)
    return 0


cdef int copy(Record dst, Record src, Stream stream, object options, str caller) except -1:
    """Copy all of ``src`` to ``dst`` in the order of a stream.

    Raises
    ------
    TypeError
        If ``options`` are none, or given with the legacy default stream or a stream that is being captured.
    ValueError
        If the sizes differ, or the ranges overlap in a part.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    RuntimeError
        If the options ask for what this driver cannot do.
    CUDAError
        If the driver refuses.
    """
    cdef StreamHandle* order
    ensure_copy_options(options, stream, caller)
    order = stream._hold()
    try:
        lend(src, "copied")
    except BaseException:
        drop_stream(order)
        raise
    try:
        lend(dst, "copied to")
        try:
            if src.size != dst.size:
                raise ValueError(
                    f"buffer sizes mismatch between src and dst (sizes are: src={src.size}, dst={dst.size})"
                    f"{size_hint(src.size, dst.size)}"
                )
            ensure_disjoint(dst, src, "")
            if src.size == 0:
                return 0
            ensure_driver()
            if options is None:
                return plain_copy(dst, src, order)
            return _copy_with_options(dst, src, order, options, caller)
        finally:
            end_loan(dst)
    finally:
        end_loan(src)
        drop_stream(order)
