// SPDX-License-Identifier: Apache-2.0
// Eight threads of mixed calls, for the sanitizers: ``mixed_calls ROUNDS``. Each thread has objects of its own,
// and all of them share a stream, an event, a pool and what the others have allocated.
#include "control.h"

#include <cuda.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern char **environ;

// A capture of another thread may forbid a call for a while.
template <class Call> void must(Call call, int line) {
    CUresult result;
    do
        result = call();
    while (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "line %d: result %d\n", line, int(result));
        abort();
    }
}
#define MUST(call) must([&] { return call; }, __LINE__)

constexpr size_t granule = 2 << 20;

static CUmemLocation on_device(int device) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return location;
}

static void count_up(void *counter) { ++*static_cast<volatile int *>(counter); }

static CUmemoryPool make_pool(bool shareable) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = on_device(0);
    properties.handleTypes = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    CUmemoryPool pool;
    MUST(cuMemPoolCreate(&pool, &properties));
    return pool;
}

// What all threads use. A pointer that one thread puts down is freed by whichever takes it up.
struct Shared {
    CUstream stream;
    CUevent event;
    CUmemoryPool pool;
    std::mutex mutex;
    std::vector<CUdeviceptr> pointers;

    CUdeviceptr take() {
        std::lock_guard<std::mutex> guard(mutex);
        if (pointers.empty())
            return 0;
        CUdeviceptr pointer = pointers.back();
        pointers.pop_back();
        return pointer;
    }
    void put(CUdeviceptr pointer) {
        std::lock_guard<std::mutex> guard(mutex);
        pointers.push_back(pointer);
    }
};

