// SPDX-License-Identifier: Apache-2.0
// cuInit, the version, the settings from the environment, and what a fork does.
#include "driver.h"

#include <pthread.h>

#include <strings.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sim {

std::atomic<bool> ready{false};

Driver *const the_driver = new Driver;

namespace {

bool forked_after_init = false;
bool opened = false, failed = false;

constexpr std::size_t default_memory = std::size_t(8) << 30;
constexpr std::size_t most_addresses = std::size_t(1) << 45, least_addresses = std::size_t(1) << 36;
constexpr std::size_t most_memory = std::size_t(1) << 44;

// What a variable of the environment says; an empty one says nothing.
const char *setting(const char *variable) {
    const char *text = std::getenv(variable);
    return text && *text ? text : nullptr;
}

bool read_number(const char *&text, std::size_t &number) {
    if (*text < '0' || *text > '9')
        return false;
    char *end = nullptr;
    errno = 0;
    number = std::strtoull(text, &end, 10);
    text = end;
    return errno == 0;
}

bool refuse(const char *variable, const char *text, const char *wanted) {
    std::fprintf(stderr, "cuda_driver_sim: %s is '%s', and must be %s: cuInit answers CUDA_ERROR_UNKNOWN\n", variable,
                 text, wanted);
    return false;
}

// Digits, with a decimal fraction and a power of ten if wanted: "8589934592", "1.5", "1e9".
bool read_decimal(const char *&text, double &number) {
    auto digit = [&] { return *text >= '0' && *text <= '9'; };
    if (!digit())
        return false;
    int exponent = 0;
    for (number = 0; digit(); ++text)
        number = number * 10 + (*text - '0');
    if (*text == '.')
        for (++text; digit(); ++text, --exponent)
            number = number * 10 + (*text - '0');
    const char *end = text;
    if (*text == 'e' || *text == 'E') {
        text += text[1] == '+' ? 2 : 1;
        std::size_t power;
        if (!digit() || !read_number(text, power) || power > 30)
            text = end;
        else
            exponent += int(power);
    }
    number *= std::pow(10.0, exponent);
    return true;
}

// A number and a unit in upper or lower case: "8589934592", "8GiB", "512 MB".
bool read_bytes(const char *variable, std::size_t &bytes) {
    bytes = default_memory;
    const char *text = setting(variable), *rest = text;
    if (!text)
        return true;
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},          {"B", 1},          {"KB", 1e3},      {"MB", 1e6},       {"GB", 1e9},      {"TB", 1e12},
                 {"K", 0x1p10},    {"KiB", 0x1p10},   {"M", 0x1p20},    {"MiB", 0x1p20},   {"G", 0x1p30},    {"GiB", 0x1p30},
                 {"T", 0x1p40},    {"TiB", 0x1p40}};
    double number;
    if (read_decimal(rest, number)) {
        while (*rest == ' ')
            ++rest;
        for (auto &unit : units)
            if (strcasecmp(rest, unit.suffix) == 0 && number * unit.factor <= double(most_memory)) {
                bytes = std::size_t(number * unit.factor) / granule * granule;
                if (bytes)
                    return true;
            }
    }
    return refuse(variable, text,
                  "a number of bytes from 2MiB to 16TiB, like 8589934592, 512MiB, 4G (of 1024) or 500MB (of 1000)");
}

bool read_count(const char *variable, std::size_t &count) {
    count = 2;
    const char *text = setting(variable), *rest = text;
    if (!text || (read_number(rest, count) && !*rest && count <= std::size_t(max_devices)))
        return true;
    return refuse(variable, text, "a number from 0 to 16");
}

constexpr const char *version_variable = "CUDA_DRIVER_SIM_VERSION";

bool newer_version_wanted() {
    const char *text = setting(version_variable);
    return text && std::strcmp(text, "13.2") == 0;
}

bool check_version() {
    const char *text = setting(version_variable);
    if (!text || newer_version_wanted() || std::strcmp(text, "13.0") == 0)
        return true;
    return refuse(version_variable, text, "13.0 or 13.2");
}

bool read_switch(const char *variable, bool &on) {
    const char *text = setting(variable), *rest = text;
    std::size_t number = on;
    if (text && (!read_number(rest, number) || *rest || number > 1))
        return refuse(variable, text, "0 or 1");
    on = number != 0;
    return true;
}

// As much as the process can have, but each its share: a limit on addresses or a sanitizer may leave less than
// usual. Pools get most where it is little, as each takes twice the memory of its device.
bool open_spaces(Driver &d) {
    for (std::size_t pools = most_addresses; pools >= least_addresses; pools /= 2)
        for (std::size_t others = pools == most_addresses ? pools : pools / 2; others >= pools / 2; others /= 2) {
            if (d.pool_space.open(pools, granule) && d.virtual_space.open(others, granule) &&
                d.plain_space.open(others, page_size))
                return true;
            d.pool_space.close();
            d.virtual_space.close();
            d.plain_space.close();
        }
    std::fprintf(stderr, "cuda_driver_sim: the process cannot have %zu GiB of addresses (ulimit -v?): "
                         "cuInit answers CUDA_ERROR_UNKNOWN\n", 2 * least_addresses >> 30);
    return false;
}

bool open_driver(Driver &d) {
    std::size_t count, memory, host_memory;
    if (!read_count("CUDA_DRIVER_SIM_DEVICES", count) || !read_bytes("CUDA_DRIVER_SIM_MEMORY", memory) ||
        !read_bytes("CUDA_DRIVER_SIM_HOST_MEMORY", host_memory) ||
        !read_switch("CUDA_DRIVER_SIM_POOLS", d.has_pools) ||
        !read_switch("CUDA_DRIVER_SIM_VIRTUAL_MEMORY_RDMA", d.has_rdma_for_virtual_memory) ||
        !read_switch("CUDA_DRIVER_SIM_OLD_RIGHTS", d.keeps_old_rights) || !check_version())
        return false;
    if (!chunk_store().open()) {
        std::fprintf(stderr, "cuda_driver_sim: no file in memory can be made (%s): cuInit answers CUDA_ERROR_UNKNOWN\n",
                     std::strerror(errno));
        return false;
    }
    if (!open_spaces(d))
        return false;
    for (std::size_t i = 0; i < count; ++i) {
        auto device = std::make_unique<Device>();
        device->ordinal = int(i);
        device->total = memory;
        d.devices.push_back(std::move(device));
    }
    d.host_total = host_memory;
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

int reported_version() {
    static const int version = newer_version_wanted() ? 13020 : 13000;
    return version;
}

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
    if (failed)  // the reason has been said
        return CUDA_ERROR_UNKNOWN;
    if (!opened) {
        failed = !open_driver(d);
        if (failed)
            return CUDA_ERROR_UNKNOWN;
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
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
    *driverVersion = reported_version();
    return CUDA_SUCCESS;
}

}  // namespace sim
