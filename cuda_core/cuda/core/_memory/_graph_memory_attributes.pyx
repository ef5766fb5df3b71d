# SPDX-License-Identifier: Apache-2.0
"""How much memory graphs use on a device, asked of the driver each time an attribute is read."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t

from cuda.core._driver cimport check, ensure_driver

from cuda.core._error_text import shown

_NAMES = ("reserved_mem_current", "reserved_mem_high", "used_mem_current", "used_mem_high")


cdef class GraphMemoryResourceAttributes:
    """What the graphs of a device use. Get one from ``GraphMemoryResource.attributes``.

    Notes
    -----
    Safe from any thread. Reading disturbs no capture. The driver counts for the whole process.
    """

    cdef int _ordinal

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("GraphMemoryResourceAttributes cannot be made directly; read GraphMemoryResource.attributes")

    @staticmethod
    def _of(int ordinal):
        cdef GraphMemoryResourceAttributes self = GraphMemoryResourceAttributes.__new__(GraphMemoryResourceAttributes)
        self._ordinal = ordinal
        return self

    cdef uint64_t _read(self, cydriver.CUgraphMem_attribute attribute) except? 0xFFFFFFFF:
        cdef uint64_t value = 0
        cdef cydriver.CUresult result
        cdef int ordinal = self._ordinal
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceGetGraphMemAttribute(ordinal, attribute, &value)
        check(result, b"cuDeviceGetGraphMemAttribute")
        return value

    cdef int _reset(self, cydriver.CUgraphMem_attribute attribute, str name, object value) except -1:
        cdef uint64_t zero = 0
        cdef cydriver.CUresult result
        cdef int ordinal = self._ordinal
        if isinstance(value, bool) or value != 0:
            raise AttributeError(f"Attribute {name!r} may only be set to zero (got {shown(value)}).")
        ensure_driver()
        with nogil:
            result = cydriver.cuDeviceSetGraphMemAttribute(ordinal, attribute, &zero)
        check(result, b"cuDeviceSetGraphMemAttribute")
        return 0

    @property
    def reserved_mem_current(self) -> int:
        """int: bytes of the device that graphs hold at the moment."""
        return self._read(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)

    @property
    def reserved_mem_high(self) -> int:
        """int: the most bytes that graphs have held. Setting it to 0 makes it what they hold now."""
        return self._read(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)

    @reserved_mem_high.setter
    def reserved_mem_high(self, value: int) -> None:
        self._reset(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, "reserved_mem_high", value)

    @property
    def used_mem_current(self) -> int:
        """int: bytes that graphs use at the moment."""
        return self._read(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)

    @property
    def used_mem_high(self) -> int:
        """int: the most bytes that graphs have used. Setting it to 0 makes it what they use now."""
        return self._read(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)

    @used_mem_high.setter
    def used_mem_high(self, value: int) -> None:
        self._reset(cydriver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, "used_mem_high", value)

    def __repr__(self) -> str:
        cdef list values = []
        for name in _NAMES:
            values.append(f"{name}={getattr(self, name)}")
        return f"{type(self).__name__}({', '.join(values)})"
