# SPDX-License-Identifier: Apache-2.0
# Made from _shared_pool.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What resources do whose pools can be shared between processes: export, import, registry, pickles."""

from cuda.core._memory._ipc import IPCAllocationHandle
from cuda.core._memory._memory_pool import _MemPool
from typing_extensions import Never
from typing_extensions import Self
from uuid import UUID

__all__ = []

class _SharedPool(_MemPool):
    """Base of the resources whose pools can be shared with other processes."""

    def close(self) -> None:
        """Give the pool up. Closing twice is harmless.

        Open buffers stay valid, also imported ones. A pool that this resource made or opened goes with the last of
        them, or now if there is none; the pool of a device stays. An opened pool is closed here alone: the exporter's
        is not affected. Nothing can be allocated or imported any more, and the registry forgets the resource.

        Raises
        ------
        CUDAError
            If the driver refuses to destroy the pool. The resource stays open, and can be closed again.

        Examples
        --------
        >>> pool = DeviceMemoryResource(device, {"max_size": 64 << 20})
        >>> pool.close()
        >>> pool.is_closed
        True
        """

    @property
    def is_mapped(self) -> bool:
        """bool: whether the pool is of another process, opened here to import buffers. False once it is closed."""

    @property
    def allocation_handle(self) -> IPCAllocationHandle:
        """IPCAllocationHandle: what another process needs to open the pool.

        It is made when it is first read, or after the last one was closed, and is closed with the last reference to it.

        Raises
        ------
        RuntimeError
            If the resource is closed, or was not made with ``ipc_enabled=True``.
        CUDAError
            If the driver refuses.
        """

    def register(self, uuid: UUID) -> Self:
        """Let the pool be found by its UUID in this process.

        Parameters
        ----------
        uuid : uuid.UUID
            The ``uuid`` of the exporter's resource.

        Returns
        -------
        DeviceMemoryResource or PinnedMemoryResource
            This resource, or the open one that was registered with the UUID before.

        Raises
        ------
        TypeError
            If ``uuid`` is no UUID, or another kind of resource is registered with it.
        ValueError
            If this resource has another UUID.
        RuntimeError
            If the resource is closed, or not IPC-enabled.

        Examples
        --------
        >>> there = DeviceMemoryResource.from_allocation_handle(device, handle)  # doctest: +SKIP
        >>> there.register(handle.uuid) is there  # doctest: +SKIP
        True
        """

    @classmethod
    def from_registry(cls, uuid: UUID) -> Self:
        """Return the resource that was registered with a UUID in this process.

        Parameters
        ----------
        uuid : uuid.UUID
            What the pool was registered with: the UUID of the exporter's resource.

        Raises
        ------
        TypeError
            If ``uuid`` is no UUID, or another kind of resource is registered with it.
        RuntimeError
            If there is none that is open.

        Examples
        --------
        >>> DeviceMemoryResource.from_registry(handle.uuid) is there  # doctest: +SKIP
        True
        """

    def __reduce__(self) -> tuple[object, ...]:
        ...

    def __copy__(self) -> Never:
        ...

    def __deepcopy__(self, memo: object) -> Never:
        ...
