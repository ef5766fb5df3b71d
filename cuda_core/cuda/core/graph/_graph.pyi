# SPDX-License-Identifier: Apache-2.0
# Made from _graph.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``Graph``: what is launched. It owns the driver's executable graph, and the memory that its launches leave."""

from cuda.bindings import driver
from cuda.core._stream import Stream
from cuda.core._stream import StreamCarrier
from cuda.core.graph._graph_builder import GraphBuilder

__all__ = ["Graph"]

class GraphSource(StreamCarrier):
    """Base of what a graph can be made of."""

class Graph:
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
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

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

    @property
    def is_closed(self) -> bool:
        """bool: whether the graph was closed."""

    @property
    def handle(self) -> driver.CUgraphExec:
        """CUgraphExec: the graph as a ``cuda.bindings.driver`` object; a null one once the graph is closed."""

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

    def __repr__(self) -> str:
        ...
