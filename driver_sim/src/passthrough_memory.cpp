// SPDX-License-Identifier: Apache-2.0
// Watches memory in front of a real driver: virtual, plain, host and managed memory, and pools.
#include "passthrough_objects.h"

#include <vector>

namespace sim {

namespace {

void end_if_unused(WatchedObjects &w, const WatchedChunk &chunk) {
    if (chunk.references == 0 && chunk.mappings == 0)
        --w.chunks_live;
}

void add_chunk(CUmemGenericAllocationHandle handle) {
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    std::shared_ptr<WatchedChunk> &chunk = w.chunks[handle];
    if (!chunk) {
        chunk = std::make_shared<WatchedChunk>();
        ++w.chunks_live;
    }
    ++chunk->references;
}

void add_memory(CUdeviceptr address, WatchedMemory::Kind kind) {
    CUcontext context = context_in_front();
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    // The driver gives an address only once: what was known of it has ended without being seen.
    if (auto found = w.memory.find(address); found != w.memory.end())
        w.end_memory(found);
    w.begin_memory(address, {kind, context});
}

CUdeviceptr address_of(const void *pointer) { return CUdeviceptr(reinterpret_cast<std::uintptr_t>(pointer)); }

// What was taken off for a free: to be put back when that is refused.
class Taken {
public:
    explicit Taken(CUdeviceptr address) : address(address) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        if (w.pool_memory.erase(address)) {
            what = Pool;
        } else if (auto found = w.memory.find(address); found != w.memory.end()) {
            what = Memory;
            memory = found->second;
            w.end_memory(found);
        } else if (w.graph_memory.erase(address)) {
            what = Graph;
        }
    }
    bool nothing() const { return what == Nothing; }
    void put_back() {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        if (what == Pool)
            w.pool_memory.insert(address);
        else if (what == Memory)
            w.begin_memory(address, memory);
        else if (what == Graph)
            w.graph_memory.insert(address);
    }

private:
    enum { Nothing, Pool, Memory, Graph } what = Nothing;
    CUdeviceptr address;
    WatchedMemory memory{};
};

template <class Free> CUresult free_with(CUdeviceptr address, Free &&free) {
    Taken taken(address);
    CUresult result = free();
    if (result != CUDA_SUCCESS)
        taken.put_back();
    return result;
}

CUresult after_pool_allocation(CUresult result, const CUdeviceptr *pointer, CUstream stream) {
    if (result != CUDA_SUCCESS || *pointer == 0)
        return result;
    cuuint64_t id;
    CUgraph graph = captured_into(stream, id);
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    if (graph) {
        WatchedCapture &capture = w.captures[graph];
        if (capture.id != id)
            capture = {id, {}};
        capture.left.insert(*pointer);
    } else {
        w.pool_memory.insert(*pointer);
    }
    return result;
}

}  // namespace

// --- virtual memory ---

WATCH(cuMemAddressReserve, CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
      unsigned long long flags) {
    CUresult result = real(ptr, size, alignment, addr, flags);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().reservations[*ptr] = size;
    }
    return result;
}

WATCH(cuMemAddressFree, CUdeviceptr ptr, size_t size) {
    WatchedObjects &w = watched();
    bool taken;
    {
        Lock lock(w.mutex);
        auto found = w.reservations.find(ptr);
        taken = found != w.reservations.end() && found->second == size;
        if (taken)
            w.reservations.erase(found);
    }
    CUresult result = real(ptr, size);
    if (result != CUDA_SUCCESS && taken) {
        Lock lock(w.mutex);
        w.reservations[ptr] = size;
    }
    return result;
}

WATCH(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
      unsigned long long flags) {
    CUresult result = real(handle, size, prop, flags);
    if (result == CUDA_SUCCESS)
        add_chunk(*handle);
    return result;
}

WATCH(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *osHandle,
      CUmemAllocationHandleType shHandleType) {
    CUresult result = real(handle, osHandle, shHandleType);
    if (result == CUDA_SUCCESS)
        add_chunk(*handle);
    return result;
}

WATCH(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *addr) {
    CUresult result = real(handle, addr);
    if (result != CUDA_SUCCESS)
        return result;
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    auto mapping = w.mappings.upper_bound(address_of(addr));
    if (mapping != w.mappings.begin()) {
        --mapping;
        if (address_of(addr) < mapping->first + mapping->second.size && mapping->second.chunk) {
            ++mapping->second.chunk->references;
            w.chunks[*handle] = mapping->second.chunk;
        }
    }
    return result;
}

WATCH(cuMemRelease, CUmemGenericAllocationHandle handle) {
    WatchedObjects &w = watched();
    std::shared_ptr<WatchedChunk> chunk;
    {
        Lock lock(w.mutex);
        auto found = w.chunks.find(handle);
        if (found != w.chunks.end()) {
            chunk = found->second;
            if (--chunk->references == 0)
                w.chunks.erase(found);
            end_if_unused(w, *chunk);
        }
    }
    CUresult result = real(handle);
    if (result != CUDA_SUCCESS && chunk) {
        Lock lock(w.mutex);
        if (chunk->references == 0 && chunk->mappings == 0)
            ++w.chunks_live;
        ++chunk->references;
        w.chunks[handle] = chunk;
    }
    return result;
}

