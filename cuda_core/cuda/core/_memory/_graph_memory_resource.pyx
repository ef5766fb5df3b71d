# SPDX-License-Identifier: Apache-2.0
"""``GraphMemoryResource``: memory that a graph allocates when it is launched."""

from weakref import WeakValueDictionary

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport device_of_context
from cuda.core._driver cimport check, ensure_driver, error_for
from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, Record
from cuda.core._memory._arguments cimport device_argument, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._graph_memory cimport Where, allocate_in_capture, free_inside, free_outside, where_is
from cuda.core._memory._graph_place cimport (
    CapturedGraph,
    GraphAllocation,
    GraphPlace,
    release_graph_on_reaper,
    retain_graph,
)
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._ownership cimport STATE_OWNED
from cuda.core._memory._pool_release cimport ensure_freed, free_in_order, may_be_queued
from cuda.core._memory._queue cimport Job, discard_job, enqueue, new_job
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream cimport Stream, Stream_accept, bind_stream
from cuda.core._stream_handle cimport (
    STREAM_SET,
    StreamHandle,
    add_stream,
    drop_stream,
    enter_stream,
    leave_stream,
    retain_stream,
    stream_as_seen_here,
)
from cuda.core._stream_order cimport ask_for_context_of

from cuda.core._error_text import for_allocation
from cuda.core._memory._graph_memory_attributes import GraphMemoryResourceAttributes

__all__ = ["GraphMemoryResource"]


# --- the deleter --------------------------------------------------------------------------------------------------


