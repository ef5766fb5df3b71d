// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations, physical chunks, mappings and access rights.
#include "driver.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace sim {

namespace {

bool is_whole(std::size_t bytes) { return bytes != 0 && bytes % granule == 0; }

Chunk *chunk_of(CUmemGenericAllocationHandle handle) {
    auto found = driver().chunks.find(handle);
    return found == driver().chunks.end() ? nullptr : found->second;
}

void drop_if_unused(Chunk *chunk) {
    if (chunk->references || chunk->mappings)
        return;
    Driver &d = driver();
    d.chunks.erase(chunk->handle);
    if (!chunk->imported) {
        if (chunk->device)
            chunk->device->give_back(chunk->size);
        else
            d.host_used -= chunk->size;
    }
    if (chunk->descriptor >= 0)
        close(chunk->descriptor);
    else
        chunk_store().give_back(chunk->offset, chunk->size);
    delete chunk;
}

// Whether reservations without a gap between them cover the range.
bool is_reserved(Address base, std::size_t size) {
    Address at = base, end;
    if (__builtin_add_overflow(base, size, &end))
        return false;
    while (at < end) {
        Reservation *reservation = reservation_at(at);
        if (!reservation)
            return false;
        at = reservation->base + reservation->size;
    }
    return true;
}

std::map<Address, Mapping>::iterator first_mapping_in(Address base) {
    auto &mappings = driver().mappings;
    auto it = mappings.upper_bound(base);
    if (it != mappings.begin()) {
        auto before = std::prev(it);
        if (before->second.base + before->second.size > base)
            return before;
    }
    return it;
}

bool any_mapping_in(Address base, std::size_t size) {
    auto it = first_mapping_in(base);
    return it != driver().mappings.end() && it->first < base + size;
}

bool is_node(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// The one NUMA node of the simulated host is 0.
CUresult check_properties(const CUmemAllocationProp &p, Device *&device) {
    device = nullptr;
    if (p.type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    constexpr unsigned known_types =
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if (unsigned(p.requestedHandleTypes) & ~known_types)
        return CUDA_ERROR_INVALID_VALUE;
    switch (p.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        device = driver().device(p.location.id);
        if (!device)
            return CUDA_ERROR_INVALID_DEVICE;
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
        if (p.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (p.location.id != 0)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (unsigned(p.requestedHandleTypes) & CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_PERMITTED;
    return CUDA_SUCCESS;
}

}  // namespace

Mapping *mapping_at(Address address) {
    auto it = first_mapping_in(address);
    if (it == driver().mappings.end() || it->first > address)
        return nullptr;
    return &it->second;
}

Reservation *reservation_at(Address address) {
    auto &reservations = driver().reservations;
    auto it = reservations.upper_bound(address);
    if (it == reservations.begin())
        return nullptr;
    --it;
    return address < it->second.base + it->second.size ? &it->second : nullptr;
}

DRIVER_CALL("cuMemGetAllocationGranularity", cuMemGetAllocationGranularity, 10020,
            (size_t * granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option),
            (granularity, prop, option)) {
    if (!granularity || !prop || unsigned(option) > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = granule;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemAddressReserve", cuMemAddressReserve, 10020,
            (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags),
            (ptr, size, alignment, addr, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (!ptr || !is_whole(size) || (alignment & (alignment - 1)) || addr % granule || flags ||
        (alignment && addr % alignment))
        return CUDA_ERROR_INVALID_VALUE;
    // A hint that is not free is ignored, not refused.
    Address base = 0;
    if (addr && d.virtual_space.take_at(addr, size))
        base = addr;
    else
        base = d.virtual_space.take(size, alignment);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    d.reservations[base] = {base, size};
    *ptr = base;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemAddressFree", cuMemAddressFree, 10020, (CUdeviceptr ptr, size_t size), (ptr, size)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    auto found = d.reservations.find(ptr);
    if (found == d.reservations.end() || found->second.size != size || any_mapping_in(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    d.reservations.erase(found);
    d.virtual_space.give_back(ptr, size);
    return CUDA_SUCCESS;
}

// Partly: compression, usage and GPUDirect flags are kept, and change nothing; no fabric handles.
DRIVER_CALL("cuMemCreate", cuMemCreate, 10020,
            (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
             unsigned long long flags),
            (handle, size, prop, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (!handle || !prop || !is_whole(size) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    Device *device;
    if (CUresult bad = check_properties(*prop, device))
        return bad;
    if (device ? !device->take(size) : size > d.host_total - d.host_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::size_t offset = chunk_store().take(size);
    if (offset == ChunkStore::none) {
        if (device)
            device->give_back(size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!device)
        d.host_used += size;
    auto *chunk = new Chunk;
    chunk->handle = d.next_chunk++;
    chunk->properties = *prop;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST) {  // given out as what it is
        chunk->properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        chunk->properties.location.id = 0;
    }
    chunk->size = size;
    chunk->offset = offset;
    chunk->device = device;
    chunk->references = 1;
    d.chunks[chunk->handle] = chunk;
    *handle = chunk->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemRelease", cuMemRelease, 10020, (CUmemGenericAllocationHandle handle), (handle)) {
    Lock lock(driver().mutex);
    Chunk *chunk = chunk_of(handle);
    if (!chunk || chunk->references == 0)
        return CUDA_ERROR_INVALID_VALUE;
    --chunk->references;
    drop_if_unused(chunk);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle, 11000,
            (CUmemGenericAllocationHandle * handle, void *addr), (handle, addr)) {
    Lock lock(driver().mutex);
    Mapping *mapping = mapping_at(Address(addr));
    if (!handle || !mapping)
        return CUDA_ERROR_INVALID_VALUE;
    ++mapping->chunk->references;
    *handle = mapping->chunk->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemGetAllocationPropertiesFromHandle", cuMemGetAllocationPropertiesFromHandle, 10020,
            (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), (prop, handle)) {
    Lock lock(driver().mutex);
    Chunk *chunk = chunk_of(handle);
    if (!prop || !chunk)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = chunk->properties;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemMap", cuMemMap, 10020,
            (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags),
            (ptr, size, offset, handle, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Chunk *chunk = chunk_of(handle);
    if (!chunk || flags || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || size != chunk->size)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (ptr % granule)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_reserved(ptr, size) || any_mapping_in(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    // The process, not the device, may be out of mappings here (about 65,000).
    if (!map_chunk(*chunk, ptr))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ++chunk->mappings;
    Mapping &mapping = d.mappings[ptr];
    mapping.base = ptr;
    mapping.size = size;
    mapping.chunk = chunk;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemUnmap", cuMemUnmap, 10020, (CUdeviceptr ptr, size_t size), (ptr, size)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (size == 0 || !is_reserved(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    // A mapping is unmapped whole or not at all; holes are no error.
    auto first = first_mapping_in(ptr), last = first;
    for (; last != d.mappings.end() && last->first < ptr + size; ++last)
        if (last->first < ptr || last->first + last->second.size > ptr + size)
            return CUDA_ERROR_INVALID_VALUE;
    for (auto it = first; it != last; it = d.mappings.erase(it)) {
        // What stays mapped must keep its memory: another chunk would get it, under two addresses.
        if (!AddressSpace::withdraw(it->second.base, it->second.size))
            return CUDA_ERROR_OPERATING_SYSTEM;
        --it->second.chunk->mappings;
        drop_if_unused(it->second.chunk);
    }
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemSetAccess", cuMemSetAccess, 10020,
            (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count), (ptr, size, desc, count)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (size == 0 || !desc || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    // The range must begin with a mapping and end with one; between them there may be holes.
    if (!is_reserved(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    auto first = d.mappings.find(ptr), last = first;
    Address at = 0;
    for (; last != d.mappings.end() && last->first < ptr + size; ++last)
        at = last->first + last->second.size;
    if (at != ptr + size)
        return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
        unsigned flags = desc[i].flags;
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        CUmemLocation location = desc[i].location;
        if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
            if (!d.device(location.id))
                return CUDA_ERROR_INVALID_VALUE;
        } else if (is_node(location.type)) {
            for (auto it = first; it != last; ++it)
                if (it->second.chunk->device && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
                    return CUDA_ERROR_NOT_SUPPORTED;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (auto it = first; it != last; ++it)
        for (std::size_t i = 0; i < count; ++i) {
            if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
                it->second.rights.device[desc[i].location.id] = std::uint8_t(desc[i].flags);
            else
                it->second.rights.host = std::uint8_t(desc[i].flags);
        }
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemGetAccess", cuMemGetAccess, 10020,
            (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), (flags, location, ptr)) {
    Lock lock(driver().mutex);
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    bool of_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (of_device ? !driver().device(location->id) : !is_node(location->type))
        return CUDA_ERROR_INVALID_DEVICE;
    Mapping *mapping = mapping_at(ptr);
    if (!mapping)
        return CUDA_ERROR_INVALID_VALUE;
    const Rights &rights = mapping->rights;
    *flags = of_device ? rights.device[location->id] : rights.host;
    // Asked for the host as a whole, the driver answers with what any device may do.
    if (location->type == CU_MEM_LOCATION_TYPE_HOST)
        *flags |= *std::max_element(std::begin(rights.device), std::end(rights.device));
    return CUDA_SUCCESS;
}

}  // namespace sim
