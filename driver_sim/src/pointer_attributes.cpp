// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <cstring>

namespace sim {

namespace {

template <class T> CUresult give(void *data, T value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

bool at_host(const Place &place) {
    if (place.kind == PlaceKind::Virtual)
        return !place.mapping->chunk->device;
    if (place.kind == PlaceKind::Pool)
        return place.pool->at_host();
    return place.kind == PlaceKind::Host || place.kind == PlaceKind::Registered;
}

bool is_managed(const Place &place) {
    return place.kind == PlaceKind::Managed || (place.kind == PlaceKind::Pool && place.pool->managed());
}

// The address space that the address was given out with: a reservation for virtual memory.
void range_of(const Place &place, Address address, Address &base, std::size_t &size) {
    base = place.base;
    size = place.size;
    if (place.kind == PlaceKind::Virtual)
        if (Reservation *reservation = reservation_at(address)) {
            base = reservation->base;
            size = reservation->size;
        }
}

unsigned access_flags(const Place &place) {
    if (!place.mapping)
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    Context *context = current_context();
    return place.mapping->rights.device[context ? context->device->ordinal : 0];
}

unsigned long long handle_types(const Place &place) {
    if (place.mapping)
        return place.mapping->chunk->properties.requestedHandleTypes;
    return place.pool && !place.pool->imported ? place.pool->properties.handleTypes : 0;
}

// Of the memory that the driver has taken at once, of which an allocation may be a part.
std::size_t mapping_size(const Place &place) {
    std::size_t unit = place.pool ? pool_chunk : granule;
    return (place.size + unit - 1) / unit * unit;
}

CUresult attribute_of(const Place &place, Address address, CUpointer_attribute attribute, void *data) {
    Address range_base;
    std::size_t range_size;
    range_of(place, address, range_base, range_size);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return give(data, reinterpret_cast<CUcontext>(place.allocation ? place.allocation->context : nullptr));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return give(data, unsigned(at_host(place) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return give(data, CUdeviceptr(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!at_host(place) && !is_managed(place))
            return CUDA_ERROR_INVALID_VALUE;
        return give(data, reinterpret_cast<void *>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return give(data, unsigned(is_managed(place)));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return give(data, static_cast<unsigned long long>(place.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return give(data, unsigned(is_managed(place)));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return give(data, int(place.device ? place.device->ordinal : 0));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return give(data, unsigned(place.kind == PlaceKind::Plain));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return give(data, CUdeviceptr(range_base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return give(data, range_size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return give(data, unsigned(1));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return give(data, unsigned(place.kind == PlaceKind::Plain));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return give(data, access_flags(place));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return give(data, handle_types(place));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return give(data, reinterpret_cast<CUmemoryPool>(place.pool));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return give(data, mapping_size(place));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return give(data, CUdeviceptr(place.base));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return give(data, static_cast<unsigned long long>(place.id));
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

std::size_t bytes_of(CUpointer_attribute attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

}  // namespace

// Partly: no tokens for other devices (P2P_TOKENS).
DRIVER_CALL("cuPointerGetAttribute", cuPointerGetAttribute, 4000,
            (void *data, CUpointer_attribute attribute, CUdeviceptr ptr), (data, attribute, ptr)) {
    Lock lock(driver().mutex);
    Place place = place_of(ptr);
    if (!data || place.freed || place.kind == PlaceKind::Unknown)
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(place, ptr, attribute, data);
}

// Unlike the singular form this is no error for an unknown pointer: the values say that it is none.
DRIVER_CALL("cuPointerGetAttributes", cuPointerGetAttributes, 7000,
            (unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr),
            (numAttributes, attributes, data, ptr)) {
    Lock lock(driver().mutex);
    if (numAttributes == 0 || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; ++i)
        if (!data[i] || attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS || attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
            attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE)
            return CUDA_ERROR_INVALID_VALUE;
    Place place = place_of(ptr);
    bool known = place.kind != PlaceKind::Unknown && !place.freed;
    for (unsigned i = 0; i < numAttributes; ++i) {
        if (known && attribute_of(place, ptr, attributes[i], data[i]) == CUDA_SUCCESS)
            continue;
        switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            break;  // left as they were
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            give(data[i], int(CU_DEVICE_INVALID));
            break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            give(data[i], reinterpret_cast<void *>(known ? 0 : ptr));
            break;
        default:
            std::memset(data[i], 0, bytes_of(attributes[i]));
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace sim
