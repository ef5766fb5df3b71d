// SPDX-License-Identifier: Apache-2.0
// Devices and what they say of themselves.
#include "driver.h"

#include <cstring>

namespace sim {

namespace {

struct Attribute {
    CUdevice_attribute attribute;
    int value;
};

#define ATTRIBUTE(name, value) {CU_DEVICE_ATTRIBUTE_##name, value}

// As an H200 with driver 13.0 answers. Attributes that are not listed are 0.
const Attribute attributes[] = {
    ATTRIBUTE(MAX_THREADS_PER_BLOCK, 1024),
    ATTRIBUTE(MAX_BLOCK_DIM_X, 1024),
    ATTRIBUTE(MAX_BLOCK_DIM_Y, 1024),
    ATTRIBUTE(MAX_BLOCK_DIM_Z, 64),
    ATTRIBUTE(MAX_GRID_DIM_X, 2147483647),
    ATTRIBUTE(MAX_GRID_DIM_Y, 65535),
    ATTRIBUTE(MAX_GRID_DIM_Z, 65535),
    ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    ATTRIBUTE(TOTAL_CONSTANT_MEMORY, 65536),
    ATTRIBUTE(WARP_SIZE, 32),
    ATTRIBUTE(MAX_PITCH, 2147483647),
    ATTRIBUTE(MAX_REGISTERS_PER_BLOCK, 65536),
    ATTRIBUTE(CLOCK_RATE, 1980000),
    ATTRIBUTE(TEXTURE_ALIGNMENT, 512),
    ATTRIBUTE(GPU_OVERLAP, 1),
    ATTRIBUTE(MULTIPROCESSOR_COUNT, 132),
    ATTRIBUTE(CAN_MAP_HOST_MEMORY, 1),
    ATTRIBUTE(CONCURRENT_KERNELS, 1),
    ATTRIBUTE(ECC_ENABLED, 1),
    ATTRIBUTE(MEMORY_CLOCK_RATE, 3201000),
    ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH, 6144),
    ATTRIBUTE(L2_CACHE_SIZE, 62914560),
    ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    ATTRIBUTE(ASYNC_ENGINE_COUNT, 3),
    ATTRIBUTE(UNIFIED_ADDRESSING, 1),
    ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR, 9),
    ATTRIBUTE(COMPUTE_CAPABILITY_MINOR, 0),
    ATTRIBUTE(STREAM_PRIORITIES_SUPPORTED, 1),
    ATTRIBUTE(GLOBAL_L1_CACHE_SUPPORTED, 1),
    ATTRIBUTE(LOCAL_L1_CACHE_SUPPORTED, 1),
    ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472),
    ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    ATTRIBUTE(MANAGED_MEMORY, 1),
    ATTRIBUTE(HOST_NATIVE_ATOMIC_SUPPORTED, 0),
    ATTRIBUTE(PAGEABLE_MEMORY_ACCESS, 0),
    ATTRIBUTE(CONCURRENT_MANAGED_ACCESS, 1),
    ATTRIBUTE(COMPUTE_PREEMPTION_SUPPORTED, 1),
    ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    ATTRIBUTE(COOPERATIVE_LAUNCH, 1),
    ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448),
    ATTRIBUTE(CAN_FLUSH_REMOTE_WRITES, 1),
    ATTRIBUTE(HOST_REGISTER_SUPPORTED, 1),
    ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    ATTRIBUTE(GENERIC_COMPRESSION_SUPPORTED, 1),
    ATTRIBUTE(MAX_PERSISTING_L2_CACHE_SIZE, 39321600),
    ATTRIBUTE(MAX_ACCESS_POLICY_WINDOW_SIZE, 134213632),
    ATTRIBUTE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1),
    ATTRIBUTE(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    ATTRIBUTE(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1),
    ATTRIBUTE(MEMORY_POOLS_SUPPORTED, 1),
    ATTRIBUTE(GPU_DIRECT_RDMA_SUPPORTED, 1),
    ATTRIBUTE(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1),
    ATTRIBUTE(GPU_DIRECT_RDMA_WRITES_ORDERING, 100),
    ATTRIBUTE(MEMPOOL_SUPPORTED_HANDLE_TYPES, 9),
    ATTRIBUTE(CLUSTER_LAUNCH, 1),
    ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED, 1),
    ATTRIBUTE(NUMA_ID, -1),
    ATTRIBUTE(HOST_NUMA_ID, 0),
    ATTRIBUTE(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    ATTRIBUTE(HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
    ATTRIBUTE(HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    ATTRIBUTE(HOST_MEMORY_POOLS_SUPPORTED, 1),
};

}  // namespace

DRIVER_CALL("cuDeviceGet", cuDeviceGet, 2000, (CUdevice * device, int ordinal), (device, ordinal)) {
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetCount", cuDeviceGetCount, 2000, (int *count), (count)) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = int(driver().devices.size());
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetName", cuDeviceGetName, 2000, (char *name, int len, CUdevice dev), (name, len, dev)) {
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    std::strncpy(name, "NVIDIA H200 (simulated)", std::size_t(len) - 1);
    name[len - 1] = 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetUuid", cuDeviceGetUuid_v2, 11040, (CUuuid * uuid, CUdevice dev), (uuid, dev)) {
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    std::memcpy(uuid->bytes, "simulateddevice", 15);
    uuid->bytes[15] = char(dev);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceTotalMem", cuDeviceTotalMem_v2, 3020, (size_t * bytes, CUdevice dev), (bytes, dev)) {
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    Device *device = driver().device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device->total;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetAttribute", cuDeviceGetAttribute, 2000, (int *pi, CUdevice_attribute attrib, CUdevice dev),
            (pi, attrib, dev)) {
    if (!pi || int(attrib) <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *pi = 0;
    for (const Attribute &known : attributes)
        if (known.attribute == attrib)
            *pi = known.value;
    return CUDA_SUCCESS;
}

}  // namespace sim
