// SPDX-License-Identifier: Apache-2.0
// The control interface: plain C functions for whoever watches or steers the simulated driver.
#include "control.h"

#include "driver.h"
#include "live.h"
#include "overlaps.h"
#include "registry.h"
#include "reports.h"
#include "summary.h"

#include <algorithm>
#include <cstring>
#include <string>

using namespace sim;

namespace {

// Writes at most `capacity` bytes with a final zero; returns the bytes that all of it needs.
std::size_t write_out(const std::string &text, char *out, std::size_t capacity) {
    if (out && capacity) {
        std::size_t n = std::min(text.size(), capacity - 1);
        std::memcpy(out, text.data(), n);
        out[n] = 0;
    }
    return text.size() + 1;
}

void line(std::string &out, const char *name, std::uint64_t count) {
    if (count)
        out += std::string(name) + ' ' + std::to_string(count) + '\n';
}

std::string answers(std::uint64_t total, const std::vector<Answer> &list) {
    std::string out = std::to_string(total) + '\n';
    for (const Answer &a : list)
        out += std::string(a.name) + ' ' + std::to_string(int(a.result)) + '\n';
    return out;
}

}  // namespace

extern "C" SIM_EXPORT int cudaDriverSimInterfaceVersion(void) { return 3; }

extern "C" SIM_EXPORT size_t cudaDriverSimOpenReal(char *out, size_t capacity) {
    return write_out(passing() ? open_real_driver() : "", out, capacity);
}

extern "C" SIM_EXPORT int cudaDriverSimIsFront(void) { return passing(); }

extern "C" SIM_EXPORT size_t cudaDriverSimReal(char *out, size_t capacity) {
    return write_out(passing() ? real_driver_path() : "", out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimLive(char *out, size_t capacity) {
    std::string text;
    with_live_objects([&](const LiveCounts &counts) {
        for (int kind = 0; kind < live_kinds; ++kind)
            line(text, live_kind_names[kind], counts[kind]);
    });
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimCalls(char *out, size_t capacity) {
    std::string text;
    for (auto &entry : registry().functions)
        line(text, entry.first.c_str(), entry.second->calls.load(std::memory_order_relaxed));
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimCallsInChildren(char *out, size_t capacity) {
    std::string text;
    for (auto &entry : registry().functions)
        line(text, entry.first.c_str(), entry.second->calls_in_children->load(std::memory_order_relaxed));
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimRefused(char *out, size_t capacity) {
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    return write_out(answers(r.refused_total, r.refused), out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimOverlaps(char *out, size_t capacity) {
    Overlaps noted = overlaps();
    std::string text = std::to_string(noted.total) + '\n';
    for (auto &[function, other] : noted.calls)
        text += std::string(function) + ' ' + other + '\n';
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimFunctions(char *out, size_t capacity) {
    std::string text;
    for (auto &entry : registry().functions)
        text += entry.first + '\n';
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimAbsent(char *out, size_t capacity) {
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    std::string text;
    for (const std::string &name : r.absent)
        text += name + '\n';
    return write_out(text, out, capacity);
}

extern "C" SIM_EXPORT int cudaDriverSimFail(const char *name, unsigned long long nth, int result, int sticky,
                                            int effect) {
    return registry().arm(name, nth, CUresult(result), sticky != 0, effect != 0);
}

extern "C" SIM_EXPORT unsigned long long cudaDriverSimFired(int failure) { return registry().fired(failure); }

extern "C" SIM_EXPORT void cudaDriverSimDisarm(int failure) { registry().disarm(failure); }

extern "C" SIM_EXPORT void cudaDriverSimReset(void) { registry().reset(); }

extern "C" SIM_EXPORT int cudaDriverSimOpenLog(void) { return registry().open_log(); }

extern "C" SIM_EXPORT void cudaDriverSimCloseLog(int log) { registry().close_log(log); }

extern "C" SIM_EXPORT void cudaDriverSimForgetLog(int log) { registry().forget_log(log); }

extern "C" SIM_EXPORT size_t cudaDriverSimLog(int log, char *out, size_t capacity) {
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    auto found = r.logs.find(log);
    return write_out(found == r.logs.end() ? "0\n" : answers(found->second.total, found->second.calls), out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimOpenReports(char *out, size_t capacity) {
    return write_out(open_reports(), out, capacity);
}

extern "C" SIM_EXPORT size_t cudaDriverSimSummary(char *out, size_t capacity) {
    bool left;
    return write_out(summary(left), out, capacity);
}

// Behind this library can be a simulated driver, too: it is the one that holds work.
template <class Function> static Function *of_real(Function *, const char *name) {
    return passing() ? reinterpret_cast<Function *>(exported_by_real(name)) : nullptr;
}

extern "C" SIM_EXPORT int cudaDriverSimCanHold(void) {
    return !passing() || of_real(&cudaDriverSimHold, "cudaDriverSimHold");
}

extern "C" SIM_EXPORT void cudaDriverSimHold(int hold) {
    if (auto *real = of_real(&cudaDriverSimHold, "cudaDriverSimHold"))
        return real(hold);
    Lock lock(driver().mutex);
    if (!forked())  // in a child the queued work is the parent's
        hold_work(lock, hold != 0);
}

extern "C" SIM_EXPORT int cudaDriverSimRun(void *stream) {
    if (auto *real = of_real(&cudaDriverSimRun, "cudaDriverSimRun"))
        return real(stream);
    Lock lock(driver().mutex);
    if (forked())  // where nothing is queued
        return stream ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    try {
        Stream *s;
        if (!stream) {
            run_everything(lock);
        } else if (CUresult bad = find_stream(static_cast<CUstream>(stream), s)) {
            return bad;
        } else {
            wait_for_stream(lock, *s);
        }
    } catch (CUresult refused) {  // a wait on the thread of host functions
        return refused;
    }
    return CUDA_SUCCESS;
}

extern "C" SIM_EXPORT void cudaDriverSimInterleave(int on, unsigned long long seed) {
    if (auto *real = of_real(&cudaDriverSimInterleave, "cudaDriverSimInterleave"))
        return real(on, seed);
    Lock lock(driver().mutex);
    interleave_work(on != 0, seed);
}
