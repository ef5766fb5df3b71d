// SPDX-License-Identifier: Apache-2.0
// In front of a real driver: the functions that this library knows count, log and fail on request, and
// then call the real one; what the program makes and gives back is written down for `live`.
//
// The library that is built with `front/entries.cpp` passes through, the other one simulates.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <type_traits>

// Defined by front/entries.cpp only.
extern "C" __attribute__((weak, visibility("hidden"))) const char cuda_driver_sim_is_front[];

namespace sim {

inline bool passing() { return cuda_driver_sim_is_front != nullptr; }

// What an exported function of this library stands in front of. Filled by the first use of the real driver.
struct Link {
    constexpr explicit Link(const char *symbol) : symbol(symbol) {}
    const char *const symbol;
    std::atomic<void *> real{nullptr}, real_per_thread{nullptr};
    void *watcher = nullptr;

    void *target(bool per_thread) {
        void *found = (per_thread ? real_per_thread : real).load(std::memory_order_acquire);
        return found ? found : find(per_thread);
    }
    void *find(bool per_thread);
};

CUresult no_real_function();  // the answer when the real driver has no such function, or is not there

// The call of the real function with the arguments of ours; a watcher makes it when there is one.
template <class Signature> struct Onward;
template <class... P> struct Onward<CUresult(P...)> {
    Link &link;
    bool per_thread;

    CUresult operator()(P... arguments) const {
        auto real = reinterpret_cast<CUresult (*)(P...)>(link.target(per_thread));
        if (!real)
            return no_real_function();
        if (link.watcher)
            return reinterpret_cast<CUresult (*)(CUresult (*)(P...), P...)>(link.watcher)(real, arguments...);
        return real(arguments...);
    }
};

// --- passthrough.cpp ---

struct Watcher {
    Watcher(const char *symbol, void *function);
};

// Opens the real driver unless it is open; says why it cannot, or nothing.
const std::string &open_real_driver();
const std::string &real_driver_path();
void *exported_by_real(const char *symbol);  // null when the real driver does not export it

CUresult proc_address_of_real(const char *symbol, void **pfn, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status);
CUresult proc_address_of_real_v1(const char *symbol, void **pfn, int version, cuuint64_t flags);

}  // namespace sim

// WATCH(symbol, parameters) { body }: what an exported function does instead of calling the real one, which
// the body does itself through `real`.
#define WATCH(symbol, ...)                                                                          \
    static_assert(std::is_same_v<decltype(symbol), CUresult(__VA_ARGS__)>);                         \
    static CUresult symbol##_watched(decltype(&symbol) real, __VA_ARGS__);                          \
    static const ::sim::Watcher symbol##_watcher{#symbol, reinterpret_cast<void *>(&symbol##_watched)}; \
    static CUresult symbol##_watched(decltype(&symbol) real, __VA_ARGS__)
