# SPDX-License-Identifier: Apache-2.0
"""``Graph``: what is launched. It owns the driver's executable graph, and the memory that its launches leave."""

cimport cython
from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver
from libc.string cimport memset
from libcpp.vector cimport vector

from cuda.core._capture_lock cimport (
    captures_begun,
    hold_captures_off,
    hold_streams_off,
    let_captures_begin,
    let_streams_be_used,
)
from cuda.core._driver cimport check, error_for, is_finalizing, is_hopeless
from cuda.core._fork cimport fork_generation
from cuda.core._shared_containers cimport take_all
from cuda.core._memory._graph_launches cimport Launches, first_paused, launches_of
from cuda.core._memory._graph_memory cimport free_left, look_at_all
from cuda.core._memory._graph_place cimport (
    PLACE_FREED,
    CapturedGraph,
    GraphAllocation,
    part_ends,
)
from cuda.core._memory._release cimport report
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream cimport Stream_accept, StreamCarrier, bind_stream
from cuda.core._stream_handle cimport (
    StreamHandle,
    ask_for_stream,
    captured_error,
    drop_stream,
    enter_stream,
    leave_stream,
    refuse_captured,
    retain_stream,
    stream_as_seen_here,
    stream_is_capturing,
)

from cuda.bindings import driver
from cuda.core._error_text import shown
from cuda.core._errors import OwnershipError

__all__ = ["Graph"]

cdef list _refused = []


# --- the driver's calls -------------------------------------------------------------------------------------------


cdef cydriver.CUresult _enter_uncaptured(
    StreamHandle* order, long begun, bint* pushed, bint* captured, const char** function
) noexcept nogil:
    """Enter a stream with captures held off. It was not captured when ``begun`` captures had begun."""
    cdef cydriver.CUresult result = ask_for_stream(order, function)
    pushed[0] = captured[0] = False
    if result == cydriver.CUresult.CUDA_SUCCESS and captures_begun() != begun:
        result = stream_is_capturing(order, captured, function)
        if captured[0]:
            result = cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = enter_stream(order, pushed, function)
    return result


