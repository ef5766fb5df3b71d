// SPDX-License-Identifier: Apache-2.0
// Calls of two threads at one time that a real driver does not keep apart: beside the begin or the end of a
// capture of the same stream, and on one capture, graph or executable graph, where the process may crash; and the
// launch of a graph that keeps user objects beside a query or a synchronise of its stream, where the launch may be
// answered with an error although the graph runs, so that whoever believes it gives memory back that is in use.
// Here one mutex keeps all calls apart, so that such an overlap is noted instead.
//
// A clock counts what touches these things. A call overlaps another thread's when that has touched the same thing
// later than the call was entered: both were under way then, so what is noted is never wrong. Not every overlap is
// seen: the second call may come in when the first one has touched the thing and has not yet returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sim {

struct CallOfThread {
    const char *function;    // null outside of calls, where nothing is noted
    std::uint64_t entered;
    const char *beside_use;  // what another thread has called meanwhile on the stream that this call uses
};

// Plain, so that no access asks first whether it is initialised. Its address names the thread: a thread that gets
// that of an ended one has entered all of its calls later.
extern __thread CallOfThread this_call;
extern std::atomic<std::uint64_t> overlap_clock;  // moved on with the mutex of the driver held

inline void enter_call(const char *function) {
    this_call = {function, overlap_clock.load(std::memory_order_relaxed), nullptr};
}
inline void leave_call() { this_call.function = nullptr; }

void note_overlap(const char *other_function);  // of this thread's call; one is enough for a call

// Who has touched something last. Guarded by `driver().mutex`.
struct Touch {
    const CallOfThread *by = nullptr;
    const char *function = nullptr;
    std::uint64_t at = 0;

    bool beside() const { return this_call.function && at > this_call.entered && by != &this_call; }

    void check() const {
        if (beside())
            note_overlap(function);
    }

    void note() {
        if (!this_call.function)
            return;
        std::uint64_t now = overlap_clock.load(std::memory_order_relaxed) + 1;
        overlap_clock.store(now, std::memory_order_relaxed);
        *this = {&this_call, this_call.function, now};
    }

    void touch() {
        check();
        note();
    }
};

// What was ended a moment ago, by its handle: a call that was entered before then may come to it later.
void note_end(const void *thing);
void check_ended(const void *thing);

struct Overlaps {
    static constexpr std::size_t kept_entries = 100;
    std::vector<std::pair<const char *, const char *>> calls;  // a function, and the other thread's
    std::uint64_t total = 0;
};

Overlaps overlaps();
std::uint64_t overlaps_total();
void forget_overlaps();

}  // namespace sim
