# SPDX-License-Identifier: Apache-2.0
# Made from _pinned_memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``PinnedMemoryResource``: page-locked host memory from a pool, in the order of streams."""

from cuda.core._memory import PinnedMemoryResourceOptions
from cuda.core._memory._ipc import IPCAllocationHandle
from cuda.core._memory._shared_pool import _SharedPool
from typing import Any

__all__ = ["PinnedMemoryResource"]

class PinnedMemoryResource(_SharedPool):
    """Allocates page-locked host memory, which host and devices can use, from a pool and in the order of streams.

    Parameters
    ----------
    options : PinnedMemoryResourceOptions or dict, optional
        Make a pool of its own, owned by this resource. By default the driver's current pool for host memory is used,
        which belongs to the whole process and is never destroyed from here.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If an option is wrong.
    RuntimeError
        If no device supports pools at the host (``LegacyPinnedMemoryResource`` does without), there is no driver, or
        the NUMA node shall be that of the current device and there is none.
    CUDAError
        If the driver refuses, for one because there is no such NUMA node.

    Notes
    -----
    Every device that supports it gets read and write access to the pool; without that the driver lets none use its
    memory. Safe from any thread.

    It is shared with other processes like a :class:`DeviceMemoryResource`.

    The memory is the host's to use once the stream of the allocation was waited for, and until the buffer is closed.

    Examples
    --------
    >>> with PinnedMemoryResource().allocate(4096, stream=stream) as buffer:
    ...     stream.sync()
    ...     memoryview(buffer)[:5] = b"hello"
    """

    def __init__(self, options: PinnedMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        ...

    @classmethod
    def from_allocation_handle(cls, alloc_handle: int | IPCAllocationHandle) -> PinnedMemoryResource:
        """Open the pool of another process, to import its buffers.

        Parameters
        ----------
        alloc_handle : IPCAllocationHandle or int
            The exporter's :attr:`allocation_handle` as it was received, or the number of a file descriptor. Either
            stays the caller's to close.

        Returns
        -------
        PinnedMemoryResource
            A resource that can import and not allocate. For a handle with the UUID of a registered resource, that one;
            else the new one is registered with the UUID.

        Raises
        ------
        TypeError, ValueError, OSError
            If the handle is wrong, or the descriptor is not open or none of a memory pool.
        RuntimeError
            If the handle is closed.
        CUDAError
            If the driver refuses. Nothing is left.

        Examples
        --------
        >>> there = PinnedMemoryResource.from_allocation_handle(handle)  # doctest: +SKIP
        >>> there.is_mapped  # doctest: +SKIP
        True
        """

    @property
    def device_id(self) -> int:
        """int: -1, as the memory belongs to no device."""

    @property
    def numa_id(self) -> int:
        """int: the NUMA node that the memory is taken from; -1 where the system or another process decides."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""
