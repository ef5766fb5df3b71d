// SPDX-License-Identifier: Apache-2.0
#include "overlaps.h"

#include "registry.h"

#include <iterator>

namespace sim {

__thread CallOfThread this_call{nullptr, 0, nullptr};
std::atomic<std::uint64_t> overlap_clock{0};

namespace {

// Guarded by the mutex of the registry, which a fork does not copy while it is locked; the total can be read without.
Overlaps &noted() {
    static auto &list = *new Overlaps;
    return list;
}
std::atomic<std::uint64_t> total{0};

struct Ended {
    const void *thing = nullptr;
    Touch last;
};
Ended ended[64];  // guarded by `driver().mutex`
std::size_t ended_next = 0;

}  // namespace

void note_overlap(const char *other_function) {
    this_call.entered = UINT64_MAX;
    this_call.beside_use = nullptr;
    std::lock_guard<std::mutex> guard(registry().mutex);
    Overlaps &list = noted();
    if (list.calls.size() < Overlaps::kept_entries)
        list.calls.emplace_back(this_call.function, other_function);
    total.fetch_add(1, std::memory_order_relaxed);
}

void note_end(const void *thing) {
    Ended &entry = ended[ended_next++ % std::size(ended)];
    entry = {thing, {}};
    entry.last.note();
}

void check_ended(const void *thing) {
    for (const Ended &entry : ended)
        if (entry.thing == thing)
            entry.last.check();
}

Overlaps overlaps() {
    std::lock_guard<std::mutex> guard(registry().mutex);
    Overlaps copy = noted();
    copy.total = overlaps_total();
    return copy;
}

std::uint64_t overlaps_total() { return total.load(std::memory_order_relaxed); }

void forget_overlaps() {
    std::lock_guard<std::mutex> guard(registry().mutex);
    noted() = {};
    total.store(0, std::memory_order_relaxed);
}

}  // namespace sim
