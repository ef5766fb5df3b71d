# SPDX-License-Identifier: Apache-2.0
"""Where managed memory shall be: advice, prefetching and discarding, for one buffer and for many."""

from collections.abc import Sequence

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport current_context, device_count, primary_context
from cuda.core._driver cimport check, ensure_driver
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._batch cimport Loans, buffers_argument
from cuda.core._memory._location cimport location_argument, place_of_location, place_of_ordinal
from cuda.core._memory._loans cimport end_loan, lend
from cuda.core._stream cimport Stream, Stream_accept
from cuda.core._stream_handle cimport (
    STREAM_LEGACY,
    StreamHandle,
    captured_error,
    drop_stream,
    is_of_capture,
    refuse_capturing,
)

__all__ = ["discard_batch", "discard_prefetch_batch", "prefetch_batch"]

cdef str _SINGLE = "the ManagedBuffer instance method"

cdef enum:
    DISCARD = 1
    PREFETCH = 2


# --- advice -------------------------------------------------------------------------------------------------------


cdef int ensure_managed(Record record, str caller) except -1:
    if not (<object>record).is_managed:
        raise ValueError(f"{caller} requires a managed-memory allocation ({record.describe()})")
    return 0


# These calls need a current context and do not mind which.

cdef bint _enter(Record record) except -1:
    """Make a context current for the next call where there is none; True if so."""
    cdef cydriver.CUcontext context
    cdef cydriver.CUresult result
    if current_context() != NULL:
        return False
    context = primary_context(max(record.device_id, 0))
    with nogil:
        result = cydriver.cuCtxPushCurrent(context)
    check(result, b"cuCtxPushCurrent")
    return True


cdef void _leave(bint entered) noexcept nogil:
    cdef cydriver.CUcontext popped = NULL
    if entered:
        cydriver.cuCtxPopCurrent(&popped)


cdef int _advise(Record record, cydriver.CUmem_advise advice, cydriver.CUmemLocation location) except -1:
    cdef bint entered = _enter(record)
    cdef cydriver.CUresult result
    with nogil:
        result = cydriver.cuMemAdvise(record.pointer, record.size, advice, location)
        _leave(entered)
    return check(result, b"cuMemAdvise")


cdef int _read(Record record, cydriver.CUmem_range_attribute attribute, void* value, size_t size) except -1:
    cdef bint entered = _enter(record)
    cdef cydriver.CUresult result
    with nogil:
        result = cydriver.cuMemRangeGetAttribute(value, size, attribute, record.pointer, record.size)
        _leave(entered)
    return check(result, b"cuMemRangeGetAttribute")


cdef int advise(Record record, cydriver.CUmem_advise advice, object place) except -1:
    """Give advice for all of a record's memory; ``place`` is None for advice that needs none."""
    cdef cydriver.CUmemLocation location
    lend(record, "advised")
    try:
        if place is None:
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST  # ignored, but has to be a place
            location.id = 0
        else:
            location = location_argument(place, True)
        ensure_managed(record, "advise")
        if record.size == 0:
            return 0
        ensure_driver()
        _advise(record, advice, location)
    finally:
        end_loan(record)
    return 0


cdef int read_flag(Record record, cydriver.CUmem_range_attribute attribute) except? -9:
    cdef int value = 0
    lend(record, "read")
    try:
        if record.size == 0:
            return 0
        ensure_driver()
        _read(record, attribute, &value, sizeof(value))
    finally:
        end_loan(record)
    return value


cdef object read_preferred_location(Record record):
    cdef int kind = 0, number = 0
    cdef cydriver.CUmem_range_attribute names[2]
    cdef void* values[2]
    cdef size_t sizes[2]
    cdef bint entered
    cdef cydriver.CUresult result
    names[0] = cydriver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
    names[1] = cydriver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID
    values[0], values[1] = &kind, &number
    sizes[0] = sizes[1] = sizeof(int)
    lend(record, "read")
    try:
        if record.size == 0:
            return None
        ensure_driver()
        entered = _enter(record)
        with nogil:
            result = cydriver.cuMemRangeGetAttributes(values, sizes, names, 2, record.pointer, record.size)
            _leave(entered)
        check(result, b"cuMemRangeGetAttributes")
    finally:
        end_loan(record)
    return place_of_location(kind, number)


