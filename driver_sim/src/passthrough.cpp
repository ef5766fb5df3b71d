// SPDX-License-Identifier: Apache-2.0
// The real driver behind this library: where it is, and which of its functions stand behind which of ours.
#include "passthrough.h"

#include "control.h"
#include "registry.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

namespace sim {

namespace {

using GetProcAddress = CUresult (*)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
using GetProcAddressV1 = CUresult (*)(const char *, void **, int, cuuint64_t);

struct RealDriver {
    void *library = nullptr;
    std::string path, trouble;
    GetProcAddress get = nullptr;
    GetProcAddressV1 get_v1 = nullptr;
};

std::map<std::string, void *> &watchers() {
    static auto *all = new std::map<std::string, void *>;
    return *all;
}

void *look_up(const RealDriver &real, const char *name, int version, cuuint64_t flags) {
    void *found = nullptr;
    CUdriverProcAddressQueryResult status;
    return real.get(name, &found, version, flags, &status) == CUDA_SUCCESS ? found : nullptr;
}

// A function of ours stands in front of the one that the real driver gives for the version that introduced
// the signature. What it gives for other versions may have another signature, and is handed out as it is.
void link_all(const RealDriver &real) {
    for (auto &[name, symbols] : registry().symbols)
        for (const Symbol &symbol : symbols) {
            if (!symbol.link)
                continue;
            auto watcher = watchers().find(symbol.link->symbol);
            if (watcher != watchers().end())
                symbol.link->watcher = watcher->second;
            if (symbol.per_thread_entry)
                symbol.link->real_per_thread.store(look_up(real, name.c_str(), symbol.version,
                                                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
                                                   std::memory_order_release);
            symbol.link->real.store(
                look_up(real, name.c_str(), symbol.version, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
                std::memory_order_release);
        }
}

// A program that is linked to the driver looks functions up while it is started, before the C library has set up
// the environment for getenv.
std::string setting() {
    const std::string name = "CUDA_DRIVER_SIM_REAL=";
    if (environ) {
        const char *value = std::getenv("CUDA_DRIVER_SIM_REAL");
        return value ? value : "";
    }
    std::ifstream file("/proc/self/environ");
    for (std::string entry; std::getline(file, entry, '\0');)
        if (entry.compare(0, name.size(), name) == 0)
            return entry.substr(name.size());
    return "";
}

void open(RealDriver &real) {
    real.path = setting();
    if (real.path.find('/') == std::string::npos) {
        real.trouble = "CUDA_DRIVER_SIM_REAL does not name the file of the real driver";
        return;
    }
    // Local: who looks for a function by name finds ours first, and theirs through front/entries.cpp.
    real.library = dlopen(real.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!real.library) {
        real.trouble = dlerror();
        return;
    }
    if (dlsym(real.library, "cudaDriverSimOpenReal") == reinterpret_cast<void *>(&cudaDriverSimOpenReal)) {
        real.trouble = real.path + " is this library itself";
        return;
    }
    real.get = reinterpret_cast<GetProcAddress>(dlsym(real.library, "cuGetProcAddress_v2"));
    real.get_v1 = reinterpret_cast<GetProcAddressV1>(dlsym(real.library, "cuGetProcAddress"));
    if (!real.get || !real.get_v1) {
        real.trouble = real.path + " has no cuGetProcAddress_v2: a driver for CUDA 12 or later is needed";
        return;
    }
}

const RealDriver &opened() {
    static RealDriver *instance = [] {
        auto *made = new RealDriver;
        open(*made);
        return made;
    }();
    return *instance;
}

// Linked only when a function of ours is called or asked for: at the start of a program that is linked to the
// driver, the real one may be opened before the functions of this library have registered themselves.
const RealDriver &real_driver() {
    const RealDriver &real = opened();
    static const bool linked = [&] {
        if (real.trouble.empty())
            link_all(real);
        return true;
    }();
    (void)linked;
    return real;
}

// Ours in front of `*pfn`, which the real driver has given for that name.
void put_in_front(const char *name, void **pfn) {
    auto found = registry().symbols.find(name);
    if (found == registry().symbols.end())
        return;
    for (const Symbol &symbol : found->second) {
        if (!symbol.link)
            continue;
        if (symbol.link->real.load(std::memory_order_acquire) == *pfn) {
            *pfn = symbol.entry;
            return;
        }
        if (symbol.per_thread_entry && symbol.link->real_per_thread.load(std::memory_order_acquire) == *pfn) {
            *pfn = symbol.per_thread_entry;
            return;
        }
    }
}

void note_absent(const char *name) {
    std::lock_guard<std::mutex> guard(registry().mutex);
    registry().absent.insert(name);
}

}  // namespace

Watcher::Watcher(const char *symbol, void *function) { watchers()[symbol] = function; }

const std::string &open_real_driver() { return real_driver().trouble; }

const std::string &real_driver_path() { return opened().path; }

void *exported_by_real(const char *symbol) {
    const RealDriver &real = opened();
    return real.trouble.empty() ? dlsym(real.library, symbol) : nullptr;
}

void *Link::find(bool per_thread) {
    real_driver();
    return (per_thread ? real_per_thread : real).load(std::memory_order_acquire);
}

CUresult no_real_function() {
    return real_driver().trouble.empty() ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_STUB_LIBRARY;
}

CUresult proc_address_of_real(const char *symbol, void **pfn, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status) {
    const RealDriver &real = real_driver();
    if (!real.trouble.empty())
        return CUDA_ERROR_STUB_LIBRARY;
    CUresult result = real.get(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && *pfn)
        put_in_front(symbol, pfn);
    else if (result == CUDA_SUCCESS)
        note_absent(symbol);
    return result;
}

CUresult proc_address_of_real_v1(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    const RealDriver &real = real_driver();
    if (!real.trouble.empty())
        return CUDA_ERROR_STUB_LIBRARY;
    CUresult result = real.get_v1(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS && *pfn)
        put_in_front(symbol, pfn);
    else if (result == CUDA_ERROR_NOT_FOUND)
        note_absent(symbol);
    return result;
}

}  // namespace sim
