# SPDX-License-Identifier: Apache-2.0
"""``Device`` and ``Host`` as the driver names places, and back."""

import os

from cuda.bindings cimport cydriver

from cuda.core._error_text import shown
from cuda.core._host import Host

# Set by the device module when it is imported; modules below it cannot import it.
device_factory = None

cdef str _NODES = "/sys/devices/system/node"


cdef bint is_place(object value) except -1:
    return isinstance(value, Host) or (device_factory is not None and isinstance(value, device_factory))


cdef int _ensure_node(int node) except -1:
    """Refuse a NUMA node that this machine does not have, where the kernel tells which it has."""
    if os.path.isdir(f"{_NODES}/node{node}") or not os.path.isdir(f"{_NODES}/node0"):
        return 0
    raise ValueError(f"numa_id must be a NUMA node of this machine, got {node}")


cdef cydriver.CUmemLocation location_argument(object place, bint check_node) except *:
    """Return the driver's name of a place.

    Raises
    ------
    TypeError
        If ``place`` is neither a Device nor a Host.
    ValueError
        If it is None, or ``check_node`` is set and the machine has no such NUMA node.
    """
    cdef cydriver.CUmemLocation location
    location.id = 0
    if isinstance(place, Host):
        if place.is_numa_current:
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        elif place.numa_id is None:
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        else:
            if place.numa_id > 0x7FFFFFFF:
                raise ValueError(f"numa_id must be a NUMA node of this machine, got {shown(place.numa_id)}")
            location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
            location.id = place.numa_id
            if check_node:
                _ensure_node(location.id)
        return location
    if place is None:
        raise ValueError("location is required")
    if not is_place(place):
        raise TypeError(f"location must be a Device, Host, or None; got {type(place).__name__}: {shown(place)}")
    location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = place.device_id
    return location


cdef object place_of_location(int kind, int number):
    """Return the Device or Host that the driver names, None where it names no place."""
    if kind == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE:
        return device_factory(number)
    if kind == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST:
        return Host()
    if kind == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return Host(number)
    if kind == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return Host.numa_current()
    return None


cdef object place_of_ordinal(int ordinal):
    """Return the place behind an ordinal of the driver, -1 for the host."""
    return Host() if ordinal == -1 else device_factory(ordinal)