cdef list read_accessed_by(Record record):
    """Return the devices, and the host, that are advised to have the memory mapped."""
    cdef int count = 0, n
    cdef int* ordinals
    cdef size_t bytes_
    cdef list places = []
    lend(record, "read")
    try:
        if record.size == 0:
            return []
        count = device_count() + 1  # the host
        bytes_ = count * sizeof(int)
        ordinals = <int*>calloc(count, sizeof(int))
        if ordinals == NULL:
            raise MemoryError("no memory for a list of devices")
        try:
            _read(record, cydriver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, ordinals, bytes_)
            for n in range(count):
                if ordinals[n] != -2:  # an empty place
                    places.append(place_of_ordinal(ordinals[n]))
            return places
        finally:
            free(ordinals)
    finally:
        end_loan(record)


# --- prefetching and discarding -----------------------------------------------------------------------------------


cdef list _places_argument(object locations, Py_ssize_t count, str caller):
    """Return one checked place for each buffer."""
    cdef list places
    if isinstance(locations, Sequence) and not isinstance(locations, str):
        places = list(locations)
        if len(places) != count:
            raise ValueError(f"{caller}: location length {len(places)} does not match targets length {count}")
    else:
        places = [locations] * count
    for place in places:
        location_argument(place, True)
    return places


cdef int _operate(str caller, int what, object stream, object buffers, object locations) except -1:
    """Check everything, lend everything, then make one driver call."""
    cdef Stream order = Stream_accept(stream)
    cdef Loans loans = Loans()
    cdef StreamHandle* handle = order._hold()
    cdef Record record
    cdef list records, places = None
    try:
        if what & DISCARD and handle.kind == STREAM_LEGACY:
            raise TypeError(
                f"{caller} does not accept LEGACY_DEFAULT_STREAM: the driver refuses it. Pass another stream, "
                "PER_THREAD_DEFAULT_STREAM for one."
            )
        records = buffers_argument(buffers, caller, _SINGLE)
        loans.add(records, "used")
        if what & PREFETCH:
            places = _places_argument(locations, len(records), caller)
        for record in records:
            ensure_managed(record, caller)
        if places is not None:
            places = [place for record, place in zip(records, places) if record.size]
        records = [record for record in records if record.size]  # the driver refuses the others, and nothing is to do
        if not records:
            return 0
        ensure_driver()
        if what == PREFETCH and (len(records) == 1 or handle.kind == STREAM_LEGACY):
            _prefetch_each(records, places, handle, caller)
        else:
            _call_batch(what, records, places, handle, caller)
    finally:
        loans.end()
        drop_stream(handle)
    return 0


cdef int _ensure_done(cydriver.CUresult result, const char* function, str caller) except -1:
    """Raise what the driver has refused. A capture is explained."""
    if is_of_capture(result):
        raise captured_error(f"{caller} cannot be captured into a graph")
    return check(result, function)