cdef cydriver.CUresult _launch(
    CapturedGraph* graph, size_t executable, StreamHandle** order, long begun, bint* captured, const char** function
) noexcept nogil:
    """Launch, and free behind the launch what no buffer owns any more. With the mutex.

    The graph keeps the stream. What it kept before is in ``order`` then: to let go of it may run Python code.
    """
    cdef GraphAllocation* allocation
    cdef const char* unimportant = NULL
    cdef StreamHandle* before
    cdef bint pushed = False
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    # What an earlier launch has left would make this one fail.
    if graph.in_doubt:
        result = look_at_all(graph, function)
        graph.in_doubt = result != cydriver.CUresult.CUDA_SUCCESS
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = free_left(graph, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        hold_streams_off()
        result = _enter_uncaptured(order[0], begun, &pushed, captured, function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function[0] = b"cuGraphLaunch"
            result = cydriver.cuGraphLaunch(<cydriver.CUgraphExec>executable, stream_as_seen_here(order[0]))
            graph.in_doubt = result != cydriver.CUresult.CUDA_SUCCESS
            leave_stream(pushed)
        let_streams_be_used()
    if not _may_run(result):
        return result
    if result == cydriver.CUresult.CUDA_SUCCESS:
        allocation = graph.allocations
        while allocation != NULL:
            allocation.armed = allocation.place != PLACE_FREED
            allocation = allocation.next
    before = graph.launched_on
    graph.launched_on = order[0]
    order[0] = before
    free_left(graph, &unimportant)  # what is refused is tried again before the next launch, and at the end
    return result


cdef bint _may_run(cydriver.CUresult result) noexcept nogil:
    """Whether a graph whose launch was answered so is in the stream, or may be.

    A real driver answers UNKNOWN and runs the graph all the same where code outside of this package asks the stream for
    its work at that moment.
    """
    return result == cydriver.CUresult.CUDA_SUCCESS or result == cydriver.CUresult.CUDA_ERROR_UNKNOWN


cdef cydriver.CUresult _upload(
    CapturedGraph* graph, size_t executable, StreamHandle** order, long begun, bint* captured, const char** function
) noexcept nogil:
    """Prepare an executable on the device. With the mutex."""
    cdef bint pushed = False
    cdef cydriver.CUresult result
    hold_captures_off()
    result = _enter_uncaptured(order[0], begun, &pushed, captured, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuGraphUpload"
        result = cydriver.cuGraphUpload(<cydriver.CUgraphExec>executable, stream_as_seen_here(order[0]))
        leave_stream(pushed)
    let_captures_begin()
    return result


cdef cydriver.CUresult _destroy(
    CapturedGraph* graph, size_t executable, const char** function
) noexcept nogil:
    """Free what launches have left to nobody, and destroy the executable. With the mutex."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result = look_at_all(graph, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = free_left(graph, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuThreadExchangeStreamCaptureMode"
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuGraphExecDestroy"
        result = cydriver.cuGraphExecDestroy(<cydriver.CUgraphExec>executable)
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


# --- making one ---------------------------------------------------------------------------------------------------


_REASONS = {
    2: "the structure of the graph is wrong",
    3: "the graph cannot be launched from the device",
    4: "its nodes belong to several contexts",
    5: "a conditional handle is not used",
}


cdef str _NO_UPLOAD = "a graph cannot be uploaded on a stream that is being captured"


cdef Graph instantiate(GraphSource source, unsigned long long flags, StreamHandle* upload):
    """Make an executable graph of what a source has captured.

    Raises
    ------
    CUDAError
        If the driver refuses.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUDA_GRAPH_INSTANTIATE_PARAMS parameters
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = NULL
    cdef Graph self = Graph.__new__(Graph)
    cdef CapturedGraph* graph = source._of.graph
    cdef cydriver.CUgraphExec executable = NULL
    cdef bint pushed = False, closed, captured = False
    cdef long begun = captures_begun()
    if upload != NULL:
        refuse_captured(upload, _NO_UPLOAD)
    self._of = self._uses = source._of
    self._launches = launches_of(graph)
    memset(&parameters, 0, sizeof(parameters))
    parameters.flags = flags
    try_refused()
    with nogil:
        pthread_mutex_lock(&graph.mutex)
        closed = source._captured == NULL
        if not closed:
            if upload != NULL:
                hold_captures_off()
                result = _enter_uncaptured(upload, begun, &pushed, &captured, &function)
                parameters.hUploadStream = stream_as_seen_here(upload)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuThreadExchangeStreamCaptureMode"
                result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuGraphInstantiateWithParams"
                result = cydriver.cuGraphInstantiateWithParams(&executable, source._captured, &parameters)
                cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                graph.parts += 1
                self._executable.store(<size_t>executable)
            leave_stream(pushed)
            if upload != NULL:
                let_captures_begin()
        pthread_mutex_unlock(&graph.mutex)
    if closed:
        raise RuntimeError("GraphBuilder has been closed")
    if captured:  # since it was asked
        raise captured_error(_NO_UPLOAD)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        error = error_for(result, function)
        reason = _REASONS.get(<int>parameters.result_out)
        if reason is not None:
            error.args = (f"{error.args[0]}: {reason}",)
        elif result == cydriver.CUresult.CUDA_ERROR_NOT_SUPPORTED and graph.allocations != NULL:
            error.args = (
                f"{error.args[0]}: a graph that allocates memory can have one executable at a time; close the Graph "
                "that was made before",
            )
        raise error
    return self


cdef int keep_refused(object dropped) except -1:
    """Keep a graph or a builder that is gone in the program, and that the driver would not destroy."""
    _refused.append(dropped)
    return 0


cdef int try_refused() except -1:
    """Destroy what could not be destroyed before."""
    for dropped in take_all(_refused):
        try:
            dropped.close()
        except Exception:  # told of when it was refused first
            _refused.append(dropped)
    return 0


cdef class GraphSource(StreamCarrier):
    """Base of what a graph can be made of."""

    cdef int ensure_captured(self) except -1:
        raise NotImplementedError


# --- the Python object --------------------------------------------------------------------------------------------


cdef void _lock_both(CapturedGraph* one, CapturedGraph* other) noexcept nogil:
    """Lock two graphs, always in the same order."""
    pthread_mutex_lock(&(one if one <= other else other).mutex)
    if one != other:
        pthread_mutex_lock(&(other if one <= other else one).mutex)


cdef void _unlock_both(CapturedGraph* one, CapturedGraph* other) noexcept nogil:
    pthread_mutex_unlock(&one.mutex)
    if one != other:
        pthread_mutex_unlock(&other.mutex)


cdef str _update_result(int number):
    try:
        return driver.CUgraphExecUpdateResult(number).name
    except ValueError:
        return f"CUgraphExecUpdateResult {number}"


cdef class Graph:
    """A graph that can be launched. Get one from :meth:`GraphBuilder.complete`.

    It keeps what the captured operations use: their buffers' memory goes back when the graph builder and the graph are
    closed or gone, in any order.

    Notes
    -----
    Methods may be called from any thread; launches, updates and the close of one graph are made one after the other.

    Examples
    --------
    >>> builder = device.create_graph_builder().begin_building()
    >>> buffer.fill(0, stream=builder)
    >>> graph = builder.end_building().complete()
    >>> builder.close()
    >>> graph.launch(stream)
    >>> graph.close()
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("directly constructing a Graph instance is not supported; use GraphBuilder.complete()")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Graph objects cannot be copied or pickled: each stands for one graph of the driver")

    cdef CapturedGraph* _open(self) except NULL:
        if not self._executable.load():
            raise RuntimeError("Graph has been closed")
        if self._of.graph.generation != fork_generation():
            raise RuntimeError("the Graph was made before this process was forked, and is lost in it")
        return self._of.graph

    def close(self) -> None:
        """Destroy the graph. Closing twice is harmless. Launches in flight go on to their end.

        Memory that launches have allocated stays for the buffers that own it; what no buffer owns is freed behind the
        last launch.

        Raises
        ------
        CUDAError
            If the driver refuses. The graph stays open then and can be closed again, unless its context is gone.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> graph = builder.end_building().complete()
        >>> builder.close()
        >>> graph.close()
        >>> graph.is_closed
        True
        """
        cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
        cdef const char* function = NULL
        cdef CapturedGraph* graph
        if not self._executable.load():
            return
        graph = self._of.graph
        if graph.generation != fork_generation():  # the parent's; its mutex may be held for ever here
            self._executable.store(0)
            return
        with nogil:
            pthread_mutex_lock(&graph.mutex)
            if self._executable.load():
                result = _destroy(graph, self._executable.load(), &function)
                if result == cydriver.CUresult.CUDA_SUCCESS or is_hopeless(result):
                    self._executable.store(0)
                    part_ends(graph)
            pthread_mutex_unlock(&graph.mutex)
        check(result, function)

    def __del__(self):
        if not self._executable.load() or is_finalizing():
            return
        try:
            self.close()
        except BaseException as error:
            text = f"{self!r} was dropped and could not be destroyed: {type(error).__name__}: {error}."
            if self._executable.load():
                keep_refused(self)
                text += " It is tried again with the next graph that is begun or completed."
            report(text)

    @property
    def is_closed(self) -> bool:
        """bool: whether the graph was closed."""
        return self._executable.load() == 0

    @property
    def handle(self) -> driver.CUgraphExec:
        """CUgraphExec: the graph as a ``cuda.bindings.driver`` object; a null one once the graph is closed."""
        return driver.CUgraphExec(self._executable.load())

    cdef cydriver.CUresult _in_stream(
        self, object stream, str what, InStream put, tuple lent, const char** function
    ) except *:
        """Do something in the order of a stream, unless another thread closes the graph before.

        ``lent`` are ranges of virtual memory that a launch uses. Where one is paused nothing is done: the work would
        end the context with a fault.
        """
        cdef CapturedGraph* graph
        cdef StreamHandle* order
        cdef StreamHandle* used = NULL
        cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
        cdef vector[PyObject*] ranges
        cdef PyObject* away = NULL
        cdef Launches launches = self._launches
        cdef VirtualRange range_
        cdef bint closed, captured = False
        cdef long begun = captures_begun()
        self._open()
        order = bind_stream(Stream_accept(stream))
        refusal = f"a graph cannot be {what} on a stream that is being captured"
        graph = self._of.graph
        for each in lent:
            ranges.push_back(<PyObject*>each)
        try:
            refuse_captured(order, refusal)
            with nogil:
                pthread_mutex_lock(&graph.mutex)
                closed = self._executable.load() == 0
                if not closed:
                    away = first_paused(&ranges)
                if not closed and away == NULL:
                    if not ranges.empty():
                        used = retain_stream(order)
                    result = put(graph, self._executable.load(), &order, begun, &captured, function)
                    if used != NULL and _may_run(result):
                        launches.last, used = used, launches.last
                pthread_mutex_unlock(&graph.mutex)
            if captured:  # since it was asked
                raise captured_error(refusal)
        finally:
            drop_stream(used)
            drop_stream(order)
        if closed:
            raise RuntimeError("Graph has been closed")
        if away != NULL:
            range_ = <VirtualRange>away
            raise OwnershipError(
                f"the graph uses {range_.mapped.load()} bytes at {<size_t>range_.base:#x}, of a buffer that is paused; "
                "resume it first"
            )
        return result

    def launch(self, stream: Stream | GraphBuilder) -> None:
        """Put the graph into a stream: its nodes run behind what is there, and before what comes later.

        Parameters
        ----------
        stream : Stream
            The stream that orders the launch. It must not be being captured.

        Raises
        ------
        TypeError
            If ``stream`` is None or no stream.
        RuntimeError
            If the graph or the stream is closed.
        OwnershipError
            If a buffer that the graph uses is paused.
        CUDAError
            If the stream is being captured, which goes on; or if the driver refuses. It does so while memory that an
            earlier launch has allocated is still owned by an open buffer, unless the graph was completed with
            ``auto_free_on_launch``. Answered with ``CUDA_ERROR_UNKNOWN`` the graph may run all the same: a driver does
            so where code outside of this package asks the stream for its work at the same moment.

        Notes
        -----
        The call waits for nothing. Memory that the graph allocates, that no node of it frees and that no buffer owns
        any more is freed behind the launch.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> graph = builder.end_building().complete()
        >>> builder.close()
        >>> graph.launch(stream)
        >>> graph.close()
        """
        cdef CapturedGraph* graph = self._open()
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef GraphReference uses
        with cython.critical_section(self):  # an update replaces it
            uses = self._uses
        result = self._in_stream(stream, "launched", _launch, self._launches.begin(uses.lent), &function)
        if result == cydriver.CUresult.CUDA_ERROR_INVALID_VALUE and graph.allocations != NULL:
            error = error_for(result, function)
            error.args = (
                f"{error.args[0]}: a graph is refused while memory that it allocates is still there from an earlier "
                "launch. Close the buffers before, or complete the graph with auto_free_on_launch",
            )
            raise error
        check(result, function)

    def upload(self, stream: Stream | GraphBuilder) -> None:
        """Prepare the graph on the device, in the order of a stream, so that the first launch need not.

        Parameters
        ----------
        stream : Stream
            The stream that orders the upload. It must not be being captured.

        Raises
        ------
        TypeError
            If ``stream`` is None or no stream.
        RuntimeError
            If the graph or the stream is closed.
        CUDAError
            If the stream is being captured, which goes on; or if the driver refuses.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> graph = builder.end_building().complete()
        >>> builder.close()
        >>> graph.upload(stream)
        >>> graph.close()
        """
        cdef const char* function = NULL
        cdef cydriver.CUresult result = self._in_stream(stream, "uploaded", _upload, (), &function)
        check(result, function)

    def update(self, source: GraphBuilder) -> None:
        """Give the nodes the parameters of another capture of the same shape, for later launches.

        The memory that the other capture uses is kept from now on; that of the earlier one goes back as soon as no
        graph and no launch in flight needs it.

        Parameters
        ----------
        source : GraphBuilder
            A builder that has finished building.

        Raises
        ------
        TypeError
            If ``source`` is no builder.
        ValueError
            If one of the two graphs allocates memory, and they are not the same.
        RuntimeError
            If the graph is closed, or the builder is closed or has not finished.
        CUDAError
            If the driver refuses; the text names what has changed. The graph is as it was.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> graph = builder.end_building().complete()
        >>> builder.close()
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(1, stream=builder)
        >>> graph.update(builder.end_building())  # the same nodes, with other values
        >>> builder.close()
        >>> graph.close()
        """
        cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        cdef cydriver.CUgraphExecUpdateResultInfo info
        cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
        cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
        cdef CapturedGraph* graph
        cdef CapturedGraph* other
        cdef GraphSource captured
        cdef bint closed, source_closed
        if not isinstance(source, GraphSource):
            raise TypeError(f"source must be a GraphBuilder, got {type(source).__name__}: {shown(source)}")
        graph = self._open()
        captured = source
        captured.ensure_captured()
        other = captured._of.graph
        if graph != other and (graph.allocations != NULL or other.allocations != NULL):
            raise ValueError("a graph that allocates memory cannot be updated by another one: its memory stays its own")
        memset(&info, 0, sizeof(info))
        with nogil:
            _lock_both(graph, other)
            closed = self._executable.load() == 0
            source_closed = captured._captured == NULL
            if not closed and not source_closed:
                result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuGraphExecUpdate"
                    result = cydriver.cuGraphExecUpdate(
                        <cydriver.CUgraphExec>self._executable.load(), captured._captured, &info
                    )
                    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            _unlock_both(graph, other)
        if closed:
            raise RuntimeError("Graph has been closed")
        if source_closed:
            raise RuntimeError("GraphBuilder has been closed")
        if result != cydriver.CUresult.CUDA_SUCCESS:
            error = error_for(result, function)
            if info.result:
                error.args = (f"{error.args[0]}: {_update_result(info.result)}",)
            raise error
        with cython.critical_section(self):
            self._uses = captured._of

    def __repr__(self) -> str:
        return f"<Graph handle={self._executable.load():#x}{'' if self._executable.load() else ' closed'}>"
