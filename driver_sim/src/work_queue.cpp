// SPDX-License-Identifier: Apache-2.0
// Work on streams: first in, first out on each; events and the legacy stream order across streams.
//
// Work runs when it is submitted, on the submitting thread, unless it is held back or something in
// front of it is. Held work runs when something waits for it. Host functions run on a thread of their
// own, as a host function may wait for what the submitting thread does next.
#include "driver.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace sim {

namespace {

struct HostCall {
    Stream *stream;
    std::function<CUresult()> run;
    std::shared_ptr<const void> keeps;
};

struct Queue {
    unsigned held = 0;
    bool interleave = false;
    std::mt19937_64 random;
    std::uint64_t submitted = 0;
    std::vector<Stream *> busy;  // not idle
    std::deque<HostCall> host_calls;
    std::condition_variable host_call_given;
    bool host_thread = false;
};

Queue &queue() {
    static Queue *instance = new Queue;
    return *instance;
}

thread_local bool on_host_thread = false;

double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void settle(Stream &stream) {
    if (!stream.idle())
        return;
    stream.behind.clear();
    auto &busy = queue().busy;
    busy.erase(std::remove(busy.begin(), busy.end(), &stream), busy.end());
    if (stream.destroyed)
        retire(&stream);
}

bool in_front(const Stream &other, const Work &work) {
    return other.running_host_function || (!other.queue.empty() && other.queue.front().order < work.order);
}

// The stream whose work has to run first, or null.
Stream *blocker(Stream &stream) {
    const Work &head = stream.queue.front();
    if (head.kind == WorkKind::Wait && !head.marker->done)
        return head.marker->stream;
    Context &context = *stream.context;
    if (stream.is_legacy) {
        for (Stream *other : queue().busy)
            if (other != &stream && other->context == &context && other->blocking() && in_front(*other, head))
                return other;
    } else if (stream.blocking() && context.legacy && in_front(*context.legacy, head)) {
        return context.legacy;
    }
    return nullptr;
}

bool runnable(Stream &stream) { return !stream.queue.empty() && !stream.running_host_function && !blocker(stream); }

void pump(Lock &lock);

void host_thread_main() {
    Queue &q = queue();
    on_host_thread = true;
    Lock lock(driver().mutex);
    for (;;) {
        while (q.host_calls.empty())
            q.host_call_given.wait(lock);
        HostCall call = std::move(q.host_calls.front());
        q.host_calls.pop_front();
        lock.unlock();
        call.run();
        lock.lock();
        call.keeps.reset();
        if (call.stream) {
            call.stream->running_host_function = false;
            settle(*call.stream);
        }
        if (!q.held)
            pump(lock);
        driver().progress.notify_all();
    }
}

void give_to_host_thread(Stream *stream, std::function<CUresult()> run, std::shared_ptr<const void> keeps = nullptr) {
    Queue &q = queue();
    if (stream)
        stream->running_host_function = true;
    q.host_calls.push_back({stream, std::move(run), std::move(keeps)});
    q.host_call_given.notify_one();
}

void execute(Stream &stream, Work &work) {
    switch (work.kind) {
    case WorkKind::Wait:
    case WorkKind::LaunchEnd:
        break;
    case WorkKind::Record:
        work.marker->milliseconds = now();
        work.marker->done = true;
        if (work.marker->shared)
            shared_complete(*work.marker->shared, work.marker->number);
        break;
    case WorkKind::HostFunction:
        give_to_host_thread(&stream, std::move(work.run), std::move(work.keeps));
        break;
    default:
        // Nothing more runs on a context after a fault; events still complete, so nobody hangs.
        if (stream.context->fault == CUDA_SUCCESS || work.kind == WorkKind::PoolFree)
            if (CUresult fault = work.run())
                stream.context->fault = fault;
    }
}

void run_head(Stream &stream) {
    Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    execute(stream, work);
    settle(stream);
}

// Runs one piece of work that `stream` needs; false when a host function is in the way.
bool advance(Stream *stream) {
    while (!stream->running_host_function && !stream->queue.empty()) {
        Stream *first = blocker(*stream);
        if (!first) {
            run_head(*stream);
            return true;
        }
        stream = first;
    }
    return false;
}

bool run_any() {
    Queue &q = queue();
    std::vector<Stream *> candidates;
    for (Stream *stream : q.busy)
        if (runnable(*stream))
            candidates.push_back(stream);
    if (candidates.empty())
        return false;
    Stream *chosen = candidates[pick(candidates.size())];
    if (!q.interleave)
        for (Stream *stream : candidates)
            if (stream->queue.front().order < chosen->queue.front().order)
                chosen = stream;
    run_head(*chosen);
    return true;
}

void pump(Lock &) {
    while (run_any()) {
    }
}

// `needed` names a stream whose work is waited for, null when there is none left.
template <class Needed> void wait_until_done(Lock &lock, Needed needed) {
    while (Stream *stream = needed()) {
        if (on_host_thread)  // where no other host function can run meanwhile: it would wait for ever
            throw CUDA_ERROR_NOT_PERMITTED;
        bool ran = queue().interleave ? run_any() : advance(stream);
        if (!ran)
            driver().progress.wait(lock);
    }
}

}  // namespace

