# SPDX-License-Identifier: Apache-2.0
"""What the driver knows of an address."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._driver cimport check, ensure_driver


cdef tuple pointer_attributes(uintptr_t pointer):
    """Return where memory lives: (device id or -1, device accessible, host accessible, managed)."""
    cdef cydriver.CUpointer_attribute names[3]
    cdef void* values[3]
    cdef unsigned int memory_type = 0
    cdef int ordinal = -1
    cdef unsigned int managed = 0
    cdef cydriver.CUresult result
    ensure_driver()
    names[0] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    names[1] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    names[2] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    values[0], values[1], values[2] = &memory_type, &ordinal, &managed
    with nogil:
        result = cydriver.cuPointerGetAttributes(3, names, values, pointer)
    check(result, b"cuPointerGetAttributes")
    if memory_type == 0:  # not the driver's: ordinary memory of the host
        return (-1, False, True, False)
    host = memory_type == cydriver.CUmemorytype.CU_MEMORYTYPE_HOST
    return (-1 if host and not managed else ordinal, True, host or bool(managed), bool(managed))
