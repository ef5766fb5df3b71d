# SPDX-License-Identifier: Apache-2.0
# Made from _graph_builder.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``GraphBuilder``: a stream whose work becomes a graph. It owns the capture, and the graph that comes out of it."""

from collections.abc import Callable
from cuda.core._stream import Stream
from cuda.core.graph._graph import Graph
from cuda.core.graph._graph import GraphSource
from cuda.core.graph._graph_options import GraphCompleteOptions
from cuda.core.graph._graph_options import GraphDebugPrintOptions
from typing import Any
from typing_extensions import Buffer as BufferProtocol
import os

__all__ = ["GraphBuilder"]

class GraphBuilder(GraphSource):
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
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @property
    def stream(self) -> Stream:
        """Stream: what is captured.

        Raises
        ------
        RuntimeError
            If the builder is closed.
        """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, address)``, the protocol by which other libraries accept this as a stream."""

    @property
    def is_closed(self) -> bool:
        """bool: whether the builder was closed, or joined into another one."""

    @property
    def is_join_required(self) -> bool:
        """bool: whether this builder came from :meth:`split`, and must be joined before building ends."""

    @property
    def is_building(self) -> bool:
        """bool: whether work is being captured.

        Raises
        ------
        RuntimeError
            If the builder is closed, or the capture is broken and has to be ended.
        """

    def begin_building(self, mode: str | None = 'relaxed') -> GraphBuilder:
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

    def debug_dot_print(self, path: str | os.PathLike[str], options: GraphDebugPrintOptions | dict[str, Any] | None = None) -> None:
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

    def __repr__(self) -> str:
        ...
