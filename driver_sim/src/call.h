// SPDX-License-Identifier: Apache-2.0
// How a driver function is defined: counted, failed on request, logged, and found by name.
#pragma once

#include "overlaps.h"
#include "passthrough.h"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <system_error>

#define SIM_EXPORT __attribute__((visibility("default")))

namespace sim {

// One record for each name, shared by its versions and its per-thread-stream variant.
struct Function {
    explicit Function(const char *name) : name(name) {}
    const char *const name;
    std::atomic<std::uint64_t> calls{0};
    std::atomic<std::uint64_t> *calls_in_children = nullptr;  // of this process and its own; shared with them
};

// What must be true before the body of a function may run.
enum class Needs {
    Nothing,         // answers before cuInit and in the child of a fork
    Initialisation,  // NOT_INITIALIZED before cuInit and in the child of a fork
};

Function &function_named(const char *name);

// Makes a symbol known to cuGetProcAddress. A null entry says: from this version on the function
// has another signature, which this driver does not have.
struct Registration {
    Registration(const char *name, int version, void *entry, void *per_thread_entry, Link *link = nullptr);
};

extern std::atomic<int> armed_failures;
extern std::atomic<int> noting;  // logs that are open, and one more when this process tells another what it does
extern std::atomic<bool> ready;  // after cuInit, and not in the child of a fork
extern std::atomic<bool> orphaned;  // in the child of a process that had called cuInit

struct Injected {
    CUresult result;
    bool effect;  // the call is made all the same
};
bool injected(Function &function, Injected &failure);  // whether there is one
void note_answer(Function &function, CUresult result);

// The call itself. `onward` calls the real driver, and stands in for the body when this library is in front of one.
template <class Body, class Real>
[[gnu::always_inline]] inline CUresult made(Function &function, Needs needs, Body &body, Real &onward) {
    if (passing())
        return onward();
    if (needs == Needs::Initialisation && !ready.load(std::memory_order_acquire))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result;
    enter_call(function.name);
    try {
        result = body();
    } catch (const std::bad_alloc &) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::system_error &) {  // a thread that could not be started
        result = CUDA_ERROR_OPERATING_SYSTEM;
    } catch (CUresult refused) {
        result = refused;
    }
    leave_call();
    return result;
}

template <class Body, class Real>
CUresult answer(Function &function, Needs needs, Body &&body, Real &&onward) {
    function.calls.fetch_add(1, std::memory_order_relaxed);
    if (orphaned.load(std::memory_order_relaxed))
        function.calls_in_children->fetch_add(1, std::memory_order_relaxed);
    Injected failure;
    if (armed_failures.load(std::memory_order_relaxed) != 0 && injected(function, failure)) {
        // Real drivers, too, refuse some calls that have done their work. Watchers see how it went. The call is made
        // here as well as below, so that one without failures has no other result to look for behind it.
        if (failure.effect)
            made(function, needs, body, onward);
        note_answer(function, failure.result);
        return failure.result;
    }
    CUresult result = made(function, needs, body, onward);
    if (result != CUDA_SUCCESS || noting.load(std::memory_order_relaxed) != 0)
        note_answer(function, result);
    return result;
}

// While one lives on a thread, the default stream of this thread is the per-thread one.
struct PerThreadDefault {
    PerThreadDefault();
    ~PerThreadDefault();
};

}  // namespace sim

// The body of an exported function: of the simulated driver, or of the real one behind this library.
#define DRIVER_CALL_ANSWER(needs, symbol, arguments, per_thread)                             \
    ::sim::answer(symbol##_function, needs, [&] { return symbol##_body arguments; },         \
                  [&] { return ::sim::Onward<decltype(symbol)>{symbol##_link, per_thread} arguments; })

#define DRIVER_CALL_BEGIN(needs, name, symbol, parameters, arguments)                        \
    static CUresult symbol##_body parameters;                                                \
    static ::sim::Function &symbol##_function = ::sim::function_named(name);                 \
    static ::sim::Link symbol##_link{#symbol};                                               \
    extern "C" SIM_EXPORT CUresult symbol parameters {                                       \
        return DRIVER_CALL_ANSWER(needs, symbol, arguments, false);                          \
    }

#define DRIVER_CALL_END(name, symbol, version, parameters, per_thread_entry)                 \
    static const ::sim::Registration symbol##_registration{name, version, (void *)&symbol,   \
                                                           per_thread_entry, &symbol##_link}; \
    static CUresult symbol##_body parameters

// DRIVER_CALL(name, symbol, version, parameters, arguments) { body }
// `name` is what cuGetProcAddress is asked for, `version` the CUDA version that introduced `symbol`.
#define DRIVER_CALL_NEEDING(needs, name, symbol, version, parameters, arguments)             \
    DRIVER_CALL_BEGIN(needs, name, symbol, parameters, arguments)                            \
    DRIVER_CALL_END(name, symbol, version, parameters, nullptr)

#define DRIVER_CALL(name, symbol, version, parameters, arguments) \
    DRIVER_CALL_NEEDING(::sim::Needs::Initialisation, name, symbol, version, parameters, arguments)

// For functions with a parameter called `stream`: the _ptsz variant reads the null stream as the
// per-thread one.
#define DRIVER_CALL_ON_STREAM_NEEDING(needs, name, symbol, version, parameters, arguments)   \
    DRIVER_CALL_BEGIN(needs, name, symbol, parameters, arguments)                            \
    extern "C" SIM_EXPORT CUresult symbol##_ptsz parameters;                                 \
    extern "C" SIM_EXPORT CUresult symbol##_ptsz parameters {                                \
        if (!stream)                                                                         \
            stream = CU_STREAM_PER_THREAD;                                                   \
        return DRIVER_CALL_ANSWER(needs, symbol, arguments, true);                           \
    }                                                                                        \
    DRIVER_CALL_END(name, symbol, version, parameters, (void *)&symbol##_ptsz)

#define DRIVER_CALL_ON_STREAM(name, symbol, version, parameters, arguments) \
    DRIVER_CALL_ON_STREAM_NEEDING(::sim::Needs::Initialisation, name, symbol, version, parameters, arguments)

// For functions that use the default stream without naming it: the _ptds variant.
#define DRIVER_CALL_ON_DEFAULT_STREAM(name, symbol, version, parameters, arguments)          \
    DRIVER_CALL_BEGIN(::sim::Needs::Initialisation, name, symbol, parameters, arguments)     \
    extern "C" SIM_EXPORT CUresult symbol##_ptds parameters;                                 \
    extern "C" SIM_EXPORT CUresult symbol##_ptds parameters {                                \
        ::sim::PerThreadDefault per_thread;                                                  \
        return DRIVER_CALL_ANSWER(::sim::Needs::Initialisation, symbol, arguments, true);    \
    }                                                                                        \
    DRIVER_CALL_END(name, symbol, version, parameters, (void *)&symbol##_ptds)