CUresult submit(Lock &lock, Stream &stream, Work work) {
    Queue &q = queue();
    if (work.kind == WorkKind::HostFunction)
        start_host_thread();
    if (stream.capture)
        return capture_work(stream, std::move(work));
    work.order = ++q.submitted;
    if (q.held == 0 && q.busy.empty() && work.kind != WorkKind::HostFunction) {
        execute(stream, work);
        return CUDA_SUCCESS;
    }
    if (work.kind == WorkKind::Record) {
        work.marker->order = work.order;
        work.marker->behind = stream.behind;
    } else if (work.kind == WorkKind::Wait && !work.marker->done) {
        for (auto &[other, order] : work.marker->behind)
            stream.behind[other] = std::max(stream.behind[other], order);
        std::uint64_t &known = stream.behind[work.marker->stream];
        known = std::max(known, work.marker->order);
    }
    if (stream.idle())
        q.busy.push_back(&stream);
    stream.queue.push_back(std::move(work));
    if (q.held == 0)
        pump(lock);
    return CUDA_SUCCESS;
}

bool work_is_queued() { return queue().held != 0 || !queue().busy.empty(); }

std::uint64_t next_order() { return queue().submitted + 1; }

bool ordered_behind(const Stream &stream, Stream &other, std::uint64_t order) {
    if (&stream == &other)
        return true;
    auto known = stream.behind.find(&other);
    return known != stream.behind.end() && known->second > order;
}

bool blocking_streams_idle(Context &context) {
    for (Stream *stream : queue().busy)
        if (stream->context == &context && stream->blocking())
            return false;
    return true;
}

void wait_for_stream(Lock &lock, Stream &stream) {
    if (stream.is_legacy) {
        // What was submitted to blocking streams comes before a wait for the legacy stream.
        Context &context = *stream.context;
        wait_until_done(lock, [&]() -> Stream * {
            for (Stream *other : queue().busy)
                if (other->context == &context && other->blocking())
                    return other;
            return nullptr;
        });
        return;
    }
    wait_until_done(lock, [&] { return stream.idle() ? nullptr : &stream; });
}

void wait_for_marker(Lock &lock, const std::shared_ptr<Marker> &marker) {
    wait_until_done(lock, [&] { return marker->done ? nullptr : marker->stream; });
}

void wait_for_context(Lock &lock, Context &context) {
    wait_until_done(lock, [&]() -> Stream * {
        for (Stream *stream : queue().busy)
            if (stream->context == &context)
                return stream;
        return nullptr;
    });
}

void forget_work(Context &context) {
    auto busy = queue().busy;
    for (Stream *stream : busy) {
        if (stream->context != &context)
            continue;
        for (Work &work : stream->queue) {
            if (work.kind == WorkKind::Record)
                work.marker->done = true;
            else if (work.kind == WorkKind::PoolFree)
                work.run();  // the pool outlives the context
        }
        stream->queue.clear();
        settle(*stream);
    }
}

void run_everything(Lock &lock) {
    wait_until_done(lock, [&] { return queue().busy.empty() ? nullptr : queue().busy.front(); });
}

void hold_work(Lock &lock, bool hold) {
    Queue &q = queue();
    if (hold)
        ++q.held;
    else if (q.held && --q.held == 0)
        pump(lock);
}

void go_on(Lock &lock) {
    if (!queue().held)
        pump(lock);
    driver().progress.notify_all();
}

void start_host_thread() {
    if (queue().host_thread)
        return;
    std::thread(host_thread_main).detach();
    queue().host_thread = true;
}

void call_on_host_thread(std::function<CUresult()> call) { give_to_host_thread(nullptr, std::move(call)); }

std::size_t pick(std::size_t count) {
    Queue &q = queue();
    return q.interleave ? std::size_t(q.random() % count) : 0;
}

void interleave_work(bool on, std::uint64_t seed) {
    queue().interleave = on;
    queue().random.seed(seed);
}

}  // namespace sim
