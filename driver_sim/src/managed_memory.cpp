// SPDX-License-Identifier: Apache-2.0
// Managed memory: one address for host and devices. Where the pages are is only remembered.
#include "pool.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

bool is_host(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// A place that pages can be sent to. The one NUMA node is 0.
CUresult check_location(const CUmemLocation &location) {
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return driver().device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    if (!is_host(location.type))
        return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location.id != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// The advice that covers the bytes, or null when they are not managed memory.
Advice *advice_of(CUdeviceptr pointer, std::size_t bytes) {
    Place place = place_of(pointer);
    if (place.freed || bytes == 0 || bytes > place.size - (pointer - place.base))
        return nullptr;
    if (place.kind == PlaceKind::Managed)
        return &place.allocation->advice;
    if (place.kind == PlaceKind::Pool && place.pool->managed())
        return &place.pool->advice.try_emplace(place.base, Advice{false, place.pool->properties.location, {}, {}})
                    .first->second;
    return nullptr;
}

int number_of(const CUmemLocation &location) {
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location.id;
    return is_host(location.type) ? int(CU_DEVICE_CPU) : int(CU_DEVICE_INVALID);
}

CUresult prefetch(Lock &lock, Stream &stream, CUdeviceptr pointer, std::size_t bytes, CUmemLocation location) {
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult bad = check_location(location))
        return bad;
    if (!advice_of(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.run = [pointer, bytes, location] {
        if (Advice *advice = advice_of(pointer, bytes))
            advice->last_prefetch = location;
        return CUDA_SUCCESS;
    };
    return submit(lock, stream, std::move(work));
}

CUresult range_attribute(void *data, std::size_t size, CUmem_range_attribute attribute, const Advice &advice) {
    auto number = [&](int value) {
        if (size != sizeof value)
            return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(data, &value, sizeof value);
        return CUDA_SUCCESS;
    };
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        return number(advice.read_mostly);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        return number(number_of(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        return number(number_of(advice.last_prefetch));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        return number(advice.preferred.type);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        return number(advice.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        return number(advice.last_prefetch.type);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        return number(advice.last_prefetch.id);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
        if (size == 0 || size % sizeof(int))
            return CUDA_ERROR_INVALID_VALUE;
        std::vector<int> list(size / sizeof(int), int(CU_DEVICE_INVALID));
        std::size_t used = 0;
        for (int device : advice.accessed_by)
            if (used < list.size())
                list[used++] = device;
        std::memcpy(data, list.data(), size);
        return CUDA_SUCCESS;
    }
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace

// Partly: pages do not move; memory that is attached to the host is not closed to the device.
DRIVER_CALL("cuMemAllocManaged", cuMemAllocManaged, 6000, (CUdeviceptr * dptr, size_t bytesize, unsigned int flags),
            (dptr, bytesize, flags)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (!dptr || bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult bad = check_capture_allows())
        return bad;
    Address base;
    if (CUresult bad = allocate_memory(MemoryKind::Managed, bytesize, *context, flags, base))
        return bad;
    *dptr = base;
    return CUDA_SUCCESS;
}

// Partly: pages do not move; the place is remembered for the whole allocation.
DRIVER_CALL_ON_STREAM("cuMemPrefetchAsync", cuMemPrefetchAsync_v2, 12020,
                      (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream stream),
                      (devPtr, count, location, flags, stream)) {
    Lock lock(driver().mutex);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_not_capturing(*s))
        return bad;
    return prefetch(lock, *s, devPtr, count, location);
}

// Partly: advice holds for the whole allocation, not for the bytes named.
DRIVER_CALL("cuMemAdvise", cuMemAdvise_v2, 12020,
            (CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location),
            (devPtr, count, advice, location)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    bool accessed = advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    bool of_node = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    bool needs_place = accessed || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    if (location.type == CU_MEM_LOCATION_TYPE_INVALID || (accessed && of_node) ||
        (needs_place && check_location(location)))
        return CUDA_ERROR_INVALID_VALUE;
    Advice *known = advice_of(devPtr, count);
    bool of_pool = known && place_of(devPtr).kind == PlaceKind::Pool;
    if ((!known || of_pool) && of_node)  // advice for a node is taken for any memory
        return CUDA_SUCCESS;
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!known)
        return CUDA_ERROR_INVALID_VALUE;
    if (of_pool)  // which has the location that its pool was made with
        return CUDA_ERROR_NOT_SUPPORTED;
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        known->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        known->preferred = location;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        known->preferred = {};
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        known->accessed_by.insert(number_of(location));
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        known->accessed_by.erase(number_of(location));
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// Partly: answers for the whole allocation.
DRIVER_CALL("cuMemRangeGetAttribute", cuMemRangeGetAttribute, 8000,
            (void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr, size_t count),
            (data, dataSize, attribute, devPtr, count)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    Advice *advice = advice_of(devPtr, count);
    if (!data || !advice)
        return CUDA_ERROR_INVALID_VALUE;
    return range_attribute(data, dataSize, attribute, *advice);
}

// Partly: answers for the whole allocation.
DRIVER_CALL("cuMemRangeGetAttributes", cuMemRangeGetAttributes, 8000,
            (void **data, size_t *dataSizes, CUmem_range_attribute *attributes, size_t numAttributes,
             CUdeviceptr devPtr, size_t count),
            (data, dataSizes, attributes, numAttributes, devPtr, count)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    Advice *advice = advice_of(devPtr, count);
    if (!data || !dataSizes || !attributes || numAttributes == 0 || !advice)
        return CUDA_ERROR_INVALID_VALUE;
    if (std::find(data, data + numAttributes, nullptr) != data + numAttributes)
        return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < numAttributes; ++i)
        if (CUresult bad = range_attribute(data[i], dataSizes[i], attributes[i], *advice))
            return bad;
    return CUDA_SUCCESS;
}

static CUresult batch(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *indices,
                      size_t location_count, unsigned long long flags, CUstream stream, bool discard,
                      bool with_prefetch) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_not_capturing(*s))
        return bad;
    if (!pointers || !sizes || count == 0 || flags || s->is_legacy)
        return CUDA_ERROR_INVALID_VALUE;
    if (with_prefetch) {
        if (!locations || !indices || location_count == 0 || location_count > count || indices[0] != 0)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 1; i < location_count; ++i)
            if (indices[i] <= indices[i - 1] || indices[i] >= count)
                return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < location_count; ++i)
            if (check_location(locations[i]))
                return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i)
        if (!advice_of(pointers[i], sizes[i]))
            return CUDA_ERROR_INVALID_VALUE;
    size_t place = 0;
    for (size_t i = 0; i < count; ++i) {
        if (discard) {
            // What discarded memory holds is undefined: a pattern shows who still reads it.
            Work work;
            work.run = [pointer = pointers[i], bytes = sizes[i], &context = *s->context] {
                if (!still_there(pointer, bytes, context, true))
                    return CUDA_ERROR_ILLEGAL_ADDRESS;
                std::memset(reinterpret_cast<void *>(pointer), 0xDD, bytes);
                return CUDA_SUCCESS;
            };
            submit(lock, *s, std::move(work));
        }
        if (with_prefetch) {
            while (place + 1 < location_count && indices[place + 1] <= i)
                ++place;
            prefetch(lock, *s, pointers[i], sizes[i], locations[place]);
        }
    }
    return CUDA_SUCCESS;
}

// Partly: as `cuMemPrefetchAsync`.
DRIVER_CALL_ON_STREAM("cuMemPrefetchBatchAsync", cuMemPrefetchBatchAsync, 13000,
                      (CUdeviceptr * dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                       size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream stream),
                      (dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, stream)) {
    return batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, stream, false, true);
}

DRIVER_CALL_ON_STREAM("cuMemDiscardBatchAsync", cuMemDiscardBatchAsync, 13000,
                      (CUdeviceptr * dptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream stream),
                      (dptrs, sizes, count, flags, stream)) {
    return batch(dptrs, sizes, count, nullptr, nullptr, 0, flags, stream, true, false);
}

// Partly: as `cuMemPrefetchAsync`.
DRIVER_CALL_ON_STREAM("cuMemDiscardAndPrefetchBatchAsync", cuMemDiscardAndPrefetchBatchAsync, 13000,
                      (CUdeviceptr * dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                       size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream stream),
                      (dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, stream)) {
    return batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, stream, true, true);
}

}  // namespace sim
