// SPDX-License-Identifier: Apache-2.0
// Plain device memory, and the record that plain, host and managed memory share.
#include "graph.h"
#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace sim {

namespace {

std::size_t in_pages(std::size_t bytes) { return (bytes + page_size - 1) / page_size * page_size; }

// Whether any device may use it. Only virtual memory and host pools can be out of reach.
bool reachable(const Place &place) {
    if (!place.mapping && !(place.pool && place.pool->at_host()))
        return true;
    const Rights &rights = place.mapping ? place.mapping->rights : place.pool->rights;
    return std::any_of(std::begin(rights.device), std::end(rights.device), [](unsigned flags) { return flags != 0; });
}

}  // namespace

CUresult allocate_memory(MemoryKind kind, std::size_t bytes, Context &context, unsigned flags, Address &base) {
    Driver &d = driver();
    if (bytes > std::size_t(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::size_t pages = in_pages(bytes);
    bool on_host = kind == MemoryKind::Host;
    if (on_host ? pages > d.host_total - d.host_used : pages > context.device->total - context.device->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    base = d.plain_space.take(pages, page_size);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mprotect(reinterpret_cast<void *>(base), pages, PROT_READ | PROT_WRITE) != 0) {
        d.plain_space.give_back(base, pages);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (on_host ? d.host_used : context.device->used) += pages;
    d.freed_in_order.erase(base);
    Allocation &allocation = d.allocations[base];
    allocation.kind = kind;
    allocation.base = base;
    allocation.size = bytes;
    allocation.device = context.device;
    allocation.context = &context;
    allocation.flags = flags;
    allocation.id = d.next_id++;
    ++d.kinds_live[int(kind)];
    return CUDA_SUCCESS;
}

void end_memory(std::map<Address, Allocation>::iterator it) {
    Driver &d = driver();
    Allocation &allocation = it->second;
    --d.kinds_live[int(allocation.kind)];
    if (allocation.kind != MemoryKind::RegisteredHost) {
        std::size_t pages = in_pages(allocation.size);
        d.plain_space.end(allocation.base, pages);
        (allocation.kind == MemoryKind::Host ? d.host_used : allocation.device->used) -= pages;
    }
    d.allocations.erase(it);
}

void end_memory_of(Context &context) {
    auto &allocations = driver().allocations;
    for (auto it = allocations.begin(); it != allocations.end();) {
        auto next = std::next(it);
        if (it->second.context == &context)
            end_memory(it);
        it = next;
    }
}

DRIVER_CALL("cuMemAlloc", cuMemAlloc_v2, 3020, (CUdeviceptr * dptr, size_t bytesize), (dptr, bytesize)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!dptr || bytesize == 0)
        return CUDA_ERROR_INVALID_VALUE;
    Address base;
    if (CUresult bad = allocate_memory(MemoryKind::Plain, bytesize, *context, 0, base))
        return bad;
    *dptr = base;
    return CUDA_SUCCESS;
}

// Works without a current context; waits for the work of the context that the memory belongs to.
DRIVER_CALL("cuMemFree", cuMemFree_v2, 3020, (CUdeviceptr dptr), (dptr)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (Context *current = current_context())
        if (!current->alive)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (CUresult bad = check_capture_allows())
        return bad;
    if (dptr == 0)
        return CUDA_SUCCESS;
    if (graph_block_at(dptr))
        return free_graph_memory(dptr);
    if (Pool *pool = pool_at(dptr))  // waits for nothing
        return pool_free_now(*pool, dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (d.freed_in_order.erase(dptr))
        return CUDA_SUCCESS;
    auto found = d.allocations.find(dptr);
    if (found == d.allocations.end() ||
        (found->second.kind != MemoryKind::Plain && found->second.kind != MemoryKind::Managed))
        return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t id = found->second.id;
    wait_for_context(lock, *found->second.context);
    // Another thread may have freed it while this one waited.
    found = d.allocations.find(dptr);
    if (found == d.allocations.end() || found->second.id != id)
        return CUDA_ERROR_INVALID_VALUE;
    end_memory(found);
    return CUDA_SUCCESS;
}

// cuMemFreeAsync takes plain memory, too. Until the next wait, one cuMemFree of it still succeeds.
CUresult free_plain_in_order(Lock &lock, Stream &stream, Address base) {
    Driver &d = driver();
    auto found = d.allocations.find(base);
    if (found != d.allocations.end() && found->second.kind == MemoryKind::Managed)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (found == d.allocations.end() || found->second.kind != MemoryKind::Plain || d.freed_in_order.count(base))
        return CUDA_ERROR_INVALID_VALUE;
    d.freed_in_order.insert(base);
    Work work;
    work.run = [base, id = found->second.id] {
        auto &allocations = driver().allocations;
        auto still = allocations.find(base);
        if (still != allocations.end() && still->second.id == id)
            end_memory(still);
        return CUDA_SUCCESS;
    };
    return submit(lock, stream, std::move(work));
}

// Partly: what other processes have taken is not seen.
DRIVER_CALL("cuMemGetInfo", cuMemGetInfo_v2, 3020, (size_t * free, size_t *total), (free, total)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (free)
        *free = context->device->total - context->device->used;
    if (total)
        *total = context->device->total;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemGetAddressRange", cuMemGetAddressRange_v2, 3020,
            (CUdeviceptr * pbase, size_t *psize, CUdeviceptr dptr), (pbase, psize, dptr)) {
    Lock lock(driver().mutex);
    Place place = place_of(dptr);
    bool graph_without = place.kind == PlaceKind::Graph && place.freed;
    if (place.kind == PlaceKind::Unknown || graph_without || !reachable(place))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)  // a mapping of host memory has no base that the driver would tell
        *pbase = place.mapping && !place.device ? 0 : place.base;
    if (psize)
        *psize = place.size;
    return CUDA_SUCCESS;
}

}  // namespace sim
