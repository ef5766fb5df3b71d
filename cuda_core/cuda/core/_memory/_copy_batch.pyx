# SPDX-License-Identifier: Apache-2.0
"""Many copies in one call."""

from collections.abc import Sequence

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._driver cimport check, ensure_driver, optional_function
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._batch cimport Loans, buffers_argument
from cuda.core._memory._copy cimport (
    attributes_of,
    ensure_disjoint,
    ensure_no_capture,
    ensure_not_during_call,
    hold_uncaptured,
    may_wait_with,
    plain_copy,
)
from cuda.core._stream cimport Stream, Stream_accept
from cuda.core._stream_handle cimport STREAM_LEGACY, StreamHandle, drop_stream, leave_stream
from cuda.core._stream_order cimport enter_context_of_stream

from cuda.core._error_text import shown, size_hint
from cuda.core._memory._copy_options import CopyOptions

__all__ = ["copy_batch"]

ctypedef cydriver.CUresult (*CopyBatch)(
    cydriver.CUdeviceptr* dsts, cydriver.CUdeviceptr* srcs, size_t* sizes, size_t count,
    cydriver.CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count, cydriver.CUstream stream,
) noexcept nogil

cdef CopyBatch _native = NULL
cdef bint _looked = False
cdef object _DEFAULTS = CopyOptions()
cdef str _NEEDED = "a driver of CUDA 13.0 or newer (cuMemcpyBatchAsync is unavailable here)"

cdef struct Batch:
    size_t count
    size_t attribute_count
    cydriver.CUdeviceptr* dsts
    cydriver.CUdeviceptr* srcs
    size_t* sizes
    cydriver.CUmemcpyAttributes* attributes
    size_t* indices


cdef CopyBatch _find_native() except? NULL:
    global _native, _looked
    if not _looked:
        _native = <CopyBatch>optional_function(b"cuMemcpyBatchAsync", 13000)
        _looked = True
    return _native


cdef list _options_argument(object options, Py_ssize_t count):
    """Return one CopyOptions for each copy."""
    cdef list result
    if options is None:
        return [_DEFAULTS] * count
    if isinstance(options, CopyOptions):
        return [options] * count
    if not isinstance(options, Sequence):
        raise TypeError(
            f"copy_batch: options must be CopyOptions or a sequence of CopyOptions, got {type(options).__name__}: "
            f"{shown(options)}"
        )
    result = list(options)
    if len(result) != count:
        raise ValueError(f"copy_batch: options length {len(result)} does not match buffers length {count}")
    for one in result:
        if not isinstance(one, CopyOptions):
            raise TypeError(
                f"copy_batch: each options element must be CopyOptions, got {type(one).__name__}: {shown(one)}"
            )
    return result


cdef void _free_batch(Batch* batch) noexcept:
    free(batch.dsts)
    free(batch.srcs)
    free(batch.sizes)
    free(batch.attributes)
    free(batch.indices)


cdef int _allocate_batch(Batch* batch, size_t count) except -1:
    batch.dsts = <cydriver.CUdeviceptr*>calloc(count, sizeof(cydriver.CUdeviceptr))
    batch.srcs = <cydriver.CUdeviceptr*>calloc(count, sizeof(cydriver.CUdeviceptr))
    batch.sizes = <size_t*>calloc(count, sizeof(size_t))
    batch.attributes = <cydriver.CUmemcpyAttributes*>calloc(count, sizeof(cydriver.CUmemcpyAttributes))
    batch.indices = <size_t*>calloc(count, sizeof(size_t))
    if NULL in (<void*>batch.dsts, <void*>batch.srcs, <void*>batch.sizes, <void*>batch.attributes,
                <void*>batch.indices):
        raise MemoryError(f"no memory for the list of {count} copies")
    return 0


cdef int _fill_batch(Batch* batch, list sources, list targets, list options) except -1:
    """Write down the copies. Neighbours with equal options share one entry, as the driver wants them."""
    cdef Record src, dst
    cdef Py_ssize_t index
    last = None
    for index in range(len(sources)):
        src, dst = sources[index], targets[index]
        if src.size == 0:  # the driver refuses it, and there is nothing to do
            continue
        if last is None or options[index] != last:
            last = options[index]
            batch.attributes[batch.attribute_count] = attributes_of(last)
            batch.indices[batch.attribute_count] = batch.count
            batch.attribute_count += 1
        batch.srcs[batch.count], batch.dsts[batch.count] = src.pointer, dst.pointer
        batch.sizes[batch.count] = src.size
        batch.count += 1
    return 0


cdef bint _may_wait(list sources, list targets, list options) except -1:
    for src, dst, one in zip(sources, targets, options):
        if may_wait_with(dst, src, one):
            return True
    return False


