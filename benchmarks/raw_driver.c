// SPDX-License-Identifier: Apache-2.0
//
// The driver calls that the work needs, and nothing else, looped in C: the floor that the package is compared with.
// Every function returns nanoseconds for all its rounds together, or the negative CUresult of a call that failed.
// It is a measuring tool: after a failed call it returns at once, and its process should end.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cuda.h>

#define FUNCTIONS(X)                                                                                          \
    X(cuMemAddressReserve)                                                                                    \
    X(cuMemAllocFromPoolAsync)                                                                                \
    X(cuMemFreeAsync)                                                                                         \
    X(cuMemPoolCreate)                                                                                        \
    X(cuMemPoolDestroy)                                                                                       \
    X(cuMemAddressFree)                                                                                       \
    X(cuMemCreate)                                                                                            \
    X(cuMemRelease)                                                                                           \
    X(cuMemMap)                                                                                               \
    X(cuMemUnmap)                                                                                             \
    X(cuMemSetAccess)                                                                                         \
    X(cuMemRetainAllocationHandle)                                                                            \
    X(cuStreamIsCapturing)                                                                                    \
    X(cuStreamSynchronize)                                                                                    \
    X(cuThreadExchangeStreamCaptureMode)

#define DECLARE(name) static __typeof__(&name) call_##name;
FUNCTIONS(DECLARE)

typedef CUresult (*resolve_t)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

// The package's own setting: CUDA 13.0, the driver interface that both are measured at.
enum { INTERFACE_VERSION = 13000 };

static CUmemAllocationProp properties;
static CUmemAccessDesc access_rights;

#define TRY(call)                                                                                             \
    do {                                                                                                      \
        CUresult result_ = (call);                                                                            \
        if (result_ != CUDA_SUCCESS)                                                                          \
            return -(int64_t)result_;                                                                         \
    } while (0)

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Finds the driver's functions the way the bindings do, and sets what all allocations share.
int64_t raw_open(int device)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    resolve_t resolve = library ? (resolve_t)dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!resolve)
        return -(int64_t)CUDA_ERROR_NOT_FOUND;
#define RESOLVE(name) TRY(resolve(#name, (void **)&call_##name, INTERFACE_VERSION, 0, NULL));
    FUNCTIONS(RESOLVE)
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    access_rights.location = properties.location;
    access_rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return 0;
}

static int64_t add_chunk(CUdeviceptr address, size_t size)
{
    CUmemGenericAllocationHandle chunk;
    TRY(call_cuMemCreate(&chunk, size, &properties, 0));
    TRY(call_cuMemMap(address, size, 0, chunk, 0));
    TRY(call_cuMemRelease(chunk));
    TRY(call_cuMemSetAccess(address, size, &access_rights, 1));
    return 0;
}

static int64_t reserve_with_chunks(CUdeviceptr *address, size_t reserved, size_t chunk, size_t number)
{
    TRY(call_cuMemAddressReserve(address, reserved, 0, 0, 0));
    for (size_t i = 0; i < number; i++) {
        int64_t failed = add_chunk(*address + i * chunk, chunk);
        if (failed)
            return failed;
    }
    return 0;
}

// What a correct program has to do before the memory may go: wait for its stream, then undo every mapping.
static int64_t release_chunks(CUstream stream, CUdeviceptr address, size_t reserved, size_t chunk, size_t number)
{
    TRY(call_cuStreamSynchronize(stream));
    for (size_t i = 0; i < number; i++)
        TRY(call_cuMemUnmap(address + i * chunk, chunk));
    TRY(call_cuMemAddressFree(address, reserved));
    return 0;
}

int64_t raw_allocate_and_close(CUstream stream, size_t size, int64_t rounds)
{
    int64_t start = now();
    for (int64_t i = 0; i < rounds; i++) {
        CUdeviceptr address;
        int64_t failed = reserve_with_chunks(&address, size, size, 1);
        failed = failed ? failed : release_chunks(stream, address, size, size, 1);
        if (failed)
            return failed;
    }
    return now() - start;
}

// What must surround a call that captures of streams would be broken by: whether its own stream is captured, and the
// thread's capture mode lent.
#define BESIDE_CAPTURES(call)                                                                                 \
    do {                                                                                                      \
        CUstreamCaptureStatus status_;                                                                        \
        CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;                                           \
        TRY(call_cuStreamIsCapturing(stream, &status_));                                                      \
        TRY(call_cuThreadExchangeStreamCaptureMode(&mode_));                                                  \
        TRY(call);                                                                                            \
        TRY(call_cuThreadExchangeStreamCaptureMode(&mode_));                                                  \
    } while (0)

#define POOL_PAIR(name, MADE)                                                                                 \
    int64_t name(CUstream stream, size_t size, int64_t rounds)                                                \
    {                                                                                                         \
        CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,                         \
                                          .location = properties.location};                                   \
        CUmemoryPool pool;                                                                                    \
        TRY(call_cuMemPoolCreate(&pool, &pool_properties));                                                   \
        int64_t start = now();                                                                                \
        for (int64_t i = 0; i < rounds; i++) {                                                                \
            CUdeviceptr address;                                                                              \
            MADE(call_cuMemAllocFromPoolAsync(&address, size, pool, stream));                                 \
            MADE(call_cuMemFreeAsync(address, stream));                                                       \
        }                                                                                                     \
        int64_t elapsed = now() - start;                                                                      \
        TRY(call_cuStreamSynchronize(stream));                                                                \
        TRY(call_cuMemPoolDestroy(pool));                                                                     \
        return elapsed;                                                                                       \
    }