// A chunk, exported and imported again, mapped twice.
static void virtual_round(CUstream stream, bool share) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = on_device(0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base;
    CUmemGenericAllocationHandle chunk, again;
    MUST(cuMemAddressReserve(&base, 2 * granule, 0, 0, 0));
    MUST(cuMemCreate(&chunk, granule, &properties, 0));
    MUST(cuMemMap(base, granule, 0, chunk, 0));
    MUST(cuMemSetAccess(base, granule, &access, 1));
    MUST(cuMemsetD8Async(base, 3, 64, stream));
    size_t mapped = granule;
    if (share) {
        int descriptor;
        MUST(cuMemExportToShareableHandle(&descriptor, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        MUST(cuMemImportFromShareableHandle(&again, reinterpret_cast<void *>(intptr_t(descriptor)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(descriptor);
        MUST(cuMemMap(base + granule, granule, 0, again, 0));
        MUST(cuMemRelease(again));
        MUST(cuMemSetAccess(base + granule, granule, &access, 1));
        mapped = 2 * granule;
        MUST(cuMemsetD8Async(base + granule, 4, 64, stream));
    }
    MUST(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(base)));
    MUST(cuMemRelease(again));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemUnmap(base, mapped));
    MUST(cuMemRelease(chunk));
    MUST(cuMemAddressFree(base, 2 * granule));
}

// A pool that is exported and imported again, with one pointer.
static void shared_pool_round(CUstream stream) {
    CUmemoryPool pool = make_pool(true), imported;
    int descriptor;
    CUdeviceptr pointer, there;
    CUmemPoolPtrExportData data;
    MUST(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolImportFromShareableHandle(&imported, reinterpret_cast<void *>(intptr_t(descriptor)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(descriptor);
    MUST(cuMemAllocFromPoolAsync(&pointer, 4096, pool, stream));
    MUST(cuMemPoolExportPointer(&data, pointer));
    MUST(cuMemPoolImportPointer(&there, imported, &data));
    MUST(cuMemsetD8Async(there, 5, 4096, stream));
    MUST(cuMemFreeAsync(there, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(imported));
    MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuMemPoolDestroy(pool));
}

static void managed_round(CUstream stream) {
    CUdeviceptr pointer;
    MUST(cuMemAllocManaged(&pointer, 8192, CU_MEM_ATTACH_GLOBAL));
    size_t bytes = 8192, first = 0;
    CUmemLocation place = on_device(0);
    int value;
    MUST(cuMemAdvise(pointer, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, place));
    MUST(cuMemPrefetchAsync(pointer, bytes, place, 0, stream));
    MUST(cuMemsetD32Async(pointer, 7, 16, stream));
    MUST(cuMemDiscardAndPrefetchBatchAsync(&pointer, &bytes, 1, &place, &first, 1, 0, stream));
    MUST(cuMemRangeGetAttribute(&value, sizeof value, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, pointer, bytes));
    MUST(cuMemFree(pointer));
}

static void capture_round(CUstream stream, int round) {
    MUST(cuStreamBeginCapture(stream, CUstreamCaptureMode(round % 3)));
    CUdeviceptr pointer;
    CUgraph graph = nullptr;
    if (cuMemAllocAsync(&pointer, 100, stream) == CUDA_SUCCESS) {
        cuMemsetD8Async(pointer, 1, 100, stream);
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUgraphNode *behind;
        const CUgraphEdgeData *edges;
        size_t count;
        CUgraphNode node;
        if (round % 2)
            cuMemFreeAsync(pointer, stream);
        else if (cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, &behind, &edges, &count) == CUDA_SUCCESS &&
                 status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
            cuGraphAddMemFreeNode(&node, graph, behind, count, pointer);
        if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
            cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
        graph = nullptr;
    }
    CUgraphExec executable;
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph) {
        int *counter = new int(0);
        CUuserObject object;
        MUST(cuUserObjectCreate(
            &object, counter, [](void *p) { delete static_cast<int *>(p); }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        MUST(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
        if (cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS) {
            cuGraphUpload(executable, stream);
            cuGraphLaunch(executable, stream);
            CUgraphExecUpdateResultInfo info;
            cuGraphExecUpdate(executable, graph, &info);
            cuGraphLaunch(executable, stream);
            cuGraphDebugDotPrint(graph, "/dev/null", 0);
            MUST(cuGraphExecDestroy(executable));  // refused while another thread captures
        }
        cuGraphDestroy(graph);
    }
    cuDeviceGraphMemTrim(0);
}

struct Callee {  // of a host function in a graph whose user object it is
    int calls = 0;
    std::vector<char> text = std::vector<char>(64, 'x');
};

static void call_it(void *p) {
    auto &callee = *static_cast<Callee *>(p);
    callee.text[size_t(++callee.calls) % callee.text.size()] = 'y';
}

// Launches in flight on two streams, and an update between them: each callee has to outlive what calls it.
static void owned_callback_round(CUstream stream, CUstream other, int round) {
    CUgraph graphs[2];
    for (CUgraph &graph : graphs) {
        auto callee = std::make_unique<Callee>();
        do {  // until no other thread breaks it by waiting for the context
            MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            cuLaunchHostFunc(stream, call_it, callee.get());
        } while (cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS);
        CUuserObject object;
        MUST(cuUserObjectCreate(
            &object, callee.release(), [](void *p) { delete static_cast<Callee *>(p); }, 1,
            CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        MUST(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    }
    bool held = round % 2;
    if (held)
        cudaDriverSimHold(1);
    CUgraphExec executable;
    CUgraphExecUpdateResultInfo info;
    MUST(cuGraphInstantiate(&executable, graphs[0], 0));
    MUST(cuGraphLaunch(executable, stream));
    MUST(cuGraphLaunch(executable, other));
    MUST(cuGraphExecUpdate(executable, graphs[1], &info));
    MUST(cuGraphLaunch(executable, stream));
    MUST(cuGraphExecDestroy(executable));
    for (CUgraph graph : graphs)
        MUST(cuGraphDestroy(graph));
    if (held)
        cudaDriverSimHold(0);
}

static void ask_around(CUdeviceptr pointer, CUmemoryPool pool, char *text, size_t capacity) {
    unsigned type;
    size_t free_bytes, total;
    std::uint64_t used;
    int data;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *place = &data;
    cuPointerGetAttribute(&type, attribute, pointer);
    cuPointerGetAttributes(1, &attribute, &place, pointer);
    cuMemGetAddressRange(nullptr, nullptr, pointer);
    cuMemGetInfo(&free_bytes, &total);
    cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    cuMemPoolTrimTo(pool, 0);
    cudaDriverSimLive(text, capacity);
    cudaDriverSimRefused(text, capacity);
    cudaDriverSimCalls(text, capacity);
    cudaDriverSimLog(1, text, capacity);
}

static void work(CUcontext context, Shared &shared, int thread, int rounds) {
    MUST(cuCtxSetCurrent(context));
    std::mt19937 random(thread);
    CUstream stream;
    CUevent event;
    MUST(cuStreamCreate(&stream, thread % 2));
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CUmemoryPool pool = make_pool(false);
    std::vector<CUdeviceptr> live;
    std::vector<char> text(1 << 16), host(8192);
    for (int round = 0; round < rounds; ++round) {
        CUdeviceptr pointer;
        switch (random() % 21) {
        case 0:
            if (cuMemAllocFromPoolAsync(&pointer, 1 + random() % 100000, pool, stream) == CUDA_SUCCESS) {
                cuMemsetD8Async(pointer, 1, 1, stream);
                live.push_back(pointer);
            }
            break;
        case 1:
            // Refused while a capture forbids it: then it stays.
            if (!live.empty() && cuMemFreeAsync(live.back(), stream) == CUDA_SUCCESS)
                live.pop_back();
            break;
        case 2:
            if (cuMemAlloc(&pointer, 4096) == CUDA_SUCCESS) {
                cuMemsetD8(pointer, 2, 4096);
                MUST(cuMemFree(pointer));
            }
            break;
        case 3:
            virtual_round(stream, round % 4 == 0);
            break;
        case 4:
            cuEventRecord(event, stream);
            cuStreamWaitEvent(nullptr, event, 0);
            cuEventQuery(event);
            break;
        case 5:
            cuStreamSynchronize(stream);
            break;
        case 6: {
            int *counter;
            if (cuMemAllocHost(reinterpret_cast<void **>(&counter), 64) == CUDA_SUCCESS) {
                *counter = 0;
                cuLaunchHostFunc(stream, count_up, counter);
                cuStreamSynchronize(stream);
                MUST(cuMemFreeHost(counter));
            }
            break;
        }
        case 7:
            cudaDriverSimHold(1);
            if (!live.empty())
                cuMemsetD8Async(live[0], 1, 1, stream);
            cudaDriverSimRun(stream);
            cudaDriverSimHold(0);
            break;
        case 8:
            ask_around(live.empty() ? 0 : live[0], pool, text.data(), text.size());
            break;
        case 9:
            capture_round(stream, round);
            break;
        case 10: {
            int failure = cudaDriverSimFail("cuMemAlloc", 3, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
            cudaDriverSimInterleave(1, round);
            cudaDriverSimInterleave(0, 0);
            cudaDriverSimFired(failure);
            cudaDriverSimDisarm(failure);
            break;
        }
        case 11:
            managed_round(stream);
            break;
        case 12:
            shared_pool_round(stream);
            break;
        case 13:
            if (cuMemAllocFromPoolAsync(&pointer, 256 << random() % 8, shared.pool, shared.stream) == CUDA_SUCCESS)
                shared.put(pointer);
            break;
        case 14:
        case 15:
            if ((pointer = shared.take())) {
                cuMemsetD8Async(pointer, 1, 16, shared.stream);
                if (cuMemFreeAsync(pointer, shared.stream) != CUDA_SUCCESS)
                    shared.put(pointer);
            }
            break;
        case 16:
            cuEventRecord(shared.event, shared.stream);
            cuStreamWaitEvent(stream, shared.event, 0);
            cuEventSynchronize(shared.event);
            break;
        case 17: {
            CUmemAccessDesc access{on_device(1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
            MUST(cuMemPoolSetAccess(shared.pool, &access, 1));
            CUstream other;
            MUST(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -1));
            cuMemcpyHtoDAsync(live.empty() ? 0 : live[0], host.data(), 1, other);
            MUST(cuStreamSynchronize(other));
            MUST(cuStreamDestroy(other));
            cuStreamQuery(other);  // a stale handle
            break;
        }
        case 18:
            if (cuMemHostRegister(host.data(), host.size(), 0) == CUDA_SUCCESS) {
                cuMemsetD8Async(CUdeviceptr(host.data()), 1, host.size(), stream);
                MUST(cuMemHostUnregister(host.data()));
            }
            break;
        case 19: {
            int log = cudaDriverSimOpenLog();
            cuCtxSynchronize();
            cudaDriverSimCloseLog(log);
            cudaDriverSimForgetLog(log);
            break;
        }
        case 20:
            owned_callback_round(stream, shared.stream, round);
            break;
        }
    }
    MUST(cuStreamSynchronize(stream));
    for (CUdeviceptr pointer : live)
        MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
}

// --- the other process: uses a pool, a pointer and an event of this one, while the threads work -----------------

struct Parcel {
    CUmemPoolPtrExportData pointer;
    CUipcEventHandle event;
};

static int other_process() {
    Parcel parcel;
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUmemoryPool pool;
    CUdeviceptr pointer;
    unsigned char byte;
    if (read(0, &parcel, sizeof parcel) != ssize_t(sizeof parcel))
        return 2;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(3),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(3);
    MUST(cuMemPoolImportPointer(&pointer, pool, &parcel.pointer));
    MUST(cuIpcOpenEventHandle(&event, parcel.event));
    MUST(cuEventSynchronize(event));
    MUST(cuMemcpyDtoH(&byte, pointer, 1));
    MUST(cuMemsetD8Async(pointer, byte + 1, 16, stream));
    MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
    MUST(cuDevicePrimaryCtxRelease(0));
    char text[4096];
    cudaDriverSimLive(text, sizeof text);
    return text[0] ? 3 : 0;
}

static void with_other_process(CUcontext context, const char *program) {
    MUST(cuCtxSetCurrent(context));
    CUmemoryPool pool = make_pool(true);
    CUstream stream;
    CUevent event;
    CUdeviceptr pointer;
    Parcel parcel;
    int descriptor, ends[2];
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAllocFromPoolAsync(&pointer, 4096, pool, stream));
    MUST(cuMemsetD8Async(pointer, 41, 4096, stream));
    MUST(cuEventRecord(event, stream));
    MUST(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolExportPointer(&parcel.pointer, pointer));
    MUST(cuIpcGetEventHandle(&parcel.event, event));
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    char name[] = "other process";
    char *arguments[] = {const_cast<char *>(program), name, nullptr};
    if (pipe(ends) || posix_spawn_file_actions_init(&actions) ||
        posix_spawn_file_actions_adddup2(&actions, ends[0], 0) ||
        posix_spawn_file_actions_adddup2(&actions, descriptor, 3) ||
        posix_spawn(&child, program, &actions, nullptr, arguments, environ) ||
        write(ends[1], &parcel, sizeof parcel) != ssize_t(sizeof parcel) || waitpid(child, &status, 0) != child ||
        status != 0)
        abort();
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    close(ends[1]);
    close(descriptor);
    unsigned char byte;
    MUST(cuMemcpyDtoH(&byte, pointer, 1));
    if (byte != 42)
        abort();
    MUST(cuMemFreeAsync(pointer, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
}

int main(int count, char **arguments) {
    if (count > 1 && std::string(arguments[1]) == "other process")
        return other_process();
    int rounds = count > 1 ? std::atoi(arguments[1]) : 1000;
    CUcontext context;
    Shared shared;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&shared.stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&shared.event, CU_EVENT_DISABLE_TIMING));
    shared.pool = make_pool(false);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread)
        threads.emplace_back(work, context, std::ref(shared), thread, rounds);
    for (int i = 0; i < 5; ++i)
        with_other_process(context, "/proc/self/exe");
    for (std::thread &thread : threads)
        thread.join();
    while (CUdeviceptr pointer = shared.take())
        MUST(cuMemFreeAsync(pointer, shared.stream));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolDestroy(shared.pool));
    MUST(cuEventDestroy(shared.event));
    MUST(cuStreamDestroy(shared.stream));
    MUST(cuDevicePrimaryCtxRelease(0));
    char text[4096];
    cudaDriverSimLive(text, sizeof text);
    // Pools are destroyed with frees pending here, to see that the simulation bears it. That is counted for good.
    unsigned long times = 0;
    int end = 0;
    if (std::sscanf(text, "pool_destroyed_in_use %lu%n", &times, &end) == 1)
        std::memmove(text, text + end + 1, std::strlen(text + end + 1) + 1);
    std::printf("%s", text);
    return text[0] ? 3 : 0;
}
