// SPDX-License-Identifier: Apache-2.0
// The names of all functions, how often each was called, what was refused, and failures on request.
#include "registry.h"

#include "reports.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>

namespace sim {

std::atomic<int> armed_failures{0};
std::atomic<int> noting{0};
std::atomic<bool> orphaned{false};

Registry &registry() {
    // Never destroyed: driver calls can come after the destructors of this library have run.
    static Registry *instance = new Registry;
    return *instance;
}

namespace {

void after_fork_in_child() {
    Registry &r = registry();
    r.mutex.unlock();
    forget_overlaps();  // the parent's
    if (r.initialised_before_reset || function_named("cuInit").calls.load(std::memory_order_relaxed))
        orphaned = true;
}

// A fork must not copy the locked mutex: a child notes what it is refused. These are set when the library is
// loaded, before those of the driver: a fork takes the mutex of the driver first, as everything else does.
[[maybe_unused]] const int forks =
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, after_fork_in_child);

}  // namespace

Registry::Registry() {
    void *shared = mmap(nullptr, most_functions * sizeof(*counts_of_children), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        throw std::bad_alloc();
    counts_of_children = new (shared) std::atomic<std::uint64_t>[most_functions];
}

Function &function_named(const char *name) {
    Registry &r = registry();
    auto found = r.functions.find(name);
    if (found == r.functions.end()) {
        if (r.functions.size() == Registry::most_functions)
            throw std::bad_alloc();
        found = r.functions.emplace(name, std::make_unique<Function>(name)).first;
        found->second->calls_in_children = &r.counts_of_children[r.functions.size() - 1];
    }
    return *found->second;
}

Registration::Registration(const char *name, int version, void *entry, void *per_thread_entry, Link *link) {
    registry().symbols[name].push_back({version, entry, per_thread_entry, link});
}

bool injected(Function &function, Injected &failure) {
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    // Each counts every call, so that what one of them means does not depend on the others.
    Failure *fires = nullptr;
    for (auto &[id, armed] : r.failures) {
        if (armed.function != &function)
            continue;
        ++armed.seen;
        if (armed.seen == armed.nth || (armed.sticky && armed.seen > armed.nth))
            fires = &armed;  // in the end the one armed last
    }
    if (!fires)
        return false;
    ++fires->fired;
    failure = {fires->result, fires->effect};
    return true;
}

void note_answer(Function &function, CUresult result) {
    bool refused = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    if (noting.load(std::memory_order_relaxed) != 0)
        report_call(refused ? function.name : nullptr, result);
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    if (refused) {
        ++r.refused_total;
        if (r.refused.size() < Registry::kept_entries)
            r.refused.push_back({function.name, result});
    }
    for (auto &[id, log] : r.logs)
        if (log.open) {
            ++log.total;
            if (log.calls.size() < Registry::kept_entries)
                log.calls.push_back({function.name, result});
        }
}

int Registry::arm(const char *name, std::uint64_t nth, CUresult result, bool sticky, bool effect) {
    auto found = functions.find(name);
    if (found == functions.end())
        return -1;
    std::lock_guard<std::mutex> guard(mutex);
    int id = next_failure++;
    failures[id] = Failure{found->second.get(), nth, result, sticky, effect, 0, 0};
    armed_failures.fetch_add(1);
    return id;
}

std::uint64_t Registry::fired(int id) {
    std::lock_guard<std::mutex> guard(mutex);
    auto found = failures.find(id);
    return found == failures.end() ? 0 : found->second.fired;
}

void Registry::disarm(int id) {
    std::lock_guard<std::mutex> guard(mutex);
    if (failures.erase(id))
        armed_failures.fetch_sub(1);
}

int Registry::open_log() {
    std::lock_guard<std::mutex> guard(mutex);
    logs[next_log];
    noting.fetch_add(1);
    return next_log++;
}

void Registry::close_log(int id) {
    std::lock_guard<std::mutex> guard(mutex);
    auto found = logs.find(id);
    if (found != logs.end() && found->second.open) {
        found->second.open = false;
        noting.fetch_sub(1);
    }
}

void Registry::forget_log(int id) {
    close_log(id);
    std::lock_guard<std::mutex> guard(mutex);
    logs.erase(id);
}

void Registry::reset() {
    report_reset();
    forget_overlaps();
    std::lock_guard<std::mutex> guard(mutex);
    if (function_named("cuInit").calls.load(std::memory_order_relaxed))
        initialised_before_reset = true;
    for (auto &entry : functions) {
        entry.second->calls.store(0, std::memory_order_relaxed);
        entry.second->calls_in_children->store(0, std::memory_order_relaxed);
    }
    refused.clear();
    refused_total = 0;
}

}  // namespace sim
