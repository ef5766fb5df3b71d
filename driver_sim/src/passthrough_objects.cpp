// SPDX-License-Identifier: Apache-2.0
// Watches streams, events, contexts, graphs and user objects in front of a real driver, and says what is live.
#include "passthrough_objects.h"

#include "live.h"

#include <pthread.h>

#include <cstdint>

namespace sim {

namespace {

std::atomic<bool> capture_seen{false};

// A fork must not copy a locked mutex. In the child the driver has nothing.
void before_fork() { watched().mutex.lock(); }
void after_fork_in_parent() { watched().mutex.unlock(); }
void after_fork_in_child() {
    watched().forked = true;
    watched().mutex.unlock();
}

WatchedObjects *make_watched() {
    auto *made = new WatchedObjects;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
}

template <class Map, class Key> bool take(Map &map, Key key, CUcontext &value) {
    Lock lock(watched().mutex);
    auto found = map.find(key);
    if (found == map.end())
        return false;
    value = found->second;
    map.erase(found);
    return true;
}

template <class Map, class Key> void put(Map &map, Key key, CUcontext value) {
    Lock lock(watched().mutex);
    map[key] = value;
}

void add_event(CUevent event) { put(watched().events, event, context_in_front()); }

void add_stream(CUstream stream) { put(watched().streams, stream, context_in_front()); }

void add_executable(CUgraphExec executable, CUgraph graph) {
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    auto capture = w.captures.find(graph);
    w.executable_graphs[executable] =
        capture == w.captures.end() ? std::set<CUdeviceptr>{} : capture->second.left;
}

}  // namespace

WatchedObjects &watched() {
    // Never destroyed: driver calls can come after the destructors of this library have run.
    static WatchedObjects *instance = make_watched();
    return *instance;
}

CUcontext context_in_front() {
    static auto *get = real_function(&cuCtxGetCurrent, "cuCtxGetCurrent");
    CUcontext context = nullptr;
    if (get)
        get(&context);
    return context;
}

CUgraph captured_into(CUstream stream, cuuint64_t &id) {
    if (!capture_seen.load(std::memory_order_relaxed))
        return nullptr;
    static auto *ask = real_function(&cuStreamGetCaptureInfo_v3, "cuStreamGetCaptureInfo_v3");
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    if (!ask || ask(stream, &status, &id, &graph, nullptr, nullptr, nullptr) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return nullptr;
    return graph;
}

void end_watched_context(CUcontext context) {
    if (!context)
        return;
    WatchedObjects &w = watched();
    auto drop = [context](auto &map) {
        for (auto it = map.begin(); it != map.end();)
            it = it->second == context ? map.erase(it) : std::next(it);
    };
    drop(w.streams);
    drop(w.events);
    for (auto it = w.memory.begin(); it != w.memory.end();)
        it = it->second.context == context ? w.end_memory(it) : std::next(it);
}

void with_objects_in_front(const UseCounts &use) {
    WatchedObjects &w = watched();
    LiveCounts counts{};
    Lock lock(w.mutex);
    if (!w.forked) {
        counts[LIVE_ADDRESS_RESERVATION] = w.reservations.size();
        counts[LIVE_PHYSICAL_ALLOCATION] = w.chunks_live;
        counts[LIVE_MAPPING] = w.mappings.size();
        counts[LIVE_DEVICE_ALLOCATION] = w.memory_live[WatchedMemory::Plain];
        counts[LIVE_HOST_ALLOCATION] = w.memory_live[WatchedMemory::Host];
        counts[LIVE_HOST_REGISTRATION] = w.memory_live[WatchedMemory::Registered];
        counts[LIVE_MANAGED_ALLOCATION] = w.memory_live[WatchedMemory::Managed];
        counts[LIVE_MEMORY_POOL] = w.pools.size();
        counts[LIVE_POOL_ALLOCATION] = w.pool_memory.size();
        counts[LIVE_STREAM] = w.streams.size();
        counts[LIVE_EVENT] = w.events.size();
        counts[LIVE_GRAPH] = w.graphs.size();
        counts[LIVE_GRAPH_EXEC] = w.executable_graphs.size();
        counts[LIVE_GRAPH_ALLOCATION] = w.graph_memory.size();
        counts[LIVE_USER_OBJECT] = w.user_objects;
        for (auto &entry : w.retained)
            counts[LIVE_PRIMARY_CONTEXT] += entry.second != 0;
        counts[LIVE_CONTEXT] = w.contexts.size();
    }
    use(counts);
}

// A child that was forked before the driver was initialised can have one of its own.
WATCH(cuInit, unsigned int Flags) {
    CUresult result = real(Flags);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().forked = false;
    }
    return result;
}

// --- streams and events ---

WATCH(cuStreamCreate, CUstream *phStream, unsigned int Flags) {
    CUresult result = real(phStream, Flags);
    if (result == CUDA_SUCCESS)
        add_stream(*phStream);
    return result;
}

WATCH(cuStreamCreateWithPriority, CUstream *phStream, unsigned int flags, int priority) {
    CUresult result = real(phStream, flags, priority);
    if (result == CUDA_SUCCESS)
        add_stream(*phStream);
    return result;
}

WATCH(cuStreamDestroy_v2, CUstream hStream) {
    CUcontext context;
    bool taken = take(watched().streams, hStream, context);
    CUresult result = real(hStream);
    if (result != CUDA_SUCCESS && taken)
        put(watched().streams, hStream, context);
    return result;
}

WATCH(cuEventCreate, CUevent *phEvent, unsigned int Flags) {
    CUresult result = real(phEvent, Flags);
    if (result == CUDA_SUCCESS)
        add_event(*phEvent);
    return result;
}

WATCH(cuIpcOpenEventHandle, CUevent *phEvent, CUipcEventHandle handle) {
    CUresult result = real(phEvent, handle);
    if (result == CUDA_SUCCESS)
        add_event(*phEvent);
    return result;
}

WATCH(cuEventDestroy_v2, CUevent hEvent) {
    CUcontext context;
    bool taken = take(watched().events, hEvent, context);
    CUresult result = real(hEvent);
    if (result != CUDA_SUCCESS && taken)
        put(watched().events, hEvent, context);
    return result;
}

// --- contexts ---

WATCH(cuDevicePrimaryCtxRetain, CUcontext *pctx, CUdevice dev) {
    CUresult result = real(pctx, dev);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        ++watched().retained[dev];
        watched().primary[dev] = *pctx;
    }
    return result;
}

