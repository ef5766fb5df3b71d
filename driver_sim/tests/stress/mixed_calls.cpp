// SPDX-License-Identifier: Apache-2.0
// Eight threads of mixed calls, for the sanitizers.
#include "control.h"

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

static void count_up(void *counter) { ++*static_cast<volatile int *>(counter); }

static void virtual_round(CUstream stream) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t bytes = 2 << 20;
    CUdeviceptr base;
    CUmemGenericAllocationHandle chunk;
    if (cuMemAddressReserve(&base, bytes, 0, 0, 0) || cuMemCreate(&chunk, bytes, &properties, 0))
        abort();
    if (cuMemMap(base, bytes, 0, chunk, 0) || cuMemSetAccess(base, bytes, &access, 1))
        abort();
    cuMemsetD8Async(base, 3, 64, stream);
    cuStreamSynchronize(stream);
    if (cuMemUnmap(base, bytes) || cuMemRelease(chunk) || cuMemAddressFree(base, bytes))
        abort();
}

static void capture_round(CUstream stream) {
    if (cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED))
        return;
    CUdeviceptr pointer;
    if (cuMemAllocAsync(&pointer, 100, stream) == CUDA_SUCCESS) {
        cuMemsetD8Async(pointer, 1, 100, stream);
        cuMemFreeAsync(pointer, stream);
    }
    CUgraph graph = nullptr;
    CUgraphExec executable;
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph) {
        if (cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS) {
            cuGraphLaunch(executable, stream);
            cuGraphExecDestroy(executable);
        }
        cuGraphDestroy(graph);
    }
}

static void work(CUcontext context, int thread, int rounds) {
    cuCtxSetCurrent(context);
    std::mt19937 random(thread);
    CUstream stream;
    CUevent event;
    CUmemoryPool pool;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    if (cuStreamCreate(&stream, thread % 2) || cuEventCreate(&event, 0) || cuMemPoolCreate(&pool, &properties))
        abort();
    std::vector<CUdeviceptr> live;
    char text[4096];
    for (int round = 0; round < rounds; ++round) {
        CUdeviceptr pointer;
        switch (random() % 11) {
        case 0:
            if (cuMemAllocFromPoolAsync(&pointer, 1 + random() % 100000, pool, stream) == CUDA_SUCCESS) {
                cuMemsetD8Async(pointer, 1, 1, stream);
                live.push_back(pointer);
            }
            break;
        case 1:
            if (!live.empty()) {
                cuMemFreeAsync(live.back(), stream);
                live.pop_back();
            }
            break;
        case 2:
            if (cuMemAlloc(&pointer, 4096) == CUDA_SUCCESS) {
                cuMemsetD8(pointer, 2, 4096);
                cuMemFree(pointer);
            }
            break;
        case 3:
            virtual_round(stream);
            break;
        case 4:
            cuEventRecord(event, stream);
            cuStreamWaitEvent(nullptr, event, 0);
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
                cuMemFreeHost(counter);
            }
            break;
        }
        case 7:
            cudaDriverSimHold(1);
            if (!live.empty())
                cuMemsetD8Async(live[0], 1, 1, stream);
            cudaDriverSimHold(0);
            break;
        case 8:
            cudaDriverSimLive(text, sizeof text);
            cudaDriverSimRefused(text, sizeof text);
            break;
        case 9:
            capture_round(stream);
            break;
        case 10: {
            int failure = cudaDriverSimFail("cuMemAlloc", 3, CUDA_ERROR_OUT_OF_MEMORY, 0);
            cudaDriverSimInterleave(1, round);
            cudaDriverSimInterleave(0, 0);
            cudaDriverSimDisarm(failure);
            break;
        }
        }
    }
    for (CUdeviceptr pointer : live)
        cuMemFreeAsync(pointer, stream);
    cuStreamSynchronize(stream);
    if (cuMemPoolDestroy(pool) || cuEventDestroy(event) || cuStreamDestroy(stream))
        abort();
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? std::atoi(arguments[1]) : 1000;
    CUcontext context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))
        return 2;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread)
        threads.emplace_back(work, context, thread, rounds);
    for (std::thread &thread : threads)
        thread.join();
    cuCtxSetCurrent(context);
    cuCtxSynchronize();
    char text[4096];
    cudaDriverSimLive(text, sizeof text);
    std::printf("%s", text);
    return std::string(text) == "primary_context 1\n" ? 0 : 3;
}
