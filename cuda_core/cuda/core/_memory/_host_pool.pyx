# SPDX-License-Identifier: Apache-2.0
"""What pools at the host need beside making them: a NUMA node, and rights for the devices.

A pool at the host gives no device access until it is granted (recorded on an H200).
"""

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._context cimport current_context, device_attribute, device_count, device_of_context
from cuda.core._driver cimport check


cdef list devices_with_host_pools(bint on_a_node):
    """Return the ordinals of the devices that can use pools at the host.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    cdef cydriver.CUdevice_attribute attribute = (
        cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED
        if on_a_node
        else cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED
    )
    cdef list able = []
    for ordinal in range(device_count()):
        if device_attribute(ordinal, attribute):
            able.append(ordinal)
    if not able:
        raise RuntimeError(
            "no device supports memory pools at the host; LegacyPinnedMemoryResource allocates without a pool"
        )
    return able


cdef int nearest_node() except -1:
    """Return the NUMA node that is nearest to the device of the current context.

    Raises
    ------
    RuntimeError
        If no context is current, or the system has no NUMA nodes.
    """
    cdef cydriver.CUcontext context = current_context()
    cdef int ordinal, node
    if context == NULL:
        raise RuntimeError(
            "the NUMA node is that of the current device, and no context is current; call Device.set_current() first, "
            "or name the node"
        )
    ordinal = device_of_context(context)
    node = device_attribute(ordinal, cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
    if node < 0:
        raise RuntimeError(f"device {ordinal} names no NUMA node of the host; name the node")
    return node


cdef cydriver.CUmemAccessDesc* rights_for(list devices) except NULL:
    """Return the right to read and write for each of these devices. The caller frees them."""
    cdef int place
    cdef cydriver.CUmemAccessDesc* rights = <cydriver.CUmemAccessDesc*>calloc(
        len(devices), sizeof(cydriver.CUmemAccessDesc)
    )
    if rights == NULL:
        raise MemoryError("no memory for access rights")
    for place in range(len(devices)):
        rights[place].location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        rights[place].location.id = devices[place]
        rights[place].flags = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return rights


cdef int grant_access(cydriver.CUmemoryPool pool, list devices, bint own) except -1:
    """Let these devices use a pool. Of one that is not our own, only what nobody has is granted."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUmemAccessDesc* rights = rights_for(devices)
    cdef cydriver.CUmemAccess_flags has = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    cdef int place, wanted = 0, count = len(devices)
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            wanted = count
            if not own:
                wanted = 0
                function = b"cuMemPoolGetAccess"
                for place in range(count):
                    result = cydriver.cuMemPoolGetAccess(&has, pool, &rights[place].location)
                    if result != cydriver.CUresult.CUDA_SUCCESS:
                        break
                    if has == cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE:
                        rights[wanted] = rights[place]
                        wanted += 1
            if result == cydriver.CUresult.CUDA_SUCCESS and wanted:
                function = b"cuMemPoolSetAccess"
                result = cydriver.cuMemPoolSetAccess(pool, rights, wanted)
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    free(rights)
    return check(result, function)
