# SPDX-License-Identifier: Apache-2.0
# Made from _managed_memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``ManagedMemoryResource``: memory that moves between host and devices by itself, from a pool."""

from cuda.core._memory import ManagedMemoryResourceOptions
from cuda.core._memory._managed_buffer import ManagedBuffer
from cuda.core._memory._memory_pool import _MemPool
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import ManagedMemoryLocationType
from typing import Any

__all__ = ["ManagedMemoryResource"]

class ManagedMemoryResource(_MemPool):
    """Allocates managed memory, which host and devices use by one address, from a pool and in the order of streams.

    Parameters
    ----------
    options : ManagedMemoryResourceOptions or dict, optional
        Make a pool of its own, owned by this resource. By default the driver's current pool for managed memory is used,
        which belongs to the whole process and is never destroyed from here.

    Raises
    ------
    TypeError, ValueError
        If an option is wrong, or names a device that is not there.
    RuntimeError
        If there is no driver, or the NUMA node shall be that of the current device and there is none.
    CUDAError
        If the driver refuses, for one because there is no such NUMA node.

    Notes
    -----
    Buffers are of type :class:`ManagedBuffer`. Safe from any thread. The memory is the host's to use once the stream of
    the allocation was waited for, and until the buffer is closed. Managed pools cannot be shared with other processes.

    Examples
    --------
    >>> mr = ManagedMemoryResource({"preferred_location": 0})
    >>> mr.preferred_location
    (<ManagedMemoryLocationType.DEVICE: 'device'>, 0)
    """

    def __init__(self, options: ManagedMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        ...

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> ManagedBuffer:
        """Allocate managed memory in the order of a stream. The call waits for nothing.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : Stream
            The memory can be used by work that is put into this stream from now on, and by the host once that stream
            was waited for. It is recorded: the release is ordered behind its work.

        Returns
        -------
        ManagedBuffer
            The new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is None or no stream. No driver call is
            made.
        RuntimeError
            If the resource or the stream is closed, or the stream is being captured; the capture goes on.
        CUDAError
            If the driver refuses. Out of memory is answered once the queue of releases is empty.

        Notes
        -----
        Safe from any thread, with or without a current context.

        Examples
        --------
        >>> buffer = mr.allocate(1024, stream=stream)  # doctest: +SKIP
        >>> buffer.prefetch(Host(), stream=stream)
        """

    @property
    def device_id(self) -> int:
        """int: ordinal of the preferred device, -1 where no device is preferred."""

    @property
    def preferred_location(self) -> tuple[ManagedMemoryLocationType, int | None] | None:
        """tuple or None: where the memory preferably lies, as (ManagedMemoryLocationType, number), None for nowhere.

        The number is the ordinal of a device, a NUMA node, or None for the host as a whole.
        """

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_managed(self) -> bool:
        """bool: True."""
