// SPDX-License-Identifier: Apache-2.0
// What the program has made and not given back, as seen from in front of a real driver.
//
// A watcher takes an object off before the real driver ends it, and puts it back when that is refused:
// afterwards another thread could already have the same address or handle for something new.
#pragma once

#include "passthrough.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace sim {

struct WatchedMemory {
    enum Kind { Plain, Host, Registered, Managed } kind;
    CUcontext context;
};

struct WatchedChunk {
    unsigned references = 0, mappings = 0;
};

struct WatchedMapping {
    std::size_t size;
    std::shared_ptr<WatchedChunk> chunk;  // null when the handle is not known
};

// What the launch of a graph leaves allocated: what its capture has allocated and not freed.
struct WatchedCapture {
    cuuint64_t id = 0;
    std::set<CUdeviceptr> left;
};

struct WatchedObjects {
    std::mutex mutex;  // never held while the real driver is called
    bool forked = false;

    std::unordered_map<CUdeviceptr, std::size_t> reservations;
    std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<WatchedChunk>> chunks;  // by good handles
    std::size_t chunks_live = 0;  // also those without a handle that are mapped
    std::map<CUdeviceptr, WatchedMapping> mappings;
    std::unordered_map<CUdeviceptr, WatchedMemory> memory;
    std::size_t memory_live[4] = {};  // by kind
    std::unordered_set<CUmemoryPool> pools;
    std::unordered_set<CUdeviceptr> pool_memory;

    std::unordered_map<CUstream, CUcontext> streams;
    std::unordered_map<CUevent, CUcontext> events;
    std::unordered_set<CUcontext> contexts;  // made by the program
    std::map<CUdevice, unsigned> retained;   // primary contexts
    std::map<CUdevice, CUcontext> primary;

    std::unordered_set<CUgraph> graphs;
    std::unordered_map<CUgraph, WatchedCapture> captures;
    std::unordered_map<CUgraphExec, std::set<CUdeviceptr>> executable_graphs;  // and what a launch leaves
    std::unordered_set<CUdeviceptr> graph_memory;
    std::size_t user_objects = 0;

    void begin_memory(CUdeviceptr address, WatchedMemory what) {
        if (memory.emplace(address, what).second)
            ++memory_live[what.kind];
    }
    auto end_memory(decltype(memory)::iterator which) {
        --memory_live[which->second.kind];
        return memory.erase(which);
    }
};

using Lock = std::unique_lock<std::mutex>;

WatchedObjects &watched();

// A function of the real driver, by its exported name.
template <class Signature> Signature *real_function(Signature *, const char *symbol) {
    return reinterpret_cast<Signature *>(exported_by_real(symbol));
}

CUcontext context_in_front();  // current on this thread, or null

// The graph that work on the stream is captured into, or null; asked only once some capture has begun.
CUgraph captured_into(CUstream stream, cuuint64_t &id);

// Streams, events, plain and host memory end with their context; virtual memory and pools do not.
void end_watched_context(CUcontext context);  // with the mutex held

}  // namespace sim
