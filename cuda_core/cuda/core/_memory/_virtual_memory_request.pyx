# SPDX-License-Identifier: Apache-2.0
"""From options to what the driver is asked for: properties of a chunk, its rights, and whether a device can."""

from cuda.bindings cimport cydriver
from libc.string cimport memset
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector

from cuda.core._context cimport device_attribute, device_count
from cuda.core._driver cimport check
from cuda.core._memory._virtual_parts cimport ChunkRequest

from cuda.core._error_text import shown
from cuda.core.typing import (
    VirtualMemoryAccessType,
    VirtualMemoryGranularityType,
    VirtualMemoryHandleType,
    VirtualMemoryLocationType,
)

cdef extern from "<sched.h>" nogil:
    int getcpu(unsigned int* cpu, unsigned int* node)

_LOCATIONS = {
    VirtualMemoryLocationType.DEVICE: cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE,
    VirtualMemoryLocationType.HOST: cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST,
    # The driver refuses to allocate at "current" itself, so the node is named.
    VirtualMemoryLocationType.HOST_NUMA: cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA,
    VirtualMemoryLocationType.HOST_NUMA_CURRENT: cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA,
}
_HANDLES = {
    None: cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE,
    VirtualMemoryHandleType.POSIX_FD: cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    VirtualMemoryHandleType.FABRIC: cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC,
}
_RIGHTS = {
    VirtualMemoryAccessType.READ_WRITE: cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    VirtualMemoryAccessType.READ: cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ,
}


cdef tuple facts_of(int ordinal):
    """Return what decides whether options fit a device, asked once so that later checks call no driver."""
    return (
        device_count(),
        device_attribute(
            ordinal, cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        ),
        device_attribute(
            ordinal, cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        ),
    )


cdef int check_fit(int ordinal, tuple facts, object options) except -1:
    """Refuse options that the device cannot honour. Makes no driver call, but for fabric handles."""
    count, virtual_memory, rdma = facts
    if not virtual_memory:
        raise RuntimeError(f"VirtualMemoryResource requires CUDA VMM API support, and device {ordinal} has none")
    if options.gpu_direct_rdma and not rdma:
        raise RuntimeError(f"GPU Direct RDMA is not supported for virtual memory on device {ordinal}")
    if options.handle_type == VirtualMemoryHandleType.FABRIC and not device_attribute(
        ordinal, cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
    ):
        raise RuntimeError(f"handle_type 'fabric' is not supported on device {ordinal}")
    for peer in options.peers:
        if peer >= count:
            raise ValueError(f"peers must be below the number of devices, {count}, got {shown(peer)}")
    return 0


cdef int prepare_request(int ordinal, object options, ChunkRequest* request, size_t* granularity) except -1:
    """Turn options into what the driver wants, and ask it for the granularity."""
    cdef cydriver.CUmemAccessDesc description
    cdef cydriver.CUresult result
    cdef unsigned int node = 0
    cdef cydriver.CUmemAllocationGranularity_flags flag = (
        cydriver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        if options.granularity == VirtualMemoryGranularityType.MINIMUM
        else cydriver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    )
    memset(&request.properties, 0, sizeof(request.properties))
    location = options.location_type
    request.properties.type = cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    request.properties.location.type = <cydriver.CUmemLocationType><int>_LOCATIONS[location]
    request.properties.location.id = ordinal
    if location == VirtualMemoryLocationType.HOST:
        request.properties.location.id = 0
    elif options.numa_id is not None:
        request.properties.location.id = options.numa_id
    elif location == VirtualMemoryLocationType.HOST_NUMA:
        request.properties.location.id = max(
            device_attribute(ordinal, cydriver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), 0
        )
    elif location == VirtualMemoryLocationType.HOST_NUMA_CURRENT:
        if getcpu(NULL, &node) != 0:
            raise OSError("the operating system did not tell the NUMA node of this thread")
        request.properties.location.id = node
    request.properties.requestedHandleTypes = (
        <cydriver.CUmemAllocationHandleType><int>_HANDLES[options.handle_type]
    )
    request.properties.allocFlags.gpuDirectRDMACapable = options.gpu_direct_rdma
    request.rights = make_shared[vector[cydriver.CUmemAccessDesc]]()
    if options.self_access is not None:
        description.location = request.properties.location
        description.flags = <cydriver.CUmemAccess_flags><int>_RIGHTS[options.self_access]
        request.rights.get().push_back(description)
    if options.peer_access is not None:
        for peer in options.peers:
            if location == VirtualMemoryLocationType.DEVICE and peer == ordinal:
                continue
            description.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            description.location.id = peer
            description.flags = <cydriver.CUmemAccess_flags><int>_RIGHTS[options.peer_access]
            request.rights.get().push_back(description)
    with nogil:
        result = cydriver.cuMemGetAllocationGranularity(granularity, &request.properties, flag)
    check(result, b"cuMemGetAllocationGranularity")
    return 0
