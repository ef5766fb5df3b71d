// SPDX-License-Identifier: Apache-2.0
// cuInit, the version, the settings from the environment, and what a fork does.
#include "driver.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>

namespace sim {

std::atomic<bool> ready{false};

Driver *const the_driver = new Driver;

namespace {

bool forked_after_init = false;
bool opened = false;

constexpr std::size_t default_memory = std::size_t(8) << 30;
constexpr std::size_t most_addresses = std::size_t(1) << 45, least_addresses = std::size_t(1) << 36;

// "8589934592", "8GiB" or "512MiB"; 0 when it is none of these.
std::size_t parse_bytes(const char *text) {
    char *end = nullptr;
    unsigned long long number = std::strtoull(text, &end, 10);
    if (end == text)
        return 0;
    static const struct {
        const char *suffix;
        int shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    for (auto &unit : units)
        if (std::strcmp(end, unit.suffix) == 0)
            return std::size_t(number) << unit.shift;
    return 0;
}

std::size_t bytes_from(const char *variable) {
    const char *text = std::getenv(variable);
    return text ? parse_bytes(text) : default_memory;
}

// As much as the process can have: a limit on addresses or a sanitizer may leave less than usual.
bool open_space(AddressSpace &space, std::size_t granularity) {
    for (std::size_t bytes = most_addresses; bytes >= least_addresses; bytes /= 2)
        if (space.open(bytes, granularity))
            return true;
    return false;
}

bool open_driver(Driver &d) {
    int count = 2;
    if (const char *text = std::getenv("CUDA_DRIVER_SIM_DEVICES"))
        count = std::atoi(text);
    std::size_t memory = bytes_from("CUDA_DRIVER_SIM_MEMORY");
    std::size_t host_memory = bytes_from("CUDA_DRIVER_SIM_HOST_MEMORY");
    if (!memory || !host_memory)
        return false;
    if (count < 0 || count > max_devices)
        return false;
    if (!open_space(d.virtual_space, granule) || !open_space(d.plain_space, page_size) ||
        !open_space(d.pool_space, granule) || !chunk_store().open())
        return false;
    for (int i = 0; i < count; ++i) {
        auto device = std::make_unique<Device>();
        device->ordinal = i;
        device->total = memory / granule * granule;
        d.devices.push_back(std::move(device));
    }
    d.host_total = host_memory / granule * granule;
    return true;
}

// A fork must not copy a locked mutex: the child still asks for the version and for error names.
void before_fork() { driver().mutex.lock(); }
void after_fork_in_parent() { driver().mutex.unlock(); }
void after_fork_in_child() {
    driver().mutex.unlock();
    if (ready.exchange(false))
        forked_after_init = true;
}

}  // namespace

bool forked() { return forked_after_init; }

ChunkStore &chunk_store() {
    static ChunkStore *instance = new ChunkStore;
    return *instance;
}

DRIVER_CALL_NEEDING(Needs::Nothing, "cuInit", cuInit, 2000, (unsigned int Flags), (Flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (forked_after_init)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!opened) {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        if (!open_driver(d))
            return CUDA_ERROR_UNKNOWN;
        opened = true;
    }
    if (d.devices.empty())
        return CUDA_ERROR_NO_DEVICE;
    ready.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
}

DRIVER_CALL_NEEDING(Needs::Nothing, "cuDriverGetVersion", cuDriverGetVersion, 2020, (int *driverVersion),
                    (driverVersion)) {
    if (!driverVersion)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = reported_version;
    return CUDA_SUCCESS;
}

}  // namespace sim