cdef struct QueuedFree:
    CapturedGraph* graph
    GraphAllocation* allocation
    StreamHandle* order  # the job's


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    cdef QueuedFree* what = <QueuedFree*>data
    cdef const char* function = NULL
    cdef bint unknown = False
    cdef cydriver.CUresult result = free_outside(what.allocation, what.graph, what.order, &unknown, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS and not unknown:
        return True
    failure.result, failure.function = result, function
    if unknown:
        failure.result = cydriver.CUresult.CUDA_ERROR_INVALID_VALUE
        failure.function = b"cuPointerGetAttribute"
    return False


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    release_graph_on_reaper((<QueuedFree*>data).graph)
    free(data)
    return True


cdef int _queue_free(Record record, GraphPlace place, StreamHandle* order, bint once) except -1:
    """Leave a free to the queue, which makes it when the streams are neither captured nor busy."""
    cdef QueuedFree* what = <QueuedFree*>calloc(1, sizeof(QueuedFree))
    cdef StreamHandle* behind = NULL
    cdef Job* job
    if what == NULL:
        raise MemoryError("no memory for a queued release")
    what.graph = retain_graph(place.of.graph)
    what.allocation = place.allocation
    try:
        behind = _and_last_launch(place.of.graph, order)
        what.order = behind
        job = new_job(_give_back, _discard, what, record, behind)
    except BaseException:
        _discard(what, NULL)
        raise
    finally:
        drop_stream(behind)  # the job has a reference of its own
    job.once = once
    try:
        enqueue(job)
    except BaseException:  # nothing was queued, and the record still owns it
        discard_job(job)
        raise
    return CLOSE_QUEUED


cdef StreamHandle* _and_last_launch(CapturedGraph* graph, StreamHandle* order) except? NULL:
    """Return what a free outside comes behind, with a reference for the caller: the memory was used by launches."""
    cdef StreamHandle* launched
    with nogil:
        pthread_mutex_lock(&graph.mutex)
        launched = retain_stream(graph.launched_on)
        pthread_mutex_unlock(&graph.mutex)
    if launched == NULL:
        return retain_stream(order)
    if order == NULL:
        return launched
    return add_stream(retain_stream(order), launched)


cdef int _free_place(Record record, GraphPlace place, StreamHandle* order, int waiting) except -1:
    """Free in the capture, outside of it, or through the queue."""
    cdef CapturedGraph* graph = place.of.graph
    cdef GraphAllocation* allocation = place.allocation
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    cdef bint unknown = False, automatic = waiting >= NEVER_WAIT
    cdef Where where
    with nogil:
        result = where_is(order, graph, &where, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS and where == Where.INSIDE:
            result = free_inside(allocation, graph, order, &where, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS and where == Where.INSIDE:
        return CLOSE_DONE
    if result == cydriver.CUresult.CUDA_SUCCESS and where == Where.ELSEWHERE:
        if automatic:
            return _queue_free(record, place, order, waiting == NEVER_WAIT)
        error = error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, b"cuStreamGetCaptureInfo")
        error.args = (
            f"{error.args[0]}: a stream that orders this release is being captured into another graph, or its capture "
            "is broken; close the buffer after that, or with another stream",
        )
        error.nothing_happened = True
        raise error
    if result == cydriver.CUresult.CUDA_SUCCESS:
        with nogil:
            result = free_outside(allocation, graph, order, &unknown, &function)
    if unknown:
        error = error_for(cydriver.CUresult.CUDA_ERROR_INVALID_VALUE, b"cuPointerGetAttribute")
        error.args = (
            f"{error.args[0]}: the graph that has allocated {<size_t>record.pointer:#x} is gone, and what is there now "
            "may be somebody else's, so nothing was freed; close the buffer before the graph ends",
        )
        error.lost_place = 0
        raise error
    if automatic and may_be_queued(order, result, function, waiting == LAST_LOAN or where == Where.INSIDE):
        return _queue_free(record, place, order, waiting == NEVER_WAIT)
    ensure_freed(result, function)
    return CLOSE_DONE


cdef cydriver.CUresult _free_address(uintptr_t address, StreamHandle* order, const char** function) noexcept nogil:
    """Free as told what nothing is known of: a node where the stream is being captured, else in its order."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef bint pushed = False
    cdef cydriver.CUresult result
    if order.kind == STREAM_SET:  # outside of a capture
        return free_in_order(address, order, NULL, function)
    result = enter_stream(order, &pushed, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    hold_captures_off()
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuMemFreeAsync"
        result = cydriver.cuMemFreeAsync(address, stream_as_seen_here(order))
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    let_captures_begin()
    leave_stream(pushed)
    return result


cdef int return_to_graph(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter. It never waits."""
    cdef _GraphMemory resource = <_GraphMemory>record.resource
    cdef Holding holding
    cdef int outcome
    if not record.size:
        return CLOSE_DONE
    holding = resource.begin_free(record)
    if resource.is_freed(record, holding):
        return CLOSE_DONE
    try:
        outcome = resource.free_known(record, order, waiting)
    except BaseException:  # the record still owns it
        resource.end_free(holding, False)
        raise
    resource.note_free(record, holding)
    return outcome


# --- the resource -------------------------------------------------------------------------------------------------


@cython.no_gc_clear
cdef class _GraphMemory(IndexedResource):
    """What :class:`GraphMemoryResource` is made of: it is one object for each device."""

    cdef int _ordinal

    def __cinit__(self, device_id):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is GraphMemoryResource:
            self.deleter = return_to_graph
        self._ordinal = device_argument(device_id)

    cdef int free_known(self, Record record, StreamHandle* order, int waiting) except -1:
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef uintptr_t address = record.pointer
        if isinstance(record.owner, GraphPlace):
            return _free_place(record, <GraphPlace>record.owner, order, waiting)
        with nogil:
            result = _free_address(address, order, &function)
        check(result, function)
        return CLOSE_DONE

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        return return_to_graph(record, order, waiting)

    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1:
        cdef Record record = holding.record()
        if record is not None:
            return self.free_known(record, order, waiting)
        return self.free_unknown(<uintptr_t><size_t>holding.key, holding.size, order)

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        with nogil:
            result = _free_address(address, order, &function)
        return check(result, function)

    cdef int _ensure_device(self, StreamHandle* order) except -1:
        cdef cydriver.CUcontext context = NULL
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef int ordinal
        with nogil:
            result = ask_for_context_of(order, &context, &function)
        check(result, function)
        ordinal = device_of_context(context)
        if ordinal != self._ordinal:
            raise ValueError(f"stream is of device {ordinal}, this GraphMemoryResource of device {self._ordinal}")
        return 0

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
        """Put an allocation into the graph that is being captured on a stream.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : GraphBuilder or Stream
            What is being captured. The memory can be used by what is captured there from now on, and by what is ordered
            behind that.

        Returns
        -------
        Buffer
            The new buffer, OWNED. Its address is the same in every launch. Closed while the capture goes on, it puts a
            free into the graph, behind what is on its streams then. Closed later, it frees what a launch has allocated;
            later launches by ``Graph.launch`` free by themselves.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is None, no stream, or another device's.
        RuntimeError
            If the stream is closed, or not being captured.
        CUDAError
            If the driver refuses, or the capture is broken.

        Notes
        -----
        Safe from any thread. The memory is there from a launch until it is freed; outside of the graph it must not be
        touched before or after.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> scratch = GraphMemoryResource(device).allocate(1024, stream=builder)
        >>> scratch.fill(0, stream=builder)
        >>> scratch.close()  # a node of the graph: every launch returns it
        <CloseResult.DONE: 0>
        >>> builder.end_building().close()
        """
        cdef size_t wanted = size_argument(size, "size")
        cdef StreamHandle* order = bind_stream(Stream_accept(stream))
        cdef Buffer buffer = new_buffer(0, wanted, self, self._ordinal, order)
        cdef GraphPlace place
        if wanted:
            ensure_driver()
            self._ensure_device(order)
            try:
                place = allocate_in_capture(order, wanted)
            except BaseException as error:
                for_allocation(error, self, wanted)
                raise
            buffer.pointer = place.allocation.address
            buffer.owner = place
        buffer.begin(STATE_OWNED, None, 0)
        self.remember(buffer)
        return buffer

    def deallocate(  # type: ignore[override]  # the base makes the stream optional; this one needs it
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder
    ) -> None:
        """Free an allocation by its address. Buffers do this by themselves.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : GraphBuilder or Stream
            The stream that orders the free. While it is being captured, the free becomes a node of the graph.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; ``stream`` must be given.
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        CUDAError
            If the driver refuses. The same call can be made again.

        Notes
        -----
        An ``Allocation`` that is freed this way counts as handed over. An address that this resource does not know is
        freed as told.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> allocation = GraphMemoryResource(device).allocate(1024, stream=builder).detach()
        >>> GraphMemoryResource(device).deallocate(allocation.handle, 1024, stream=builder)
        >>> builder.end_building().close()
        """
        cdef Stream order = Stream_accept(stream)
        IndexedResource.deallocate(self, ptr, size, stream=order)

    def close(self) -> None:
        """Do nothing: the resource holds nothing that could be given up. It can be used on.

        Examples
        --------
        >>> GraphMemoryResource(device).close()
        """

    def trim(self) -> None:
        """Give memory back to the device that graphs have used and do not use at the moment.

        Raises
        ------
        CUDAError
            If the driver refuses.

        Notes
        -----
        Safe from any thread, and during a capture. A graph whose memory is taken gets other memory at its next launch.

        Examples
        --------
        >>> GraphMemoryResource(device).trim()
        """
        cdef cydriver.CUresult result
        cdef int ordinal = self._ordinal
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceGraphMemTrim(ordinal)
        check(result, b"cuDeviceGraphMemTrim")

    @property
    def attributes(self) -> GraphMemoryResourceAttributes:
        """GraphMemoryResourceAttributes: how much memory graphs use on this device."""
        return GraphMemoryResourceAttributes._of(self._ordinal)

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated."""
        return self._ordinal

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""
        return False


_resources = WeakValueDictionary()


class GraphMemoryResource(_GraphMemory):
    """Allocates memory inside graphs: what a capture allocates, each launch of the graph allocates anew.

    There is one object for each device.

    Parameters
    ----------
    device_id : Device or int
        The device.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If it names a device that is not there.

    Notes
    -----
    Safe from any thread.

    Examples
    --------
    >>> GraphMemoryResource(0) is GraphMemoryResource(device)
    True
    """

    def __new__(cls, device_id: Device | int) -> GraphMemoryResource:
        ordinal = device_argument(device_id)
        known = _resources.get((cls, ordinal))
        return known if known is not None else _resources.setdefault((cls, ordinal), super().__new__(cls, ordinal))

    def __init__(self, device_id: Device | int) -> None:
        pass
