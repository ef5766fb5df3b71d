// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, and host memory of the program that is registered.
#include "driver.h"

#include <sys/mman.h>

namespace sim {

namespace {

CUresult allocate(void **pointer, std::size_t bytes, unsigned flags) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (CUresult bad = check_capture_allows())
        return bad;
    constexpr unsigned known_flags =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pointer || (flags & ~known_flags))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = nullptr;
    if (bytes == 0)
        return CUDA_SUCCESS;
    Address base;
    // With unified addressing, all pinned memory is mapped for the device.
    if (CUresult bad =
            allocate_memory(MemoryKind::Host, bytes, *context, flags | CU_MEMHOSTALLOC_DEVICEMAP, base))
        return bad;
    *pointer = reinterpret_cast<void *>(base);
    return CUDA_SUCCESS;
}

// Virtual memory that the device may use is taken for mapped host memory.
bool open_to_device(const Place &place) {
    Context *context = current_context();
    return place.mapping && context && place.mapping->rights.device[context->device->ordinal];
}

// Whether the process has all the pages, and none of them is an address that the driver gives out.
bool can_be_registered(Address base, std::size_t bytes) {
    Address end;
    if (__builtin_add_overflow(base, bytes, &end) || our_space_in(base, bytes))
        return false;
    Address first = base / page_size * page_size;
    return msync(reinterpret_cast<void *>(first), end - first, MS_ASYNC) == 0;  // writes nothing, looks at all
}

bool is_host(const Place &place) { return place.kind == PlaceKind::Host || place.kind == PlaceKind::Registered; }

}  // namespace

DRIVER_CALL("cuMemAllocHost", cuMemAllocHost_v2, 3020, (void **pp, size_t bytesize), (pp, bytesize)) {
    return allocate(pp, bytesize, 0);
}

DRIVER_CALL("cuMemHostAlloc", cuMemHostAlloc, 2020, (void **pp, size_t bytesize, unsigned int Flags),
            (pp, bytesize, Flags)) {
    return allocate(pp, bytesize, Flags);
}

// Works without a current context; waits for the work of the context that the memory belongs to.
DRIVER_CALL("cuMemFreeHost", cuMemFreeHost, 2000, (void *p), (p)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (Context *current = current_context())
        if (!current->alive)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!p)
        return CUDA_SUCCESS;
    auto found = d.allocations.find(Address(p));
    if (found == d.allocations.end() || found->second.kind != MemoryKind::Host)
        return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t id = found->second.id;
    wait_for_context(lock, *found->second.context);
    found = d.allocations.find(Address(p));
    if (found == d.allocations.end() || found->second.id != id)
        return CUDA_ERROR_INVALID_VALUE;
    end_memory(found);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemHostGetFlags", cuMemHostGetFlags, 2030, (unsigned int *pFlags, void *p), (pFlags, p)) {
    Lock lock(driver().mutex);
    Place place = place_of(Address(p));
    bool mapped = place.kind == PlaceKind::Managed || open_to_device(place);
    if (!pFlags || !(is_host(place) || mapped))
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = mapped ? CU_MEMHOSTALLOC_DEVICEMAP : place.allocation->flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer_v2, 3020,
            (CUdeviceptr * pdptr, void *p, unsigned int Flags), (pdptr, p, Flags)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    Place place = place_of(Address(p));
    if (!pdptr || Flags || !(is_host(place) || open_to_device(place)))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = place.mapping ? place.base : Address(p);
    return CUDA_SUCCESS;
}

// Partly: I/O memory and read-only memory are treated like any other.
DRIVER_CALL("cuMemHostRegister", cuMemHostRegister_v2, 6050, (void *p, size_t bytesize, unsigned int Flags),
            (p, bytesize, Flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (CUresult bad = check_capture_allows())
        return bad;
    constexpr unsigned known_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                     CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    Address base = Address(p);
    if (!p || bytesize == 0 || (Flags & ~known_flags) || in_our_space(base))
        return CUDA_ERROR_INVALID_VALUE;
    auto next = d.allocations.lower_bound(base);
    if (next != d.allocations.end() && next->first - base < bytesize)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (next != d.allocations.begin()) {
        auto before = std::prev(next);
        if (before->second.base + before->second.size > base)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    if (!can_be_registered(base, bytesize))
        return CUDA_ERROR_INVALID_VALUE;
    Allocation &allocation = d.allocations[base];
    allocation.kind = MemoryKind::RegisteredHost;
    allocation.base = base;
    allocation.size = bytesize;
    allocation.device = context->device;
    allocation.context = context;
    allocation.flags = Flags | CU_MEMHOSTREGISTER_DEVICEMAP;
    allocation.id = d.next_id++;
    ++d.kinds_live[int(MemoryKind::RegisteredHost)];
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemHostUnregister", cuMemHostUnregister, 4000, (void *p), (p)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (CUresult bad = check_capture_allows())
        return bad;
    Place place = place_of(Address(p));
    if (place.kind == PlaceKind::Unknown)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (place.kind != PlaceKind::Registered || place.base != Address(p))
        return CUDA_ERROR_INVALID_VALUE;
    wait_for_context(lock, *context);
    auto found = d.allocations.find(Address(p));
    if (found == d.allocations.end() || found->second.id != place.id)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    end_memory(found);
    return CUDA_SUCCESS;
}

}  // namespace sim
