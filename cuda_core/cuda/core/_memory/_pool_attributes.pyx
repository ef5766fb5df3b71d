# SPDX-License-Identifier: Apache-2.0
"""The attributes of a memory pool, asked of the driver each time one is read."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t

from cuda.core._driver cimport check

_NAMES = (
    "release_threshold",
    "reserved_mem_current",
    "reserved_mem_high",
    "reuse_allow_internal_dependencies",
    "reuse_allow_opportunistic",
    "reuse_follow_event_dependencies",
    "used_mem_current",
    "used_mem_high",
)


cdef class _MemPoolAttributes:
    """What a memory pool holds, and how it reuses memory. Get one from the ``attributes`` of a resource.

    Notes
    -----
    Safe from any thread. Reading disturbs no capture. Once the resource is closed, reading raises RuntimeError.
    """

    cdef object _resource

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("the attributes of a pool cannot be made directly; they come from a memory resource")

    @staticmethod
    def _of(resource):
        cdef _MemPoolAttributes self = _MemPoolAttributes.__new__(_MemPoolAttributes)
        self._resource = resource
        return self

    cdef uint64_t _read(self, cydriver.CUmemPool_attribute attribute) except? 0xFFFFFFFF:
        # The driver writes 4 bytes of some and 8 of others.
        cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        cdef uint64_t value = 0
        cdef cydriver.CUresult result
        cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
        address, _reference = self._resource._hold_pool()
        cdef cydriver.CUmemoryPool pool = <cydriver.CUmemoryPool><size_t>address
        with nogil:
            result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuMemPoolGetAttribute"
                result = cydriver.cuMemPoolGetAttribute(pool, attribute, &value)
                cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        check(result, function)
        return value

    @property
    def reuse_follow_event_dependencies(self) -> bool:
        """bool: whether memory freed in one stream is used in another that an event has ordered behind the free."""
        return bool(self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES))

    @property
    def reuse_allow_opportunistic(self) -> bool:
        """bool: whether memory is used in another stream once its free has run."""
        return bool(self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC))

    @property
    def reuse_allow_internal_dependencies(self) -> bool:
        """bool: whether the driver lets one stream wait for another to use its freed memory."""
        return bool(self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES))

    @property
    def release_threshold(self) -> int:
        """int: how many unused bytes the pool keeps when a stream or the device is waited for."""
        return self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)

    @property
    def reserved_mem_current(self) -> int:
        """int: bytes of memory that the pool has at the moment."""
        return self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)

    @property
    def reserved_mem_high(self) -> int:
        """int: the most bytes of memory that the pool had at one time."""
        return self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)

    @property
    def used_mem_current(self) -> int:
        """int: bytes that are allocated from the pool at the moment."""
        return self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

    @property
    def used_mem_high(self) -> int:
        """int: the most bytes that were allocated from the pool at one time."""
        return self._read(cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH)

    def __repr__(self) -> str:
        cdef list values = []
        for name in _NAMES:
            values.append(f"{name}={getattr(self, name)}")
        return f"{type(self).__name__}({', '.join(values)})"