POOL_PAIR(raw_pool_pair, TRY)
POOL_PAIR(raw_pool_pair_beside_captures, BESIDE_CAPTURES)

static int shorter(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

// Grows one buffer of `size` bytes by `step`, `rounds` times, inside addresses reserved ahead.
int64_t raw_grow_in_place(CUstream stream, size_t size, size_t step, int64_t rounds)
{
    CUdeviceptr address;
    size_t reserved = size + step * (size_t)rounds;
    int64_t failed = reserve_with_chunks(&address, reserved, size, 1);
    if (failed)
        return failed;
    int64_t *times = malloc((size_t)rounds * sizeof *times);
    if (!times)
        return -1;
    for (int64_t i = 0; i < rounds; i++) {
        int64_t start = now();
        failed = add_chunk(address + size + (size_t)i * step, step);
        times[i] = now() - start;
        if (failed)
            return failed;
    }
    // The median: a driver that clears what was freed before lets one of them wait for tens of milliseconds.
    qsort(times, (size_t)rounds, sizeof *times, shorter);
    int64_t elapsed = times[rounds / 2] * rounds;
    free(times);
    for (int64_t i = 0; i < rounds; i++)
        TRY(call_cuMemUnmap(address + size + (size_t)i * step, step));
    failed = release_chunks(stream, address, reserved, size, 1);
    return failed ? failed : elapsed;
}

// Moves `number` chunks to a larger reservation with one chunk more, and retires the old addresses.
int64_t raw_grow_by_moving(CUstream stream, size_t chunk, int64_t number, int64_t rounds)
{
    size_t old_size = chunk * (size_t)number;
    size_t new_size = old_size + chunk;
    int64_t elapsed = 0;
    for (int64_t round = 0; round < rounds; round++) {
        CUdeviceptr before, after;
        int64_t failed = reserve_with_chunks(&before, old_size, chunk, (size_t)number);
        if (failed)
            return failed;
        int64_t start = now();
        TRY(call_cuMemAddressReserve(&after, new_size, 0, 0, 0));
        for (size_t offset = 0; offset < old_size; offset += chunk) {
            CUmemGenericAllocationHandle handle;
            TRY(call_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(before + offset)));
            TRY(call_cuMemMap(after + offset, chunk, 0, handle, 0));
            TRY(call_cuMemRelease(handle));
        }
        CUmemGenericAllocationHandle added;
        TRY(call_cuMemCreate(&added, chunk, &properties, 0));
        TRY(call_cuMemMap(after + old_size, chunk, 0, added, 0));
        TRY(call_cuMemRelease(added));
        TRY(call_cuMemSetAccess(after, new_size, &access_rights, 1));
        failed = release_chunks(stream, before, old_size, chunk, (size_t)number);
        elapsed += now() - start;
        failed = failed ? failed : release_chunks(stream, after, new_size, chunk, (size_t)number + 1);
        if (failed)
            return failed;
    }
    return elapsed;
}

int64_t raw_release(CUstream stream, size_t chunk, int64_t number, int64_t rounds)
{
    int64_t elapsed = 0;
    for (int64_t round = 0; round < rounds; round++) {
        CUdeviceptr address;
        size_t size = chunk * (size_t)number;
        int64_t failed = reserve_with_chunks(&address, size, chunk, (size_t)number);
        if (failed)
            return failed;
        int64_t start = now();
        failed = release_chunks(stream, address, size, chunk, (size_t)number);
        elapsed += now() - start;
        if (failed)
            return failed;
    }
    return elapsed;
}

// The chunks that `grows` grows by `step` make, the allocation counted as the first, where each maps at least half of
// what is mapped already. The package's own rule; `step` is the granularity.
static size_t geometric_chunks(size_t step, int64_t grows, size_t *sizes)
{
    size_t number = 0, mapped = 0;
    for (int64_t i = 1; i <= grows; i++) {
        size_t wanted = step * (size_t)i;
        if (wanted <= mapped)
            continue;
        size_t half = (mapped / 2 + step - 1) / step * step;
        sizes[number] = wanted - mapped > half ? wanted - mapped : half;
        mapped += sizes[number++];
    }
    return number;
}

// Releases a buffer that has grown `grows` times by `step`, with geometric growth.
int64_t raw_release_geometric(CUstream stream, size_t step, int64_t grows, int64_t rounds)
{
    size_t sizes[128]; // more than any number of grows makes
    size_t number = geometric_chunks(step, grows, sizes);
    size_t reserved = 2 * step * (size_t)grows;
    int64_t elapsed = 0;
    for (int64_t round = 0; round < rounds; round++) {
        CUdeviceptr address, at;
        TRY(call_cuMemAddressReserve(&address, reserved, 0, 0, 0));
        at = address;
        for (size_t i = 0; i < number; at += sizes[i++]) {
            int64_t failed = add_chunk(at, sizes[i]);
            if (failed)
                return failed;
        }
        int64_t start = now();
        TRY(call_cuStreamSynchronize(stream));
        at = address;
        for (size_t i = 0; i < number; at += sizes[i++])
            TRY(call_cuMemUnmap(at, sizes[i]));
        TRY(call_cuMemAddressFree(address, reserved));
        elapsed += now() - start;
    }
    return elapsed;
}
