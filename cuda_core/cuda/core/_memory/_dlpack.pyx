# SPDX-License-Identifier: Apache-2.0
"""DLPack exports: memory that is lent to another library in a capsule.

A capsule is a loan. It ends once: when the consumer calls the deleter, or, for a capsule that nobody consumed, with
the capsule. A deleter may be called on any thread, without the GIL, without a context, and after Python is gone.
"""

import enum

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_INCREF, PyObject
from cuda.bindings cimport cydriver
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from cuda.core._capture_lock cimport let_captures_begin
from cuda.core._context cimport device_count
from cuda.core._driver cimport check, ensure_driver, is_finalizing
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._chains cimport let_go
from cuda.core._memory._copy cimport hold_uncaptured, may_wait
from cuda.core._memory._dlpack_abi cimport (
    DL_CPU,
    DL_CUDA,
    DL_CUDA_HOST,
    DL_CUDA_MANAGED,
    DL_INT,
    DL_IS_COPIED,
    DLPACK_MAJOR,
    DLPACK_MINOR,
    DLDataType,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
)
from cuda.core._memory._handshake cimport (
    NO_STREAM,
    NO_SYNC,
    consumer_handle,
    join_order,
    lasting_stream,
    order_behind,
    ordering_record,
    stream_number,
)
from cuda.core._memory._loans cimport end_loan, lend, new_loan
from cuda.core._memory._release cimport ensure_not_capturing, wait_for_order
from cuda.core._stream cimport bind_default_stream, stream_for_python
from cuda.core._stream_handle cimport StreamHandle, drop_stream, retain_stream, stream_as_seen_here
from cuda.core._stream_order cimport ask_for_context_of

from cuda.core._error_text import shown

__all__ = ["DLDeviceType", "classify_dl_device"]

cdef const char* _NAME = b"dltensor"
cdef const char* _NAME_VERSIONED = b"dltensor_versioned"


class DLDeviceType(enum.IntEnum):
    """Where DLPack says memory lies, for the places that this package knows."""

    kDLCPU = DL_CPU
    kDLCUDA = DL_CUDA
    kDLCUDAHost = DL_CUDA_HOST
    kDLCUDAManaged = DL_CUDA_MANAGED


# --- the life of an export ----------------------------------------------------------------------------------------


cdef void _end_export(Export* export) noexcept nogil:
    cdef PyObject* keeper = <PyObject*>export.keeper
    cdef PyObject* kind = NULL
    cdef PyObject* value = NULL
    cdef PyObject* trace = NULL
    if export.copied != NULL:
        free(export.copied)
    # Once Python is going, its objects cannot be touched: the process gives the memory back by ending.
    if keeper != NULL and not is_finalizing():
        with gil:
            # A consumer that failed calls the deleter with its exception set, and the end of a loan runs Python.
            PyErr_Fetch(&kind, &value, &trace)
            let_go(keeper)  # it may keep what another export keeps, and so on
            PyErr_Restore(kind, value, trace)
    free(export)


cdef void _delete_plain(DLManagedTensor* tensor) noexcept nogil:
    if tensor != NULL:
        _end_export(<Export*>tensor.manager_ctx)


cdef void _delete_versioned(DLManagedTensorVersioned* tensor) noexcept nogil:
    if tensor != NULL:
        _end_export(<Export*>tensor.manager_ctx)


cdef void _drop_capsule(object capsule) noexcept:
    """The destructor of capsules. A consumer has renamed a capsule that it took over; what has its first name still
    belongs to the capsule."""
    cdef void* tensor
    if PyCapsule_IsValid(capsule, _NAME):
        tensor = PyCapsule_GetPointer(capsule, _NAME)
        _delete_plain(<DLManagedTensor*>tensor)
    elif PyCapsule_IsValid(capsule, _NAME_VERSIONED):
        tensor = PyCapsule_GetPointer(capsule, _NAME_VERSIONED)
        _delete_versioned(<DLManagedTensorVersioned*>tensor)


