# SPDX-License-Identifier: Apache-2.0
"""``ManagedMemoryResource``: memory that moves between host and devices by itself, from a pool."""

cimport cython
from cuda.bindings cimport cydriver
from libc.string cimport memset

from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._host_pool cimport nearest_node
from cuda.core._memory._memory_pool cimport _MemPool, return_to_pool

from cuda.core._memory._managed_buffer import ManagedBuffer
from cuda.core._memory._option_checks import accept
from cuda.core.typing import ManagedMemoryLocationType

__all__ = ["ManagedMemoryResource"]


cdef object _resolve(object options):
    """Return the preferred location as (type, number), or None for no preference."""
    options._check()
    kind, number = options.preferred_location_type, options.preferred_location
    if kind is None:
        if number is None:
            return None
        kind = ManagedMemoryLocationType.HOST if number < 0 else ManagedMemoryLocationType.DEVICE
    if kind is ManagedMemoryLocationType.HOST:
        return (kind, None)
    if kind is ManagedMemoryLocationType.DEVICE:
        return (kind, device_argument(number))
    return (kind, nearest_node() if number is None else number)


@cython.no_gc_clear
cdef class ManagedMemoryResource(_MemPool):
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

    def __cinit__(self):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is ManagedMemoryResource:
            self.deleter = return_to_pool
        self.buffer_type = ManagedBuffer

    def __init__(self, options: ManagedMemoryResourceOptions | dict[str, Any] | None = None) -> None:
        cdef cydriver.CUmemLocation location
        cdef cydriver.CUmemPoolProps properties
        preferred = None
        if options is None:
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
            location.id = 0
            self.take_current_pool(&location, cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED)
        else:
            from cuda.core._memory._pool_options import ManagedMemoryResourceOptions

            preferred = _resolve(accept(ManagedMemoryResourceOptions, options, "options"))
            memset(&properties, 0, sizeof(properties))
            properties.allocType = cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
            properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
            if preferred is not None:
                kind, number = preferred
                if kind is ManagedMemoryLocationType.DEVICE:
                    properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                elif kind is ManagedMemoryLocationType.HOST:
                    properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
                else:
                    properties.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
                properties.location.id = 0 if number is None else number
            self.take_own_pool(&properties)
        self._preferred = preferred
        # Where it lies may change; of a device it is only as far as that one is preferred.
        self._ordinal = (
            preferred[1] if preferred is not None and preferred[0] is ManagedMemoryLocationType.DEVICE else -1
        )

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
        return _MemPool.allocate(self, size, stream=stream)

    @property
    def device_id(self) -> int:
        """int: ordinal of the preferred device, -1 where no device is preferred."""
        return self._ordinal

    @property
    def preferred_location(self) -> tuple[ManagedMemoryLocationType, int | None] | None:
        """tuple or None: where the memory preferably lies, as (ManagedMemoryLocationType, number), None for nowhere.

        The number is the ordinal of a device, a NUMA node, or None for the host as a whole.
        """
        return self._preferred

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_managed(self) -> bool:
        """bool: True."""
        return True