cdef int _copy_natively(CopyBatch native, list sources, list targets, list options, StreamHandle* order) except -1:
    cdef Batch batch
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = b"cuMemcpyBatchAsync"
    cdef bint pushed = False
    cdef bint waits = _may_wait(sources, targets, options)
    batch.count = batch.attribute_count = 0
    batch.dsts = batch.srcs = NULL
    batch.sizes = batch.indices = NULL
    batch.attributes = NULL
    try:
        _allocate_batch(&batch, len(sources))
        _fill_batch(&batch, sources, targets, options)
        if batch.count:
            with nogil:
                # Other copies need no current context: they take their stream's.
                hold_captures_off()
                result = enter_context_of_stream(order, &pushed, &function)
                let_captures_begin()
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    result = hold_uncaptured(order, waits, &function)
                    if result == cydriver.CUresult.CUDA_SUCCESS:
                        function = b"cuMemcpyBatchAsync"
                        result = native(
                            batch.dsts, batch.srcs, batch.sizes, batch.count, batch.attributes, batch.indices,
                            batch.attribute_count, order.stream,
                        )
                    if not waits:
                        let_captures_begin()
                    leave_stream(pushed)
        check(result, function)
    finally:
        _free_batch(&batch)
    return 0


cdef int _copy_each(list sources, list targets, list options, StreamHandle* order) except -1:
    """Where the driver has no batches: one copy after the other, which satisfies all options but one."""
    cdef Record src, dst
    for index in range(len(sources)):
        ensure_not_during_call(options[index], f" at index {index}", _NEEDED)
    for src, dst in zip(sources, targets):
        if src.size:
            plain_copy(dst, src, order)
    return 0


cdef int _ensure_pairs(list sources, list targets) except -1:
    cdef Record src, dst
    cdef Py_ssize_t index
    for index in range(len(sources)):
        src, dst = sources[index], targets[index]
        if src.size != dst.size:
            raise ValueError(
                f"copy_batch: buffer size mismatch at index {index} (src={src.size}, dst={dst.size})"
                f"{size_hint(src.size, dst.size)}"
            )
        ensure_disjoint(dst, src, f" at index {index}")
    return 0


def copy_batch(
    stream: Stream,
    srcs: Sequence[Buffer],
    dsts: Sequence[Buffer],
    *,
    options: CopyOptions | Sequence[CopyOptions] | None = None,
) -> None:
    """Copy each source buffer to the destination buffer at the same place, in one driver call. Nothing waits.

    Parameters
    ----------
    stream : Stream
        The stream that orders the copies. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured: a graph has no
        node for a batch.
    srcs, dsts : sequence of Buffer
        Equally many, of pairwise equal sizes. Empty buffers are passed over.
    options : CopyOptions or sequence of CopyOptions, optional
        Hints, one for all copies or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is one that a batch cannot use.
    ValueError
        If lengths or sizes differ, a sequence is empty, or a source overlaps its own destination in a part.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    RuntimeError
        If options ask for ``DURING_API_CALL`` and the driver has no batches.
    CUDAError
        If the driver refuses.

    Notes
    -----
    Everything is checked before the first copy. The copies of one batch are in no order among themselves: a buffer must
    not be source in one and destination in another. All buffers are lent for the length of the call; the stream does
    not order their release (:meth:`Buffer.record_stream`). A driver without batches makes one copy after the other.
    May be called from any thread.

    Examples
    --------
    >>> a, b, c, d = (mr.allocate(1024, stream=stream) for _ in range(4))
    >>> copy_batch(stream, [a, b], [c, d], options=CopyOptions(src_access_order="stream"))
    """
    cdef Stream order
    cdef StreamHandle* handle
    cdef Loans loans = Loans()
    cdef CopyBatch native
    cdef list sources, targets, choices
    order = Stream_accept(stream)
    handle = order._hold()
    try:
        sources = buffers_argument(srcs, "copy_batch", "Buffer.copy_to / Buffer.copy_from")
        targets = buffers_argument(dsts, "copy_batch", "Buffer.copy_to / Buffer.copy_from")
        if handle.kind == STREAM_LEGACY:
            raise TypeError(
                "copy_batch does not accept LEGACY_DEFAULT_STREAM: the driver refuses it for a batch. Pass another "
                "stream, PER_THREAD_DEFAULT_STREAM for one."
            )
        if len(sources) != len(targets):
            raise ValueError(f"copy_batch: srcs length {len(sources)} does not match dsts length {len(targets)}")
        loans.add(sources, "copied")
        loans.add(targets, "copied to")
        _ensure_pairs(sources, targets)
        choices = _options_argument(options, len(sources))
        for one in {id(one): one for one in choices}.values():
            attributes_of(one)
        ensure_driver()
        ensure_no_capture(
            handle,
            "copy_batch does not support graph capture: a graph has no node for a batch. Use Buffer.copy_to for each.",
        )
        native = _find_native()
        if native != NULL:
            _copy_natively(native, sources, targets, choices, handle)
        else:
            _copy_each(sources, targets, choices, handle)
    finally:
        loans.end()
        drop_stream(handle)
