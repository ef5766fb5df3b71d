# SPDX-License-Identifier: Apache-2.0
"""``DeviceMemoryResource``: device memory from a pool, in the order of streams."""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t
from libc.string cimport memset

from cuda.core._driver cimport check
from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._memory_pool cimport _MemPool, return_to_pool

from cuda.core._memory._option_checks import accept
from cuda.core._memory._pool_options import DeviceMemoryResourceOptions

__all__ = ["DeviceMemoryResource", "DeviceMemoryResourceOptions"]


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
cdef class DeviceMemoryResource(_MemPool):
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

    Examples
    --------
    >>> mr = DeviceMemoryResource(0)  # doctest: +SKIP
    >>> with mr.allocate(1 << 20, stream=stream) as buffer:
    ...     buffer.ownership
    <Ownership.OWNED: 1>
    """

    def __cinit__(self, *args, **kwargs):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is DeviceMemoryResource:
            self.deleter = return_to_pool

    def __init__(self, device_id, options=None):
        cdef cydriver.CUmemLocation location
        cdef cydriver.CUmemPoolProps properties
        chosen = None if options is None else accept(DeviceMemoryResourceOptions, options, "options")
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
                properties.handleTypes = (
                    cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )
            self.take_own_pool(&properties)
        self._ordinal = ordinal

    @property
    def device_id(self):
        """int: ordinal of the device whose memory is allocated."""
        return self._ordinal

    @property
    def is_device_accessible(self):
        """bool: True."""
        return True

    @property
    def is_host_accessible(self):
        """bool: False."""
        return False
