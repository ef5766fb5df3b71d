# SPDX-License-Identifier: Apache-2.0
"""``DeviceMemoryResource``: device memory from a pool, in the order of streams."""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t
from libc.string cimport memset

from cuda.core._driver cimport check
from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._memory_pool cimport return_to_pool
from cuda.core._memory._pool_access cimport has_access, withdraw_all
from cuda.core._memory._pool_handle cimport PoolReference
from cuda.core._memory._shared_pool cimport _SharedPool, enable_sending, open_pool

from cuda.core._memory._option_checks import accept
from cuda.core._memory._peer_access import PeerAccessibleBySetProxy, replace_peers

__all__ = ["DeviceMemoryResource"]


cdef int _keep_unused_memory(cydriver.CUmemoryPool pool) except -1:
    """Let a pool keep what is unused. With the driver's threshold of 0 it returns everything at every wait.

    A threshold that somebody has set is left alone: the pool belongs to the whole process.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef uint64_t threshold = 0
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolGetAttribute"
            result = cydriver.cuMemPoolGetAttribute(
                pool, cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold
            )
            if result == cydriver.CUresult.CUDA_SUCCESS and threshold == 0:
                threshold = ~threshold
                function = b"cuMemPoolSetAttribute"
                result = cydriver.cuMemPoolSetAttribute(
                    pool, cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold
                )
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return check(result, function)


@cython.no_gc_clear
cdef class DeviceMemoryResource(_SharedPool):
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

    def __cinit__(self):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is DeviceMemoryResource:
            self.deleter = return_to_pool

    def __init__(
        self, device_id: Device | int, options: DeviceMemoryResourceOptions | dict[str, Any] | None = None
    ) -> None:
        cdef cydriver.CUmemLocation location
        cdef cydriver.CUmemPoolProps properties
        chosen = None
        if options is not None:
            from cuda.core._memory._pool_options import DeviceMemoryResourceOptions

            chosen = accept(DeviceMemoryResourceOptions, options, "options")
        cdef int ordinal = device_argument(device_id)
        if chosen is None:
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            location.id = ordinal
            self.take_current_pool(&location, cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
            _keep_unused_memory(self._pool)
        else:
            memset(&properties, 0, sizeof(properties))
            properties.allocType = cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            properties.location.id = ordinal
            properties.maxSize = chosen.max_size
            if chosen.ipc_enabled:
                enable_sending()
                properties.handleTypes = (
                    cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )
            self.take_own_pool(&properties)
            try:
                withdraw_all(self._pool, ordinal)
            except BaseException:
                self._pool = NULL
                self._reference = None
                raise
        self._ordinal = ordinal

    @classmethod
    def from_allocation_handle(
        cls, device_id: Device | int, alloc_handle: int | IPCAllocationHandle
    ) -> DeviceMemoryResource:
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
        return open_pool(cls, alloc_handle, device_argument(device_id))

    @classmethod
    def _open_received(cls, ordinal, handle):
        return open_pool(cls, handle, device_argument(ordinal))

    cdef int begin_importing(self, PoolReference reference, int ordinal) except -1:
        if not has_access(reference.handle.pool, ordinal):
            raise ValueError(f"the memory pool that was received is none of device {ordinal}")
        return withdraw_all(reference.handle.pool, ordinal)

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
        self.ensure_open()
        return PeerAccessibleBySetProxy(self)

    @peer_accessible_by.setter
    def peer_accessible_by(self, devices: Iterable[Device | int]) -> None:
        self.ensure_open()
        replace_peers(self, devices)

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated."""
        return self._ordinal

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""
        return False