WATCH(cuMemMap, CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
      unsigned long long flags) {
    WatchedObjects &w = watched();
    std::shared_ptr<WatchedChunk> chunk;
    {
        Lock lock(w.mutex);
        auto found = w.chunks.find(handle);
        if (found != w.chunks.end()) {
            chunk = found->second;
            ++chunk->mappings;
        }
    }
    CUresult result = real(ptr, size, offset, handle, flags);
    Lock lock(w.mutex);
    if (result == CUDA_SUCCESS) {
        w.mappings[ptr] = {size, chunk};
    } else if (chunk) {
        --chunk->mappings;
        end_if_unused(w, *chunk);
    }
    return result;
}

WATCH(cuMemUnmap, CUdeviceptr ptr, size_t size) {
    WatchedObjects &w = watched();
    std::vector<std::pair<CUdeviceptr, WatchedMapping>> taken;
    {
        Lock lock(w.mutex);
        auto it = w.mappings.lower_bound(ptr);
        while (it != w.mappings.end() && it->first - ptr < size) {
            if (WatchedChunk *chunk = it->second.chunk.get()) {
                --chunk->mappings;
                end_if_unused(w, *chunk);
            }
            taken.emplace_back(it->first, std::move(it->second));
            it = w.mappings.erase(it);
        }
    }
    CUresult result = real(ptr, size);
    if (result != CUDA_SUCCESS) {
        Lock lock(w.mutex);
        for (auto &[base, mapping] : taken) {
            if (WatchedChunk *chunk = mapping.chunk.get()) {
                if (chunk->references == 0 && chunk->mappings == 0)
                    ++w.chunks_live;
                ++chunk->mappings;
            }
            w.mappings[base] = std::move(mapping);
        }
    }
    return result;
}

// --- plain, host and managed memory ---

WATCH(cuMemAlloc_v2, CUdeviceptr *dptr, size_t bytesize) {
    CUresult result = real(dptr, bytesize);
    if (result == CUDA_SUCCESS)
        add_memory(*dptr, WatchedMemory::Plain);
    return result;
}

WATCH(cuMemAllocManaged, CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    CUresult result = real(dptr, bytesize, flags);
    if (result == CUDA_SUCCESS)
        add_memory(*dptr, WatchedMemory::Managed);
    return result;
}

WATCH(cuMemAllocHost_v2, void **pp, size_t bytesize) {
    CUresult result = real(pp, bytesize);
    if (result == CUDA_SUCCESS)
        add_memory(address_of(*pp), WatchedMemory::Host);
    return result;
}

WATCH(cuMemHostAlloc, void **pp, size_t bytesize, unsigned int Flags) {
    CUresult result = real(pp, bytesize, Flags);
    if (result == CUDA_SUCCESS)
        add_memory(address_of(*pp), WatchedMemory::Host);
    return result;
}

WATCH(cuMemHostRegister_v2, void *p, size_t bytesize, unsigned int Flags) {
    CUresult result = real(p, bytesize, Flags);
    if (result == CUDA_SUCCESS)
        add_memory(address_of(p), WatchedMemory::Registered);
    return result;
}

WATCH(cuMemFree_v2, CUdeviceptr dptr) {
    return free_with(dptr, [&] { return real(dptr); });
}

WATCH(cuMemFreeHost, void *p) {
    return free_with(address_of(p), [&] { return real(p); });
}

WATCH(cuMemHostUnregister, void *p) {
    return free_with(address_of(p), [&] { return real(p); });
}

// --- pools ---

WATCH(cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    CUresult result = real(pool, poolProps);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().pools.insert(*pool);
    }
    return result;
}

WATCH(cuMemPoolImportFromShareableHandle, CUmemoryPool *pool_out, void *handle,
      CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUresult result = real(pool_out, handle, handleType, flags);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().pools.insert(*pool_out);
    }
    return result;
}

WATCH(cuMemPoolDestroy, CUmemoryPool pool) {
    WatchedObjects &w = watched();
    bool taken;
    {
        Lock lock(w.mutex);
        taken = w.pools.erase(pool);
    }
    CUresult result = real(pool);
    if (result != CUDA_SUCCESS && taken) {
        Lock lock(w.mutex);
        w.pools.insert(pool);
    }
    return result;
}

WATCH(cuMemAllocAsync, CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    return after_pool_allocation(real(dptr, bytesize, stream), dptr, stream);
}

WATCH(cuMemAllocFromPoolAsync, CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    return after_pool_allocation(real(dptr, bytesize, pool, stream), dptr, stream);
}

WATCH(cuMemPoolImportPointer, CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData) {
    CUresult result = real(ptr_out, pool, shareData);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().pool_memory.insert(*ptr_out);
    }
    return result;
}

WATCH(cuMemFreeAsync, CUdeviceptr dptr, CUstream stream) {
    Taken taken(dptr);
    // A captured free frees nothing now.
    cuuint64_t id = 0;
    CUgraph graph = captured_into(stream, id);
    CUresult result = real(dptr, stream);
    if (result != CUDA_SUCCESS || graph)
        taken.put_back();
    if (result == CUDA_SUCCESS && graph) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        auto capture = w.captures.find(graph);
        if (capture != w.captures.end() && capture->second.id == id)
            capture->second.left.erase(dptr);
    }
    return result;
}

WATCH(cuGraphAddMemFreeNode, CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
      size_t numDependencies, CUdeviceptr dptr) {
    CUresult result = real(phGraphNode, hGraph, dependencies, numDependencies, dptr);
    if (result == CUDA_SUCCESS) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        auto capture = w.captures.find(hGraph);
        if (capture != w.captures.end())
            capture->second.left.erase(dptr);
    }
    return result;
}

}  // namespace sim
