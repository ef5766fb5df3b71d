// SPDX-License-Identifier: Apache-2.0
// How long the driver itself takes, measured without Python in between.
#include "control.h"

#include "driver.h"

#include <chrono>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_each(Clock::time_point start, unsigned long long rounds) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / double(rounds);
}

}  // namespace

extern "C" SIM_EXPORT double cudaDriverSimTimePoolPair(unsigned long long rounds, size_t bytes) {
    CUstream stream;
    if (!rounds)
        return -1;
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
        return -1;
    bool refused = false;
    auto start = Clock::now();
    for (unsigned long long i = 0; i < rounds && !refused; ++i) {
        CUdeviceptr pointer;
        refused = cuMemAllocAsync(&pointer, bytes, stream) || cuMemFreeAsync(pointer, stream);
    }
    double result = microseconds_each(start, rounds);
    cuStreamDestroy(stream);
    return refused ? -1 : result;
}

extern "C" SIM_EXPORT double cudaDriverSimTimeVirtualRound(unsigned long long rounds, size_t bytes) {
    if (!rounds)
        return -1;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    auto start = Clock::now();
    for (unsigned long long i = 0; i < rounds; ++i) {
        CUdeviceptr base;
        CUmemGenericAllocationHandle chunk;
        if (cuMemAddressReserve(&base, bytes, 0, 0, 0) || cuMemCreate(&chunk, bytes, &properties, 0) ||
            cuMemMap(base, bytes, 0, chunk, 0) || cuMemSetAccess(base, bytes, &access, 1) ||
            cuMemUnmap(base, bytes) || cuMemRelease(chunk) || cuMemAddressFree(base, bytes))
            return -1;
    }
    return microseconds_each(start, rounds);
}