WATCH(cuDevicePrimaryCtxRelease_v2, CUdevice dev) {
    static auto *state = real_function(&cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState");
    CUresult result = real(dev);
    if (result != CUDA_SUCCESS)
        return result;
    unsigned flags;
    int active = 1;
    if (state)
        state(dev, &flags, &active);
    WatchedObjects &w = watched();
    Lock lock(w.mutex);
    unsigned &retained = w.retained[dev];
    retained -= retained != 0;
    // Others can hold it as well, by ways that are not seen here.
    if (!active) {
        retained = 0;
        end_watched_context(w.primary[dev]);
    }
    return result;
}

WATCH(cuDevicePrimaryCtxReset_v2, CUdevice dev) {
    CUresult result = real(dev);
    if (result == CUDA_SUCCESS) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        w.retained[dev] = 0;
        end_watched_context(w.primary[dev]);
    }
    return result;
}

WATCH(cuCtxCreate_v4, CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
    CUresult result = real(pctx, ctxCreateParams, flags, dev);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().contexts.insert(*pctx);
    }
    return result;
}

WATCH(cuCtxDestroy_v2, CUcontext ctx) {
    WatchedObjects &w = watched();
    bool taken;
    {
        Lock lock(w.mutex);
        taken = w.contexts.erase(ctx);
    }
    CUresult result = real(ctx);
    Lock lock(w.mutex);
    if (result == CUDA_SUCCESS)
        end_watched_context(ctx);
    else if (taken)
        w.contexts.insert(ctx);
    return result;
}

// --- captures and graphs ---

WATCH(cuStreamBeginCapture_v2, CUstream stream, CUstreamCaptureMode mode) {
    capture_seen.store(true, std::memory_order_relaxed);
    return real(stream, mode);
}