cdef int _prefetch_each(list records, list places, StreamHandle* order, str caller) except -1:
    """Prefetch one after the other: batches do not go with the legacy stream."""
    cdef Record record
    cdef cydriver.CUmemLocation location
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    for record, place in zip(records, places):
        location = location_argument(place, False)
        with nogil:
            hold_captures_off()
            result = refuse_capturing(order, &function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuMemPrefetchAsync"
                result = cydriver.cuMemPrefetchAsync(record.pointer, record.size, location, 0, order.stream)
            let_captures_begin()
        _ensure_done(result, function, caller)
    return 0


cdef int _call_batch(int what, list records, list places, StreamHandle* order, str caller) except -1:
    cdef Py_ssize_t count = len(records), index
    cdef size_t location_count = 0
    cdef cydriver.CUdeviceptr* pointers = <cydriver.CUdeviceptr*>calloc(count, sizeof(cydriver.CUdeviceptr))
    cdef size_t* sizes = <size_t*>calloc(count, sizeof(size_t))
    cdef cydriver.CUmemLocation* locations = <cydriver.CUmemLocation*>calloc(count, sizeof(cydriver.CUmemLocation))
    cdef size_t* indices = <size_t*>calloc(count, sizeof(size_t))
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef Record record
    last = None
    try:
        if NULL in (<void*>pointers, <void*>sizes, <void*>locations, <void*>indices):
            raise MemoryError(f"no memory for the list of {count} buffers")
        for index in range(count):
            record = records[index]
            pointers[index], sizes[index] = record.pointer, record.size
            if places is not None and (location_count == 0 or places[index] != last):
                last = places[index]
                locations[location_count] = location_argument(last, False)
                indices[location_count] = index
                location_count += 1
        with nogil:
            hold_captures_off()
            result = refuse_capturing(order, &function)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                pass
            elif what == PREFETCH:
                function = b"cuMemPrefetchBatchAsync"
                result = cydriver.cuMemPrefetchBatchAsync(
                    pointers, sizes, count, locations, indices, location_count, 0, order.stream
                )
            elif what == DISCARD:
                function = b"cuMemDiscardBatchAsync"
                result = cydriver.cuMemDiscardBatchAsync(pointers, sizes, count, 0, order.stream)
            else:
                function = b"cuMemDiscardAndPrefetchBatchAsync"
                result = cydriver.cuMemDiscardAndPrefetchBatchAsync(
                    pointers, sizes, count, locations, indices, location_count, 0, order.stream
                )
            let_captures_begin()
        _ensure_done(result, function, caller)
    finally:
        free(pointers)
        free(sizes)
        free(locations)
        free(indices)
    return 0


def prefetch(buffer, location, stream):
    """Prefetch one buffer: what :meth:`ManagedBuffer.prefetch` does."""
    _operate("prefetch", PREFETCH, stream, [buffer], [location])


def discard(buffer, stream):
    """Discard one buffer: what :meth:`ManagedBuffer.discard` does."""
    _operate("discard", DISCARD, stream, [buffer], None)


def discard_prefetch(buffer, location, stream):
    """Discard and prefetch one buffer: what :meth:`ManagedBuffer.discard_prefetch` does."""
    _operate("discard_prefetch", DISCARD | PREFETCH, stream, [buffer], [location])


def prefetch_batch(
    stream: Stream | GraphBuilder,
    buffers: Sequence[Buffer],
    locations: Device | Host | Sequence[Device | Host],
) -> None:
    """Move the pages of several managed buffers to places, in the order of a stream. Nothing waits.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.
    locations : Device, Host or sequence of them
        Where to, one for all buffers or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the buffers are none, one is not managed, a location is missing or a NUMA node that this machine lacks, or
        the lengths differ.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    CUDAError
        If the driver refuses, or the stream is being captured, which goes on then.

    Notes
    -----
    Everything is checked before anything starts. All buffers are lent for the length of the call; the stream does not
    order their release (:meth:`Buffer.record_stream`). May be called from any thread.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> prefetch_batch(stream, [a, b], [Device(0), Host()])
    """
    _operate("prefetch_batch", PREFETCH, stream, buffers, locations)


def discard_batch(stream: Stream | GraphBuilder, buffers: Sequence[Buffer]) -> None:
    """Tell the driver that what several managed buffers hold is not needed, in the order of a stream. Nothing waits.

    What the buffers hold is undefined until it is written or prefetched again.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is the legacy default stream.
    ValueError, OwnershipError, CUDAError
        As for :func:`prefetch_batch`, whose notes hold here too.

    Notes
    -----
    Safe from any thread. The notes of :func:`prefetch_batch` hold here too.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> discard_batch(stream, [a, b])
    """
    _operate("discard_batch", DISCARD, stream, buffers, None)


def discard_prefetch_batch(
    stream: Stream | GraphBuilder,
    buffers: Sequence[Buffer],
    locations: Device | Host | Sequence[Device | Host],
) -> None:
    """Discard what several managed buffers hold and move their pages to places, in the order of a stream.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.
    locations : Device, Host or sequence of them
        Where to, one for all buffers or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is the legacy default stream.
    ValueError, OwnershipError, CUDAError
        As for :func:`prefetch_batch`, whose notes hold here too.

    Notes
    -----
    Safe from any thread. The notes of :func:`prefetch_batch` hold here too.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> discard_prefetch_batch(stream, [a, b], Device(0))
    """
    _operate("discard_prefetch_batch", DISCARD | PREFETCH, stream, buffers, locations)