cdef Export* new_export(void* data, int device_type, int device_id, DLDataType dtype, tuple shape, tuple strides,
                        uint64_t flags, object keeper) except NULL:
    """Make an export that keeps ``keeper`` alive until it ends."""
    cdef int ndim = len(shape), axis
    cdef Export* export = <Export*>calloc(1, sizeof(Export) + 2 * ndim * sizeof(int64_t))
    cdef int64_t* numbers
    cdef DLTensor* tensor
    if export == NULL:
        raise MemoryError("no memory for an export")
    numbers = <int64_t*>(export + 1)
    try:
        for axis in range(ndim):
            numbers[axis] = shape[axis]
            numbers[ndim + axis] = strides[axis]
    except BaseException:
        free(export)
        raise
    tensor = &export.versioned.dl_tensor
    tensor.data = data
    tensor.device.device_type, tensor.device.device_id = device_type, device_id
    tensor.ndim = ndim
    tensor.dtype = dtype
    tensor.shape, tensor.strides = numbers, numbers + ndim
    export.versioned.version.major, export.versioned.version.minor = DLPACK_MAJOR, DLPACK_MINOR
    export.versioned.manager_ctx = export
    export.versioned.deleter = _delete_versioned
    export.versioned.flags = flags
    export.plain.dl_tensor = tensor[0]
    export.plain.manager_ctx = export
    export.plain.deleter = _delete_plain
    if keeper is not None:
        Py_INCREF(keeper)
        export.keeper = <void*>keeper
    return export


cdef object export_capsule(Export* export, bint versioned):
    """Put an export into a capsule; where that fails, the export has ended."""
    try:
        if versioned:
            return PyCapsule_New(&export.versioned, _NAME_VERSIONED, _drop_capsule)
        return PyCapsule_New(&export.plain, _NAME, _drop_capsule)
    except BaseException:
        _end_export(export)
        raise


# --- what a consumer asks for -------------------------------------------------------------------------------------


cdef bint wants_versioned(object max_version) except -1:
    """Whether the consumer understands capsules with a version."""
    if max_version is None:
        return False
    if not isinstance(max_version, tuple):
        raise TypeError(f"max_version must be a tuple of two integers or None, got {shown(max_version)}")
    if len(max_version) != 2:
        raise BufferError(f"Expected max_version tuple[int, int], got {shown(max_version)}")
    for number in max_version:
        if not isinstance(number, int):
            raise TypeError(f"max_version must be a tuple of two integers or None, got {shown(max_version)}")
    return max_version >= (1, 0)


cdef tuple wanted_device(object dl_device):
    """Return the place that the consumer wants the memory in as two integers, or None."""
    if dl_device is None:
        return None
    if not isinstance(dl_device, tuple) or len(dl_device) != 2:
        raise TypeError(f"dl_device must be a tuple (device type, device id) or None, got {shown(dl_device)}")
    for number in dl_device:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"dl_device must be a tuple (device type, device id) or None, got {shown(dl_device)}")
    return (int(dl_device[0]), int(dl_device[1]))


cpdef tuple classify_dl_device(object buf):
    """Return the DLPack device type and device id of memory.

    Parameters
    ----------
    buf : object
        Anything with ``is_device_accessible``, ``is_host_accessible``, ``is_managed`` and ``device_id``, such as a
        buffer.

    Returns
    -------
    tuple of int
        ``(2, ordinal)`` for memory of a device, ``(3, 0)`` for pinned memory of the host, ``(13, 0)`` for managed
        memory, ``(1, 0)`` for other memory of the host.

    Raises
    ------
    BufferError
        If nobody can use the memory.
    """
    cdef bint device = buf.is_device_accessible
    cdef bint host = buf.is_host_accessible
    if device and not host:
        return (DL_CUDA, buf.device_id)
    if device:
        return (DL_CUDA_MANAGED if buf.is_managed else DL_CUDA_HOST, 0)
    if host:
        return (DL_CPU, 0)
    raise BufferError("buffer is neither device-accessible nor host-accessible")


cdef bint usable_from(tuple place, tuple wanted) except -1:
    """Whether memory of one place can be used at another where it is, under the same address."""
    if wanted == place:
        return True
    if wanted == (DL_CPU, 0):
        return place[0] in (DL_CUDA_HOST, DL_CUDA_MANAGED)
    return place[0] == DL_CUDA_MANAGED and wanted[0] == DL_CUDA and 0 <= wanted[1] < device_count()


cdef DLDataType _bytes_type() noexcept:
    cdef DLDataType dtype
    dtype.code, dtype.bits, dtype.lanes = DL_INT, 8, 1
    return dtype


cdef object checked_copy(object copy):
    if copy is not None and not isinstance(copy, bool):
        raise TypeError(f"copy must be True, False or None, got {shown(copy)}")
    return copy


