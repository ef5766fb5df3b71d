# SPDX-License-Identifier: Apache-2.0
# Made from _virtual_memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``VirtualMemoryResource``: buffers on virtual memory, which can grow."""

from cuda.core._memory._buffer import Buffer
from cuda.core._memory._virtual_memory_base import VirtualMemoryBase
from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions
from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions as VirtualMemoryResourceOptions
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from typing import Any

__all__ = ["VirtualMemoryResource", "VirtualMemoryResourceOptions"]

class VirtualMemoryResource(VirtualMemoryBase):
    """Allocates virtual memory: physical chunks mapped into reserved address space. Its buffers can grow.

    Parameters
    ----------
    device_id : Device or int
        The device, also for memory at the host: it is the one whose nearest NUMA node ``"host_numa"`` means.
    config : VirtualMemoryResourceOptions or dict, optional
        How to allocate.

    Attributes
    ----------
    config : VirtualMemoryResourceOptions
        The options that were given. Assigning to one of them changes later allocations.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or names a device that is not there.
    RuntimeError
        If the device cannot do what the options ask for, or there is no driver.

    Notes
    -----
    Safe from any thread. Allocating and freeing are not stream-ordered by the driver: a release waits, without the
    GIL, for the stream that was recorded, and returns everything before it returns.

    Examples
    --------
    >>> mr = VirtualMemoryResource(0)
    >>> small = mr.allocate(2 << 20, stream=stream)
    >>> large = mr.modify_allocation(small, 64 << 20)
    >>> small.ownership, large.ownership
    (<Ownership.TRANSFERRED: 3>, <Ownership.OWNED: 1>)
    >>> large.close()
    <CloseResult.DONE: 0>
    """

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate a buffer.

        Parameters
        ----------
        size : int
            Bytes wanted; rounded up to the granularity. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context;
            where no context is current either, the release waits for nothing.

        Returns
        -------
        Buffer
            The new buffer, OWNED. Its memory is usable at once.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is no stream. No driver call is made.
        CUDAError
            If the driver refuses. Everything done by then is undone.

        Examples
        --------
        >>> with VirtualMemoryResource(0).allocate(5 << 20, stream=stream) as buffer:
        ...     buffer.size >> 20  # rounded up to the granularity
        6
        """

    def modify_allocation(self, buf: Buffer, new_size: int, config: VirtualMemoryResourceOptions | dict[str, Any] | None = None) -> Buffer:
        """Grow a buffer. The allocation moves to a new buffer, and ``buf`` becomes TRANSFERRED.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        new_size : int
            Bytes wanted in all; rounded up to the granularity.
        config : VirtualMemoryResourceOptions or dict, optional
            How to allocate what is added, by default as the resource does. It must keep the location, and it is
            not stored.

        Returns
        -------
        Buffer
            A new buffer with the same contents at its start. ``buf`` itself, if it is large enough already.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an argument is wrong, or ``buf`` belongs to another resource. No driver call is made.
        OwnershipError
            If ``buf`` is BORROWED, closed, transferred, or being released or grown by another thread.
        CUDAError
            If the driver refuses. ``buf`` is then exactly what it was.

        Notes
        -----
        In this order: inside the reservation, the new memory is mapped behind the old; where the driver gives the
        addresses behind the reservation, likewise. In both cases the address stays and nothing waits. Otherwise a
        larger reservation is made and every chunk is mapped into it a second time; no byte is copied. The old
        addresses are returned after the recorded stream; if that fails, the new buffer is returned all the same, the
        failure is reported once as a ``CUDAWarning``, and the next close tries again.

        Work that uses the old address must be in the recorded stream, or finished.

        Examples
        --------
        >>> mr = VirtualMemoryResource(0, {"reserve_size": 64 << 20})
        >>> buffer = mr.allocate(2 << 20, stream=stream)
        >>> address = buffer.handle
        >>> buffer = mr.modify_allocation(buffer, 32 << 20)
        >>> buffer.handle == address
        True
        """
