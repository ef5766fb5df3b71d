# SPDX-License-Identifier: Apache-2.0
# Made from _graph_memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``GraphMemoryResource``: memory that a graph allocates when it is launched."""

from cuda.core._device import Device
from cuda.core._memory._buffer import Buffer
from cuda.core._memory._graph_memory_attributes import GraphMemoryResourceAttributes
from cuda.core._memory._indexed_resource import IndexedResource
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["GraphMemoryResource"]

class _GraphMemory(IndexedResource):
    """What :class:`GraphMemoryResource` is made of: it is one object for each device."""

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

    def deallocate(self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder) -> None:  # type: ignore[override]
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

    @property
    def attributes(self) -> GraphMemoryResourceAttributes:
        """GraphMemoryResourceAttributes: how much memory graphs use on this device."""

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""

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
        ...

    def __init__(self, device_id: Device | int) -> None:
        ...
