# SPDX-License-Identifier: Apache-2.0
"""``GraphBuilder``: a stream whose work becomes a graph. It owns the capture, and the graph that comes out of it."""

import operator
import os

cimport cython
from cuda.bindings cimport cydriver

from cuda.core._context cimport device_of_context
from cuda.core._driver cimport check, driver_is_the_parents, is_finalizing, is_hopeless
from cuda.core._fork cimport fork_generation
from cuda.core._memory._graph_place cimport (
    CapturedGraph,
    continue_on,
    part_ends,
    stop_on,
)
from cuda.core._memory._release cimport report
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream cimport Stream, bind_stream, create_stream, wrap_stream
from cuda.core._stream_handle cimport StreamHandle, drop_stream, retain_stream
from cuda.core.graph._callback cimport HostCall, capture_callback, checked_callback
from cuda.core.graph._capture cimport begin_capture, capture_status, end_capture
from cuda.core.graph._graph cimport GraphSource, instantiate, keep_refused, try_refused

from cuda.core import _stream
from cuda.core._error_text import shown
from cuda.core._memory._option_checks import accept

__all__ = ["GraphBuilder"]

cdef enum Stage:
    NEW = 0
    BUILDING = 1
    ENDED = 2
    FAILED = 3   # the capture is over, and gave no graph

_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}

# Methods of cuda-core 1.2.2 that need graphs of more than what streams capture.
_ABSENT = frozenset(
    {"create_condition", "embed", "graph_definition", "if_else", "if_then", "switch", "while_loop"}
)