WATCH(cuStreamEndCapture, CUstream stream, CUgraph *phGraph) {
    cuuint64_t id = 0;
    CUgraph graph = captured_into(stream, id);
    CUresult result = real(stream, phGraph);
    if (result == CUDA_SUCCESS && *phGraph) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        w.graphs.insert(*phGraph);
        // What is known under this handle can be from a capture that has failed.
        auto capture = w.captures.find(graph);
        if (capture != w.captures.end() && capture->second.id != id)
            w.captures.erase(capture);
    }
    return result;
}

WATCH(cuGraphCreate, CUgraph *phGraph, unsigned int flags) {
    CUresult result = real(phGraph, flags);
    if (result == CUDA_SUCCESS) {
        Lock lock(watched().mutex);
        watched().graphs.insert(*phGraph);
        watched().captures.erase(*phGraph);  // as in cuStreamEndCapture
    }
    return result;
}

WATCH(cuGraphDestroy, CUgraph hGraph) {
    WatchedObjects &w = watched();
    bool taken;
    {
        Lock lock(w.mutex);
        taken = w.graphs.erase(hGraph);
    }
    CUresult result = real(hGraph);
    if (result != CUDA_SUCCESS && taken) {
        Lock lock(w.mutex);
        w.graphs.insert(hGraph);
    }
    return result;
}

WATCH(cuGraphInstantiateWithFlags, CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
    CUresult result = real(phGraphExec, hGraph, flags);
    if (result == CUDA_SUCCESS)
        add_executable(*phGraphExec, hGraph);
    return result;
}

WATCH(cuGraphInstantiateWithParams, CUgraphExec *phGraphExec, CUgraph hGraph,
      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    CUresult result = real(phGraphExec, hGraph, instantiateParams);
    if (result == CUDA_SUCCESS)
        add_executable(*phGraphExec, hGraph);
    return result;
}

WATCH(cuGraphExecDestroy, CUgraphExec hGraphExec) {
    WatchedObjects &w = watched();
    std::set<CUdeviceptr> left;
    bool taken = false;
    {
        Lock lock(w.mutex);
        auto found = w.executable_graphs.find(hGraphExec);
        if (found != w.executable_graphs.end()) {
            taken = true;
            left = std::move(found->second);
            w.executable_graphs.erase(found);
        }
    }
    CUresult result = real(hGraphExec);
    if (result != CUDA_SUCCESS && taken) {
        Lock lock(w.mutex);
        w.executable_graphs[hGraphExec] = std::move(left);
    }
    return result;
}

WATCH(cuGraphLaunch, CUgraphExec hGraphExec, CUstream stream) {
    cuuint64_t id;
    bool captured = captured_into(stream, id);  // then it is launched later, as a part of another graph
    CUresult result = real(hGraphExec, stream);
    if (result == CUDA_SUCCESS && !captured) {
        WatchedObjects &w = watched();
        Lock lock(w.mutex);
        auto found = w.executable_graphs.find(hGraphExec);
        if (found != w.executable_graphs.end())
            w.graph_memory.insert(found->second.begin(), found->second.end());
    }
    return result;
}

// --- user objects: ended when their function is called, whoever held the last reference ---

namespace {

struct UserFunction {
    CUhostFn function;
    void *pointer;
};

void CUDA_CB call_user_function(void *argument) {
    std::unique_ptr<UserFunction> user(static_cast<UserFunction *>(argument));
    {
        Lock lock(watched().mutex);
        --watched().user_objects;
    }
    user->function(user->pointer);
}

}  // namespace

WATCH(cuUserObjectCreate, CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
      unsigned int flags) {
    if (!destroy)
        return real(object_out, ptr, destroy, initialRefcount, flags);
    auto user = std::make_unique<UserFunction>(UserFunction{destroy, ptr});
    {
        Lock lock(watched().mutex);
        ++watched().user_objects;
    }
    CUresult result = real(object_out, user.get(), call_user_function, initialRefcount, flags);
    if (result == CUDA_SUCCESS) {
        user.release();
    } else {
        Lock lock(watched().mutex);
        --watched().user_objects;
    }
    return result;
}

}  // namespace sim
