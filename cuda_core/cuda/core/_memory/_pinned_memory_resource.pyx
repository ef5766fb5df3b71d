# SPDX-License-Identifier: Apache-2.0
"""``PinnedMemoryResource``: page-locked host memory from a pool, in the order of streams."""

cimport cython
from cuda.bindings cimport cydriver
from libc.string cimport memset

from cuda.core._memory._host_pool cimport devices_with_host_pools, grant_access, nearest_node
from cuda.core._memory._import_access cimport prepare_access
from cuda.core._memory._memory_pool cimport return_to_pool
from cuda.core._memory._pool_handle cimport PoolReference
from cuda.core._memory._shared_pool cimport _SharedPool, enable_sending, open_pool

from cuda.core._memory._option_checks import accept

__all__ = ["PinnedMemoryResource"]


@cython.no_gc_clear
cdef class PinnedMemoryResource(_SharedPool):
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

    _page_locked = True  # asked by copies

    def __cinit__(self):
        self._node = -1
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is PinnedMemoryResource:
            self.deleter = return_to_pool

    def __init__(self, options: PinnedMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        cdef cydriver.CUmemLocation location
        cdef cydriver.CUmemPoolProps properties
        cdef int node = -1
        if options is None:
            devices = devices_with_host_pools(False)
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
            location.id = 0
            self.take_current_pool(&location, cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
        else:
            from cuda.core._memory._pool_options import PinnedMemoryResourceOptions

            chosen = accept(PinnedMemoryResourceOptions, options, "options")
            if chosen.numa_id is not None:
                node = chosen.numa_id
            elif chosen.ipc_enabled:
                node = nearest_node()
            devices = devices_with_host_pools(node >= 0)
            memset(&properties, 0, sizeof(properties))
            properties.allocType = cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
            if node >= 0:
                properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
                properties.location.id = node
            properties.maxSize = chosen.max_size
            if chosen.ipc_enabled:
                enable_sending()
                properties.handleTypes = (
                    cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )
            self.take_own_pool(&properties)
        try:
            grant_access(self._pool, devices, self._reference is not None)
        except BaseException:
            self._pool = NULL
            self._reference = None
            raise
        self._node = node

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
        return open_pool(cls, alloc_handle, -1)

    @classmethod
    def _open_received(cls, ordinal, handle):
        if ordinal is not None:
            raise ValueError(f"what was received is no pool at the host: it names device {ordinal}")
        return open_pool(cls, handle, -1)

    cdef int begin_importing(self, PoolReference reference, int ordinal) except -1:
        return prepare_access(reference.handle, devices_with_host_pools(True))

    @property
    def device_id(self) -> int:
        """int: -1, as the memory belongs to no device."""
        return -1

    @property
    def numa_id(self) -> int:
        """int: the NUMA node that the memory is taken from; -1 where the system or another process decides."""
        return self._node

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""
        return True
