# SPDX-License-Identifier: Apache-2.0
# Made from _device_memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``DeviceMemoryResource``: device memory from a pool, in the order of streams."""

from collections.abc import Iterable
from cuda.core._device import Device
from cuda.core._memory import DeviceMemoryResourceOptions
from cuda.core._memory._ipc import IPCAllocationHandle
from cuda.core._memory._peer_access import PeerAccessibleBySetProxy
from cuda.core._memory._shared_pool import _SharedPool
from typing import Any

__all__ = ["DeviceMemoryResource"]

class DeviceMemoryResource(_SharedPool):
    """Allocates device memory from a pool of the driver, in the order of streams.

    Parameters
    ----------
    device_id : Device or int
        The device.
    options : DeviceMemoryResourceOptions or dict, optional
        Make a pool of its own, owned by this resource. By default the device's current pool is used, which belongs to
        the whole process: it is never destroyed from here. If its release threshold is still 0, it is set to keep
        everything; one that somebody has set stays.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If an argument is wrong, or names a device that is not there.
    CUDAError
        If the driver refuses.
    RuntimeError
        If there is no driver.

    Notes
    -----
    Safe from any thread, and without a current context. Making one disturbs no capture.

    A pool that was made with ``ipc_enabled=True`` can be used by other processes. Resources and buffers are sent
    through ``multiprocessing``, started with spawn or forkserver; or the parts travel by themselves:
    :attr:`allocation_handle`, which the other process gives to :meth:`from_allocation_handle`, and ``ipc_descriptor``
    of each buffer, for :meth:`Buffer.from_ipc_descriptor`. A resource that was opened in this way cannot allocate. The
    exporter's buffer must stay open until all importers have closed theirs.

    Examples
    --------
    >>> mr = DeviceMemoryResource(0)
    >>> with mr.allocate(1 << 20, stream=stream) as buffer:
    ...     buffer.ownership
    <Ownership.OWNED: 1>
    """

    def __init__(self, device_id: Device | int, options: DeviceMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        ...

    @classmethod
    def from_allocation_handle(cls, device_id: Device | int, alloc_handle: int | IPCAllocationHandle) -> DeviceMemoryResource:
        """Open the pool of another process, to import its buffers.

        Parameters
        ----------
        device_id : Device or int
            The device that the pool is of.
        alloc_handle : IPCAllocationHandle or int
            The exporter's :attr:`allocation_handle` as it was received, or the number of a file descriptor. Either
            stays the caller's to close.

        Returns
        -------
        DeviceMemoryResource
            A resource that can import and not allocate. For a handle with the UUID of a registered resource, that one;
            else the new one is registered with the UUID.

        Raises
        ------
        TypeError, ValueError, OSError
            If an argument is wrong, the descriptor is not open or none of a memory pool, or the pool is none of the
            device.
        RuntimeError
            If the handle is closed.
        CUDAError
            If the driver refuses. Nothing is left.

        Examples
        --------
        >>> there = DeviceMemoryResource.from_allocation_handle(0, handle)  # doctest: +SKIP
        >>> there.is_mapped  # doctest: +SKIP
        True
        """

    @property
    def peer_accessible_by(self) -> PeerAccessibleBySetProxy:
        """PeerAccessibleBySetProxy: the other devices that may use the memory, asked of the driver each time.

        A set of :class:`Device`; ordinals are accepted, too. It can be changed in place, or assigned as a whole: one
        call of the driver, for all memory of the pool. The device of the pool itself is never in it, and ignored where
        it is given.

        Raises
        ------
        TypeError, ValueError
            If something assigned is no device, not there, or cannot reach this one. Nothing has changed then.
        RuntimeError
            If the resource is closed.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> mr.peer_accessible_by = [1]  # doctest: +SKIP
        >>> mr.peer_accessible_by.discard(1)
        """

    @peer_accessible_by.setter
    def peer_accessible_by(self, devices: Iterable[Device | int]) -> None:
        ...

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""
