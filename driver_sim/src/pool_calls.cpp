// SPDX-License-Identifier: Apache-2.0
// The functions on pools: making them, attributes, access, allocating and freeing.
#include "graph.h"
#include "pool.h"

#include <cstring>

namespace sim {

namespace {

bool is_host(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

CUresult default_pool_of(const CUmemLocation &location, CUmemAllocationType type, Pool *&pool) {
    Driver &d = driver();
    if (type == CU_MEM_ALLOCATION_TYPE_PINNED && location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = d.device(location.id);
        if (!device)
            return CUDA_ERROR_INVALID_VALUE;
        pool = default_pool(*device);
        return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    Pool *&known = d.default_pools[{int(type), int(location.type), location.id}];
    if (!known) {
        CUmemPoolProps properties{};
        properties.allocType = type;
        properties.location = location;
        if (CUresult bad = make_pool(properties, known)) {
            known = nullptr;
            return bad;
        }
        known->is_default = true;
        d.pools.insert(known);
    }
    pool = known;
    return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr *dptr, std::size_t bytes, Pool &pool, Stream &stream) {
    Address address;
    if (CUresult bad = pool_allocate(pool, stream, bytes, address))
        return bad;
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult capture_allocation(CUdeviceptr *dptr, std::size_t bytes, Stream &stream) {
    Address address;
    if (CUresult bad = sim::capture_allocation(stream, bytes, address))
        return bad;
    *dptr = address;
    return CUDA_SUCCESS;
}

Pool *current_pool(Device &device) {
    if (!device.current_pool)
        device.current_pool = default_pool(device);
    return device.current_pool;
}

CUresult check_pool_access(const Pool &pool, const CUmemAccessDesc &access) {
    bool none = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = driver().device(access.location.id);
        // A pool cannot be taken from the device it is located at.
        bool own = none && device == pool.device && !pool.managed();
        return !device || own ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    }
    if (!pool.managed() && !pool.at_host())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_host(access.location.type))
        return CUDA_ERROR_INVALID_VALUE;
    return none && pool.at_host() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

}  // namespace

CUresult known_pool(CUmemoryPool handle, Pool *&pool) {
    pool = reinterpret_cast<Pool *>(handle);
    return driver().pools.count(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Pool *default_pool(Device &device) {
    if (!device.default_pool) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device.ordinal;
        Pool *pool;
        if (make_pool(properties, pool))
            return nullptr;
        pool->is_default = true;
        device.default_pool = pool;
        driver().pools.insert(pool);
    }
    return device.default_pool;
}

DRIVER_CALL("cuMemPoolCreate", cuMemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps *poolProps),
            (pool, poolProps)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!pool || !poolProps)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
        poolProps->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned handles = unsigned(poolProps->handleTypes);
    if (handles & ~unsigned(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_INVALID_VALUE;
    if (handles && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->maxSize && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    // Asking for fabric handles is refused when one is exported, other than by cuMemCreate.
    if (handles && poolProps->location.type == CU_MEM_LOCATION_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    Pool *made;
    if (CUresult bad = make_pool(*poolProps, made))
        return bad;
    d.pools.insert(made);
    *pool = reinterpret_cast<CUmemoryPool>(made);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemPoolDestroy", cuMemPoolDestroy, 11020, (CUmemoryPool pool), (pool)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (p->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->imported) {
        // Also where it was opened twice, and while the last free waits in a queue.
        if (p->occupied)
            return CUDA_ERROR_INVALID_VALUE;
        if (--p->times_opened)
            return CUDA_SUCCESS;
    } else if (p->occupied) {
        d.pools_destroyed_in_use++;
    }
    destroy_pool(*p);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemPoolTrimTo", cuMemPoolTrimTo, 11020, (CUmemoryPool pool, size_t minBytesToKeep),
            (pool, minBytesToKeep)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    trim(*p, minBytesToKeep);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemPoolGetAttribute", cuMemPoolGetAttribute, 11020,
            (CUmemoryPool pool, CUmemPool_attribute attr, void *value), (pool, attr, value)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!value || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    auto number = [value](std::uint64_t n) {
        std::memcpy(value, &n, sizeof n);
        return CUDA_SUCCESS;
    };
    auto flag = [value](int n) {
        std::memcpy(value, &n, sizeof n);
        return CUDA_SUCCESS;
    };
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return flag(p->reuse_follow_events);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return flag(p->reuse_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return flag(p->reuse_internal);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return number(p->threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return number(p->reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return number(p->reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return number(p->used);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return number(p->used_high);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// Partly: the reuse attributes are kept, and change nothing.
DRIVER_CALL("cuMemPoolSetAttribute", cuMemPoolSetAttribute, 11020,
            (CUmemoryPool pool, CUmemPool_attribute attr, void *value), (pool, attr, value)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!value || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    int flag;
    std::memcpy(&flag, value, sizeof flag);
    std::uint64_t number = 0;
    if (attr >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        std::memcpy(&number, value, sizeof number);
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        p->reuse_follow_events = flag != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        p->reuse_opportunistic = flag != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse_internal = flag != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        p->threshold = number;
        return CUDA_SUCCESS;
    // The high marks can be reset, and not be set to anything else.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (number)
            return CUDA_ERROR_INVALID_VALUE;
        p->reserved_high = p->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (number)
            return CUDA_ERROR_INVALID_VALUE;
        p->used_high = p->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_CALL("cuMemPoolGetAccess", cuMemPoolGetAccess, 11020,
            (CUmemAccess_flags * flags, CUmemoryPool memPool, CUmemLocation *location), (flags, memPool, location)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(memPool, p))
        return bad;
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && driver().device(location->id))
        *flags = CUmemAccess_flags(p->rights.device[location->id]);
    else if (is_host(location->type))
        *flags = CUmemAccess_flags(p->rights.host);
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemPoolSetAccess", cuMemPoolSetAccess, 11020,
            (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), (pool, map, count)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (count && !map)
        return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i)
        if (CUresult bad = check_pool_access(*p, map[i]))
            return bad;
    for (std::size_t i = 0; i < count; ++i) {
        bool of_device = map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        (of_device ? p->rights.device[map[i].location.id] : p->rights.host) = std::uint8_t(map[i].flags);
    }
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool * pool_out, CUdevice dev),
            (pool_out, dev)) {
    Lock lock(driver().mutex);
    Device *device = driver().device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().has_pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    *pool_out = reinterpret_cast<CUmemoryPool>(default_pool(*device));
    return *pool_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DRIVER_CALL("cuDeviceGetMemPool", cuDeviceGetMemPool, 11020, (CUmemoryPool * pool, CUdevice dev), (pool, dev)) {
    Lock lock(driver().mutex);
    Device *device = driver().device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver().has_pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    *pool = reinterpret_cast<CUmemoryPool>(current_pool(*device));
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DRIVER_CALL("cuDeviceSetMemPool", cuDeviceSetMemPool, 11020, (CUdevice dev, CUmemoryPool pool), (dev, pool)) {
    Lock lock(driver().mutex);
    Device *device = driver().device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (p->device != device || p->managed())
        return CUDA_ERROR_INVALID_VALUE;
    device->current_pool = p;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemGetDefaultMemPool", cuMemGetDefaultMemPool, 13000,
            (CUmemoryPool * pool_out, CUmemLocation *location, CUmemAllocationType type),
            (pool_out, location, type)) {
    Lock lock(driver().mutex);
    if (!pool_out || !location)
        return CUDA_ERROR_INVALID_VALUE;
    Pool *p;
    if (CUresult bad = default_pool_of(*location, type, p))
        return bad;
    *pool_out = reinterpret_cast<CUmemoryPool>(p);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemGetMemPool", cuMemGetMemPool, 13000,
            (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type), (pool, location, type)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    Pool *p;
    if (CUresult bad = default_pool_of(*location, type, p))
        return bad;
    if (p->device && !p->managed())
        p = current_pool(*p->device);
    else if (Pool *current = d.current_pools[{int(type), int(location->type), location->id}])
        p = current;
    *pool = reinterpret_cast<CUmemoryPool>(p);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemSetMemPool", cuMemSetMemPool, 13000,
            (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool), (location, type, pool)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!location || p->properties.allocType != type || p->properties.location.type != location->type ||
        p->properties.location.id != location->id)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->device && !p->managed())
        p->device->current_pool = p;
    else
        d.current_pools[{int(type), int(location->type), location->id}] = p;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuMemAllocAsync", cuMemAllocAsync, 11020, (CUdeviceptr * dptr, size_t bytesize, CUstream stream),
                      (dptr, bytesize, stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return capture_allocation(dptr, bytesize, *s);
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!driver().has_pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    Pool *pool = current_pool(*s->context->device);
    return pool ? allocate(dptr, bytesize, *pool, *s) : CUDA_ERROR_OUT_OF_MEMORY;
}

// Partly: in a capture, the memory is of the device of the stream, whatever the pool.
DRIVER_CALL_ON_STREAM("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync, 11020,
                      (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream stream),
                      (dptr, bytesize, pool, stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!dptr || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture) {
        if (CUresult bad = check_capture_whole(*s))
            return bad;
        // A graph has memory of its own, which is that of a device and private to the process.
        if (p->at_host() || p->properties.handleTypes)
            return CUDA_ERROR_NOT_SUPPORTED;
        return capture_allocation(dptr, bytesize, *s);
    }
    if (CUresult bad = check_capture_allows())
        return bad;
    return allocate(dptr, bytesize, *p, *s);
}

// In the child of a fork this alone of all frees reports success, and does nothing.
DRIVER_CALL_ON_STREAM_NEEDING(Needs::Nothing, "cuMemFreeAsync", cuMemFreeAsync, 11020,
                              (CUdeviceptr dptr, CUstream stream), (dptr, stream)) {
    if (!ready.load(std::memory_order_acquire))
        return forked() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    Driver &d = driver();
    Lock lock(d.mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (s->capture)
        return capture_free(*s, dptr);
    if (CUresult bad = check_capture_allows())
        return bad;
    if (dptr == 0)
        return CUDA_SUCCESS;
    if (graph_block_at(dptr))
        return free_graph_memory(lock, *s, dptr);
    if (Pool *pool = pool_at(dptr))
        return pool_free(lock, *pool, *s, dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return free_plain_in_order(lock, *s, dptr);
}

}  // namespace sim
