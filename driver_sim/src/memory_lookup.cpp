// SPDX-License-Identifier: Apache-2.0
// What an address belongs to, and whether work may use it.
#include "graph.h"
#include "pool.h"

namespace sim {

namespace {

bool may(const Rights &rights, const Device &device, bool write) {
    unsigned have = rights.device[device.ordinal];
    unsigned want = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    return (have & want) == want;
}

bool is_peer(const Context &context, const Device &owner) {
    if (context.device == &owner)
        return true;
    for (const Context *peer : context.peers)
        if (peer->device == &owner)
            return true;
    return false;
}

}  // namespace

bool in_our_space(Address address) {
    Driver &d = driver();
    return d.virtual_space.contains(address) || d.plain_space.contains(address) || d.pool_space.contains(address);
}

bool our_space_in(Address address, std::size_t bytes) {
    Driver &d = driver();
    return d.virtual_space.overlaps(address, bytes) || d.plain_space.overlaps(address, bytes) ||
           d.pool_space.overlaps(address, bytes);
}

Place place_of(Address address) {
    Driver &d = driver();
    Place place;
    if (d.virtual_space.contains(address)) {
        if (Mapping *mapping = mapping_at(address)) {
            place.kind = PlaceKind::Virtual;
            place.base = mapping->base;
            place.size = mapping->size;
            place.device = mapping->chunk->device;
            place.mapping = mapping;
            place.id = mapping->chunk->handle;
        }
        return place;
    }
    if (Pool *pool = pool_at(address)) {
        if (pool->imported) {
            auto import = pool->imports.upper_bound(address);
            if (import == pool->imports.begin())
                return place;
            --import;
            if (address >= import->first + import->second.bytes)
                return place;
            place.kind = PlaceKind::Pool;
            place.base = import->first;
            place.size = import->second.bytes;
            place.freed = import->second.freed;
            place.id = import->second.id;
            place.device = pool->device;
            place.pool = pool;
            return place;
        }
        Block &block = pool->blocks[pool->blocks.containing(std::uint32_t((address - pool->base) / pool_unit))];
        Address base = pool->base + std::size_t(block.start) * pool_unit;
        if (!block.held() || address >= base + block.bytes)
            return place;
        place.kind = PlaceKind::Pool;
        place.base = base;
        place.size = block.bytes;
        place.device = pool->device;
        place.pool = pool;
        place.freed = block.state == BlockState::Freeing;
        place.id = block.id;
        return place;
    }
    if (GraphBlock *block = graph_block_at(address)) {
        place.kind = PlaceKind::Graph;
        place.base = block->base;
        place.size = block->bytes;
        place.device = block->device;
        place.freed = !block->armed;
        place.id = block->id;
        return place;
    }
    auto it = d.allocations.upper_bound(address);
    if (it == d.allocations.begin())
        return place;
    Allocation &allocation = (--it)->second;
    if (address >= allocation.base + allocation.size)
        return place;
    static constexpr PlaceKind kinds[] = {PlaceKind::Plain, PlaceKind::Host, PlaceKind::Registered,
                                          PlaceKind::Managed};
    place.kind = kinds[int(allocation.kind)];
    place.base = allocation.base;
    place.size = allocation.size;
    place.device = allocation.device;
    place.allocation = &allocation;
    place.id = allocation.id;
    return place;
}

bool is_pageable(Address address) {
    return address && !in_our_space(address) && place_of(address).kind == PlaceKind::Unknown;
}

CUresult check_use(Address address, std::size_t bytes, Context &context, Use use, bool captured) {
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (address == 0 || address + bytes < address)
        return CUDA_ERROR_INVALID_VALUE;
    bool write = use == Use::Write || use == Use::CopyWrite || use == Use::DeviceWrite;
    bool host_side = use == Use::CopyRead || use == Use::CopyWrite, copy = use != Use::Write;
    Address at = address, end = address + bytes;
    while (at < end) {
        Place place = place_of(at);
        switch (place.kind) {
        case PlaceKind::Unknown:
            return copy && at == address && !in_our_space(at) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case PlaceKind::Virtual:
            // A copy may go through the host, where the host may use it.
            if (!may(place.mapping->rights, *context.device, write) &&
                !(host_side && place.mapping->rights.host >= (write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                    : CU_MEM_ACCESS_FLAGS_PROT_READ)))
                return CUDA_ERROR_INVALID_VALUE;
            break;
        case PlaceKind::Graph:
            if (captured)  // its memory is there when the graph runs
                return CUDA_SUCCESS;
            if (place.freed)
                return CUDA_ERROR_INVALID_VALUE;
            break;
        case PlaceKind::Plain:
            // Copies between devices are staged where the devices are not peers.
            if (!copy && !is_peer(context, *place.device))
                return CUDA_ERROR_INVALID_VALUE;
            break;
        case PlaceKind::Pool:
            // Freed memory is refused as soon as the free is submitted: what comes later is out of order.
            if (place.freed)
                return CUDA_ERROR_INVALID_VALUE;
            // Memory of a host pool is host memory to copies, whatever the access of the device.
            if (copy && place.pool->at_host()) {
                if (!host_side)
                    return CUDA_ERROR_INVALID_VALUE;
            } else if (!place.pool->managed() && !may(place.pool->rights, *context.device, write)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            break;
        default:
            break;
        }
        at = place.base + place.size;
        // Only mappings may be used across their borders.
        if (at < end && place.kind != PlaceKind::Virtual)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

bool still_there(Address address, std::size_t bytes, const Context &context, bool write) {
    Address at = address, end = address + bytes;
    while (at < end) {
        Place place = place_of(at);
        if (at < page_size)
            return false;
        if (place.kind == PlaceKind::Unknown)
            return !in_our_space(at);
        // An unmap takes the access rights with it: another mapping at the address does not help.
        if (place.kind == PlaceKind::Virtual && !may(place.mapping->rights, *context.device, write) &&
            !place.mapping->rights.host)
            return false;
        // Memory of a graph that no launch has given any.
        if (place.kind == PlaceKind::Graph && !has_memory(*graph_block_at(at)))
            return false;
        at = place.base + place.size;
    }
    return true;
}

}  // namespace sim