cdef int check_consumer(object number, int device_type, object stream) except -1:
    if device_type == DL_CPU:
        if number not in (NO_STREAM, NO_SYNC):
            raise ValueError(f"stream must be None or -1 for memory that only the host can use, got {shown(stream)}")
    elif number == 0:
        raise ValueError("stream=0 is ambiguous: give 1 for the legacy and 2 for the per-thread default stream")
    return 0


cdef object export_buffer(Record record, object stream, object max_version, object dl_device, object copy):
    """Lend a buffer's bytes in a capsule.

    Everything that the consumer gives is checked before the driver is called, the loan begins before the streams are
    ordered, and the consumer's stream joins those that order the free when nothing can fail any more.
    """
    cdef object number = stream_number(stream, "stream")
    cdef bint versioned = wants_versioned(max_version)
    cdef tuple wanted = wanted_device(dl_device)
    cdef tuple place
    checked_copy(copy)
    record.ensure_usable()
    place = classify_dl_device(record)
    check_consumer(number, place[0], stream)
    if wanted is not None and not usable_from(place, wanted):
        if wanted != (DL_CPU, 0):
            raise BufferError(f"Sorry, not supported: memory of device {place} with dl_device={wanted}")
        if copy is False:
            raise BufferError(f"memory of device {place} cannot be exported to {wanted} without a copy")
        return _export_host_copy(record, number, versioned)
    if wanted is not None:
        place = wanted
    if copy:
        if place[0] == DL_CPU:
            return _export_host_copy(record, number, versioned)
        return _export_copy(record, number, versioned, place)
    return _export_lent(record, record.size, number, versioned, place, 0)


cdef object _export_lent(Record record, size_t size, object number, bint versioned, tuple place, uint64_t flags):
    """Export the first ``size`` bytes of a buffer itself."""
    return export_memory(
        <void*>record.pointer, place, _bytes_type(), (size,), (1,), flags, new_loan(record, "exported"), record,
        number, versioned,
    )


cdef object export_memory(void* data, tuple place, DLDataType dtype, tuple shape, tuple strides, uint64_t flags,
                          object keeper, Record record, object number, bint versioned):
    """Export memory that ``keeper`` keeps, behind the work in the streams of ``record`` if that is not None."""
    cdef StreamHandle* consumer = NULL
    cdef StreamHandle* producer = NULL
    cdef StreamHandle* lasting = NULL
    cdef object capsule
    try:
        if record is not None and number != NO_SYNC:
            ensure_driver()
            producer = ordering_record(record).hold_stream()
            if number == NO_STREAM and place[0] != DL_CUDA:
                wait_for_order(producer)  # the host may look at it as soon as it has the capsule
            else:
                consumer = consumer_handle(
                    1 if number == NO_STREAM else number, place[1] if place[0] == DL_CUDA else -1, producer
                )
                order_behind(consumer, producer)
                if consumer != NULL:
                    lasting = lasting_stream(consumer)
        capsule = export_capsule(
            new_export(data, place[0], place[1], dtype, shape, strides, flags, keeper), versioned
        )
        if consumer != NULL:
            join_order(ordering_record(record), consumer, lasting)
        return capsule
    finally:
        drop_stream(lasting)
        drop_stream(consumer)
        drop_stream(producer)


# --- copies -------------------------------------------------------------------------------------------------------


cdef StreamHandle* _copying_stream(object number, int device_id, StreamHandle* producer) except NULL:
    """Return a counted handle of the stream that a copy runs in: the consumer's, or else the producer's."""
    cdef StreamHandle* handle
    if number not in (NO_STREAM, NO_SYNC):
        handle = consumer_handle(number, device_id, producer)
    elif producer != NULL and producer.member_count:
        handle = retain_stream(producer.members[0])
    elif producer != NULL:
        handle = retain_stream(producer)
    else:
        handle = consumer_handle(1, device_id, producer) if device_id >= 0 else bind_default_stream()
    if handle == NULL:
        raise RuntimeError("a copy needs a stream and no CUDA context is current; call Device.set_current() first")
    return handle