cdef class GraphBuilder(GraphSource):
    """Captures what is put into a stream, and makes a graph of it.

    Get one from :meth:`Device.create_graph_builder` or :meth:`Stream.create_graph_builder`. It is accepted wherever a
    stream is; between :meth:`begin_building` and :meth:`end_building` nothing that is put there runs, it is noted.

    A copy or a fill keeps the memory of its buffers for the graph, also when the buffers are closed.

    Notes
    -----
    A builder is used by one thread at a time. With the modes ``global`` and ``thread_local`` it ends on the thread on
    which it began.

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
        raise NotImplementedError(
            "directly creating a GraphBuilder object can be ambiguous; use Device.create_graph_builder() or "
            "Stream.create_graph_builder()"
        )

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("GraphBuilder objects cannot be copied or pickled: each stands for one capture")

    cdef int _ensure_open(self) except -1:
        if self._closed.load():
            raise RuntimeError("GraphBuilder has been closed")
        if self._generation != fork_generation():
            raise RuntimeError("the GraphBuilder was made before this process was forked, and is lost in it")
        return 0

    cdef StreamHandle* _hold_order(self) except NULL:
        """Return the handle of the stream, one reference of it the caller's: another thread may close the builder."""
        cdef StreamHandle* order
        with cython.critical_section(self):
            order = retain_stream(self._order)
        if order == NULL:
            raise RuntimeError("GraphBuilder has been closed")
        return order

    cdef void _drop_order(self) noexcept:
        cdef StreamHandle* order
        with cython.critical_section(self):
            order = self._order
            self._order = NULL
        drop_stream(order)

    cdef Stream carried(self):
        self._ensure_open()
        return self._stream

    @property
    def stream(self) -> Stream:
        """Stream: what is captured.

        Raises
        ------
        RuntimeError
            If the builder is closed.
        """
        return self.carried()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, address)``, the protocol by which other libraries accept this as a stream."""
        return self.carried().__cuda_stream__()

    @property
    def is_closed(self) -> bool:
        """bool: whether the builder was closed, or joined into another one."""
        return self._closed.load() != 0

    @property
    def is_join_required(self) -> bool:
        """bool: whether this builder came from :meth:`split`, and must be joined before building ends."""
        return self._root is not None

    @property
    def is_building(self) -> bool:
        """bool: whether work is being captured.

        Raises
        ------
        RuntimeError
            If the builder is closed, or the capture is broken and has to be ended.
        """
        cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        cdef GraphBuilder root = self if self._root is None else self._root
        cdef StreamHandle* order
        self._ensure_open()
        if root._stage.load() != Stage.BUILDING:
            return False
        order = self._hold_order()
        try:
            status = capture_status(order)
        finally:
            drop_stream(order)
        if status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
            raise RuntimeError(
                "the capture is broken by a call that is not allowed in it, and gives no graph; end_building() or "
                "close() ends it"
            )
        return status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE

    # -- the capture -----------------------------------------------------------------------------------------------

    def begin_building(self, mode: str | None = "relaxed") -> GraphBuilder:
        """Begin to capture what is put into the stream.

        Parameters
        ----------
        mode : str
            What is forbidden meanwhile, because it might be unsafe: for every thread (``"global"``), for this one
            (``"thread_local"``), or nothing (``"relaxed"``).

        Returns
        -------
        GraphBuilder
            This builder.

        Raises
        ------
        ValueError
            If there is no such mode.
        RuntimeError
            If the builder is closed, builds, or has built.
        CUDAError
            If the stream cannot be captured, or the driver refuses. The builder can then begin again.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> builder.is_building
        True
        >>> builder.end_building().close()
        """
        self._ensure_new()
        number = _MODES.get(mode) if isinstance(mode, str) else None
        if number is None:
            raise ValueError(f"Unsupported build mode: {shown(mode)}; it is one of {', '.join(map(repr, _MODES))}")
        with _Alone(self):
            self._ensure_new()  # now nobody else changes that
            try_refused()
            self._begin(number)
        return self

    cdef int _ensure_new(self) except -1:
        self._ensure_open()
        if self._root is not None or self._stage.load() == Stage.BUILDING:
            raise RuntimeError("Graph builder is already building.")
        if self._stage.load() != Stage.NEW:
            raise RuntimeError("Cannot resume building after building has ended.")
        return 0

    cdef int _begin(self, int mode) except -1:
        cdef StreamHandle* order = bind_stream(self._stream)
        try:
            self._of = begin_capture(order, mode)
            with cython.critical_section(self):
                self._order, order = order, self._order
        finally:
            drop_stream(order)
        self._fork_streams = []
        self._stage.store(Stage.BUILDING)
        return 0

    def end_building(self) -> GraphBuilder:
        """End the capture. The graph can then be completed.

        Returns
        -------
        GraphBuilder
            This builder.

        Raises
        ------
        RuntimeError
            If the builder is closed, does not build, came from :meth:`split`, or some that did are not joined.
        CUDAError
            If the capture is broken, or the driver refuses. A capture that is over gives no graph; close the builder.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> builder.end_building().is_building
        False
        >>> builder.close()
        """
        self._ensure_can_end()
        with _Alone(self):
            self._ensure_can_end()  # now nobody else changes that
            self._end()
        return self

    cdef int _ensure_can_end(self) except -1:
        cdef int forks = self._open_forks.load()
        self._ensure_open()
        if self._root is not None:
            raise RuntimeError(
                "a GraphBuilder that came from split() cannot end building; join() it, and end with the builder that "
                "began"
            )
        if self._stage.load() != Stage.BUILDING:
            raise RuntimeError("Graph builder is not building.")
        if forks:
            raise RuntimeError(f"{forks} GraphBuilder(s) that came from split() are not joined; join() them first")
        return 0

    cdef int _end(self) except -1:
        """End the capture. Raises what the driver has answered; whether the capture is over is in the stage."""
        cdef bint over = False
        try:
            end_capture(self._order, self._of.graph, &self._captured, &over)
        finally:
            if over:
                self._stage.store(Stage.ENDED if self._captured != NULL else Stage.FAILED)
                self._fork_streams = None
        return 0

    def callback(self, fn: Callable[[], object], *, user_data: int | BufferProtocol | None = None) -> None:
        """Call a function of the host when a launch comes to this place.

        Parameters
        ----------
        fn : callable or ctypes function pointer
            A Python function without arguments, or a C function with the prototype
            ``ctypes.CFUNCTYPE(None, ctypes.c_void_p)``.
        user_data : int or bytes-like, optional
            What a C function is given: a pointer, or bytes, of which the graph keeps a copy. Not for Python functions.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an argument is wrong.
        RuntimeError
            If the builder is closed or does not build.
        CUDAError
            If the driver refuses. The capture is as it was.

        Notes
        -----
        The function is called on a thread of the driver, with the GIL if it is a Python one, and must not call the
        driver, nor drop the last reference to a buffer or graph. The graph and all that is made from it keep it; a
        reference from the function back to the graph is never collected. What it raises goes to ``sys.unraisablehook``.
        When the interpreter is finalizing it is not called.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> builder.callback(lambda: None)  # called by every launch, between the nodes before and behind
        >>> builder.end_building().close()
        """
        cdef HostCall call
        cdef StreamHandle* order
        self._ensure_open()
        call = checked_callback(fn, user_data)
        if not self.is_building:
            raise RuntimeError("Graph builder is not building.")
        order = self._hold_order()
        try:
            capture_callback(order, call)
        finally:
            drop_stream(order)

    # -- several streams -------------------------------------------------------------------------------------------

    def split(self, count: int) -> tuple[GraphBuilder, ...]:
        """Go on in several builders, whose work can run side by side, behind what is captured so far.

        Parameters
        ----------
        count : int
            How many, this one included; at least 2.

        Returns
        -------
        tuple of GraphBuilder
            This builder, and new ones with streams of their own. Join them before building ends.

        Raises
        ------
        TypeError, ValueError
            If ``count`` is no integer or below 2.
        RuntimeError
            If the builder is closed or does not build.
        CUDAError
            If the driver refuses. The capture is as it was.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> left, right = builder.split(2)
        >>> buffer.fill(0, stream=right)
        >>> builder = GraphBuilder.join(left, right)
        >>> builder.end_building().close()
        """
        cdef GraphBuilder fork
        if isinstance(count, bool):
            raise TypeError(f"count must be an integer, got {shown(count)}")
        try:
            number = operator.index(count)
        except TypeError:
            raise TypeError(f"count must be an integer, got {type(count).__name__}: {shown(count)}") from None
        if number < 2:
            raise ValueError(f"Invalid split count: expecting >= 2, got {shown(number)}")
        with _Alone(self):
            if not self.is_building:
                raise RuntimeError("Graph builder must be building before it can be split.")
            made = []
            event = self._stream.record()  # not closed: that it cannot be destroyed is no failure of this call
            try:
                for _ in range(number - 1):
                    made.append(self._fork(event))
            except BaseException:
                for fork in made:
                    # A stream that has joined a capture must be waited for, also if nothing was put into it.
                    try:
                        self._stream.wait(fork._stream)
                    except Exception:  # what was refused first is what is told
                        continue
                    _joined(fork)
                raise
            return (self, *made)

    cdef GraphBuilder _fork(self, object event):
        cdef GraphBuilder root = self if self._root is None else self._root
        cdef GraphBuilder fork = GraphBuilder.__new__(GraphBuilder)
        cdef cydriver.CUcontext context = self._stream._context_handle()
        cdef cydriver.CUcontext popped = NULL
        cdef cydriver.CUresult result
        cdef int device_id = device_of_context(context)
        with nogil:
            result = cydriver.cuCtxPushCurrent(context)
        check(result, b"cuCtxPushCurrent")
        try:
            fork._stream = create_stream(context, device_id, None)
        finally:
            with nogil:
                cydriver.cuCtxPopCurrent(&popped)
        fork._owns_stream = True
        fork._generation = self._generation
        fork._order = retain_stream(fork._stream._handle)
        root._fork_streams.append(wrap_stream(fork._order))  # before it can be in the capture
        continue_on(root._of.graph, fork._order.stream)
        fork._stream.wait(event)
        fork._of, fork._root = root._of, root
        root._open_forks.fetch_add(1)
        return fork

    @staticmethod
    def join(*graph_builders: GraphBuilder) -> GraphBuilder:
        """Go on in one builder, behind what all of them have captured.

        Parameters
        ----------
        *graph_builders : GraphBuilder
            Two or more builders of one capture.

        Returns
        -------
        GraphBuilder
            The first of them that need not be joined, or else the first. The others are closed.

        Raises
        ------
        TypeError
            If an argument is no builder.
        ValueError
            If there are fewer than two, one is named twice, or they are not of one capture.
        RuntimeError
            If one of them is closed or does not build.
        CUDAError
            If the driver refuses. No builder is closed then, and the same call can be made again.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> left, right = builder.split(2)
        >>> GraphBuilder.join(left, right).end_building().close()
        """
        cdef GraphBuilder builder, target
        _checked_for_join(graph_builders)
        with _Alone(*graph_builders):
            for builder in graph_builders:
                if not builder.is_building:  # or closed: joined by another thread just before
                    raise RuntimeError("Graph builder must be building before it can be joined.")
            target = next((one for one in graph_builders if not one.is_join_required), graph_builders[0])
            for builder in graph_builders:
                if builder is not target:
                    target._stream.wait(builder._stream)
            for builder in graph_builders:
                if builder is not target:
                    _joined(builder)
            return target

    # -- what comes out --------------------------------------------------------------------------------------------

    cdef int ensure_captured(self) except -1:
        self._ensure_open()
        if self._root is not None or self._stage.load() in (Stage.NEW, Stage.BUILDING):
            raise RuntimeError("Graph has not finished building.")
        if self._stage.load() == Stage.FAILED:
            raise RuntimeError("Graph has not finished building: the capture was broken and gave no graph.")
        return 0

    def complete(self, options: GraphCompleteOptions | dict[str, Any] | None = None) -> Graph:
        """Make a graph that can be launched.

        Parameters
        ----------
        options : GraphCompleteOptions or dict, optional
            How to make it.

        Returns
        -------
        Graph
            A new graph, which does not need the builder any more. A graph that allocates memory can have one at a time.

        Raises
        ------
        TypeError, ValueError
            If the options are wrong or exclude each other.
        RuntimeError
            If the builder is closed, or has not finished building.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> builder = device.create_graph_builder().begin_building()
        >>> buffer.fill(0, stream=builder)
        >>> graph = builder.end_building().complete({"auto_free_on_launch": True})
        >>> builder.close()
        >>> graph.close()
        """
        cdef unsigned long long flags = 0
        cdef StreamHandle* upload = NULL
        self.ensure_captured()
        if options is None:
            return instantiate(self, 0, NULL)
        from cuda.core.graph._graph_options import GraphCompleteOptions

        chosen = accept(GraphCompleteOptions, options, "options")
        if chosen.device_launch and chosen.auto_free_on_launch:
            raise ValueError("device_launch and auto_free_on_launch exclude each other, and both are True")
        if chosen.auto_free_on_launch:
            flags |= cydriver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        if chosen.device_launch:
            flags |= cydriver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
        if chosen.use_node_priority:
            flags |= cydriver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
        if chosen.upload_stream is None:
            return instantiate(self, flags, NULL)
        flags |= cydriver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        upload = bind_stream(chosen.upload_stream)
        try:
            return instantiate(self, flags, upload)
        finally:
            drop_stream(upload)

    def debug_dot_print(
        self, path: str | os.PathLike[str], options: GraphDebugPrintOptions | dict[str, Any] | None = None
    ) -> None:
        """Write the graph into a file, in the language of Graphviz.

        Parameters
        ----------
        path : str or os.PathLike
            The file. It is overwritten.
        options : GraphDebugPrintOptions or dict, optional
            What to write of nodes.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong.
        RuntimeError
            If the builder is closed, or has not finished building.
        CUDAError
            If the driver refuses, because it cannot write the file for instance.

        Examples
        --------
        >>> builder.debug_dot_print("graph.dot")  # doctest: +SKIP
        """
        cdef bytes name = os.fsencode(path)
        cdef const char* where = name
        cdef unsigned int flags = 0
        cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
        cdef CapturedGraph* graph
        cdef bint closed
        if b"\0" in name:
            raise ValueError(f"path must not contain a null, got {shown(path)}")
        self.ensure_captured()
        if options is not None:
            from cuda.core.graph._graph_options import GraphDebugPrintOptions

            flags = accept(GraphDebugPrintOptions, options, "options")._to_flags()
        graph = self._of.graph
        with nogil:
            pthread_mutex_lock(&graph.mutex)
            closed = self._captured == NULL
            if not closed:
                result = cydriver.cuGraphDebugDotPrint(self._captured, where, flags)
            pthread_mutex_unlock(&graph.mutex)
        if closed:
            raise RuntimeError("GraphBuilder has been closed")
        check(result, b"cuGraphDebugDotPrint")

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the capture, if it goes on, and let go of the graph. Closing twice is harmless.

        Graphs that were completed stay as they are. A builder that came from :meth:`split` and is closed before it is
        joined leaves its work unjoined: the capture then gives no graph.

        Raises
        ------
        CUDAError
            If the driver refuses. The builder stays open then and can be closed again.

        Examples
        --------
        >>> builder = device.create_graph_builder()
        >>> builder.close()
        >>> builder.is_closed
        True
        """
        if self._closed.load():
            return
        if driver_is_the_parents():  # a thread that was changing it at the fork will never end that
            self._give_up()
            return
        with _Alone(self):
            if not self._closed.load():
                self._give_up()

    cdef int _give_up(self) except -1:
        if self._root is None and self._of is not None and self._of.graph.generation == fork_generation():
            if self._stage.load() == Stage.BUILDING:
                try:
                    self._end()
                except Exception:
                    if self._stage.load() == Stage.BUILDING:
                        raise
            self._destroy()
        self._drop_order()
        if self._owns_stream:
            self._stream.close()
        if self._root is not None:
            self._root._open_forks.fetch_sub(1)
        self._closed.store(1)
        return 0

    cdef int _destroy(self) except -1:
        cdef CapturedGraph* graph = self._of.graph
        cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
        with nogil:
            pthread_mutex_lock(&graph.mutex)
            if self._captured != NULL:
                result = cydriver.cuGraphDestroy(self._captured)
                if result == cydriver.CUresult.CUDA_SUCCESS or is_hopeless(result):
                    self._captured = NULL
                    part_ends(graph)
            pthread_mutex_unlock(&graph.mutex)
        check(result, b"cuGraphDestroy")
        return 0

    def __del__(self):
        if self._closed.load() or self._stream is None or is_finalizing():
            return
        try:
            self._give_up()
        except BaseException as error:
            keep_refused(self)
            report(
                f"{self!r} was dropped and could not be destroyed: {type(error).__name__}: {error}. "
                "It is tried again with the next graph that is begun or completed."
            )

    def __dealloc__(self):
        cdef StreamHandle* order = self._order
        self._order = NULL
        drop_stream(order)

    def __getattr__(self, name):
        if name in _ABSENT:
            raise AttributeError(
                f"GraphBuilder.{name} is not in this build, whose graphs hold what streams capture: copies, fills and "
                "memory"
            )
        raise AttributeError(f"'GraphBuilder' object has no attribute {name!r}")

    def __repr__(self) -> str:
        if self._closed.load():
            return "<GraphBuilder closed>"
        stage = "forked" if self._root is not None else ("new", "building", "ended", "failed")[self._stage.load()]
        return f"<GraphBuilder {stage} {self._stream!r}>"


class _Alone:
    """While a call changes builders, another thread's is refused."""

    __slots__ = ("builders",)

    def __init__(self, *builders):
        self.builders = []
        for builder in builders:
            if (<GraphBuilder>builder)._busy.exchange(1):
                self.__exit__()
                raise RuntimeError("another thread is changing this GraphBuilder at this moment")
            self.builders.append(builder)

    def __enter__(self):
        pass

    def __exit__(self, *exception):
        for builder in self.builders:
            (<GraphBuilder>builder)._busy.store(0)


cdef int _joined(GraphBuilder fork) except -1:
    """Close a builder whose work another one goes on from."""
    cdef CapturedGraph* graph = fork._of.graph
    cdef cydriver.CUstream stream = fork._order.stream
    with nogil:
        stop_on(graph, stream)
    fork._root._open_forks.fetch_sub(1)
    fork._closed.store(1)
    fork._drop_order()
    fork._stream.close()  # the root holds it until the capture ends
    return 0


def _checked_for_join(builders):
    for builder in builders:
        if not isinstance(builder, GraphBuilder):
            raise TypeError(
                f"All arguments must be GraphBuilder instances, got {type(builder).__name__}: {shown(builder)}"
            )
    if len(builders) < 2:
        raise ValueError(f"Must join with at least two graph builders, got {len(builders)}")
    if len(set(map(id, builders))) < len(builders):
        raise ValueError("a graph builder cannot be joined with itself")
    for builder in builders:
        (<GraphBuilder>builder)._ensure_open()
    if len({id((<GraphBuilder>builder)._of) for builder in builders}) > 1:
        raise ValueError("graph builders of different captures cannot be joined")
    return builders


def _make(Stream stream, bint owns_stream):
    cdef GraphBuilder self = GraphBuilder.__new__(GraphBuilder)
    self._stream = stream
    self._owns_stream = owns_stream
    self._generation = fork_generation()
    return self


_stream.graph_builder_factory = _make