cdef int _copy_behind(StreamHandle* order, StreamHandle* producer, size_t target, Record source, bint waits) except -1:
    """Copy the bytes of ``source``, which is lent, behind the producer's streams.

    ``waits``: the call may wait for the copy, so that captures may begin meanwhile.
    """
    cdef cydriver.CUcontext context = NULL, popped = NULL
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    order_behind(order, producer)
    if not source.size:
        return 0
    with nogil:
        result = ask_for_context_of(order, &context, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuCtxPushCurrent"
            result = cydriver.cuCtxPushCurrent(context)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                result = hold_uncaptured(order, waits, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuMemcpyAsync"
                    result = cydriver.cuMemcpyAsync(
                        <cydriver.CUdeviceptr>target,
                        <cydriver.CUdeviceptr>source.pointer,
                        source.size,
                        stream_as_seen_here(order),
                    )
                if not waits:
                    let_captures_begin()
                cydriver.cuCtxPopCurrent(&popped)
    check(result, function)
    return 0


cdef object _export_host_copy(Record record, object number, bint versioned):
    """Export a copy in ordinary memory of the host, which ends with the export. The call waits for the copy."""
    cdef StreamHandle* producer = NULL
    cdef StreamHandle* order = NULL
    cdef Export* export = new_export(
        NULL, DL_CPU, 0, _bytes_type(), (record.size,), (1,), DL_IS_COPIED, None
    )
    cdef bint lent = False
    try:
        export.copied = malloc(record.size if record.size else 1)
        if export.copied == NULL:
            raise MemoryError(f"no memory for a copy of {record.size} bytes")
        export.versioned.dl_tensor.data = export.plain.dl_tensor.data = export.copied
        lend(record, "copied")
        lent = True
        if record.size:
            producer = ordering_record(record).hold_stream()
            order = _copying_stream(number, _device_of(record), producer)
            ensure_not_capturing(order)
            _copy_behind(order, producer, <size_t>export.copied, record, True)
            try:
                wait_for_order(order)
            except BaseException:
                export.copied = NULL  # the copy may still be running: rather lose the memory than have it overwritten
                raise
    except BaseException:
        _end_export(export)
        raise
    finally:
        if lent:
            end_loan(record)
        drop_stream(order)
        drop_stream(producer)
    return export_capsule(export, versioned)


cdef int _device_of(Record record) except? -2:
    """Return the device of memory that only a device can use, -1 for other memory."""
    cdef tuple place = classify_dl_device(record)
    return place[1] if place[0] == DL_CUDA else -1


cdef int _copy_into(Record copied, Record source, StreamHandle* order, StreamHandle* producer) except -1:
    """Copy to what a resource has allocated, which an author's may get wrong: lent, and no more than there is."""
    lend(copied, "copied to")
    try:
        if copied.size < source.size:
            raise ValueError(f"{source.size} bytes were asked for a copy, and allocated was {copied.describe()}")
        _copy_behind(order, producer, copied.pointer, source, may_wait(copied, source))
    finally:
        end_loan(copied)
    return 0


cdef object _export_copy(Record record, object number, bint versioned, tuple place):
    """Export a copy that the buffer's own resource has allocated, and that goes back with the capsule."""
    cdef object resource, copied, capsule
    cdef Record whole
    cdef StreamHandle* producer = NULL
    cdef StreamHandle* order = NULL
    cdef StreamHandle* lasting = NULL
    lend(record, "copied")
    try:
        whole = ordering_record(record)
        resource = (<object>whole).memory_resource
        if resource is None:
            raise BufferError("Sorry, not supported: copy=True of memory that no memory resource has allocated")
        producer = whole.hold_stream()
        order = _copying_stream(number, _device_of(record), producer)
        if number in (NO_STREAM, NO_SYNC):
            ensure_not_capturing(order)
        copied = resource.allocate(record.size, stream=stream_for_python(order))
        if not isinstance(copied, Record) or not hasattr(copied, "close"):
            raise TypeError(
                f"allocate of {type(resource).__name__} must return a Buffer, got {type(copied).__name__}: "
                f"{shown(copied)}"
            )
        try:
            _copy_into(copied, record, order, producer)
            if number in (NO_STREAM, NO_SYNC):
                wait_for_order(order)  # the consumer has named no stream that could wait for the copy
            else:
                lasting = lasting_stream(order)
                join_order(whole, order, lasting)
                lasting = (<Record>copied).swap_stream(lasting)
            capsule = _export_lent(copied, record.size, NO_SYNC, versioned, place, DL_IS_COPIED)
        finally:
            copied.close()  # the capsule has it; where there is none, it goes back here
        return capsule
    finally:
        end_loan(record)
        drop_stream(lasting)
        drop_stream(order)
        drop_stream(producer)
