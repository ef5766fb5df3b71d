// SPDX-License-Identifier: Apache-2.0
// Streams, among them the legacy and the per-thread default stream of a context.
#include "graph.h"

#include <algorithm>

namespace sim {

namespace {

thread_local int per_thread_default = 0;

Stream *make_stream(Context &context, unsigned flags, int priority) {
    auto *stream = new Stream;
    stream->context = &context;
    stream->flags = flags;
    stream->priority = std::min(least_priority, std::max(greatest_priority, priority));
    stream->id = driver().next_id++;
    return stream;
}

CUresult create(CUstream *handle, unsigned flags, int priority) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (!handle || (flags & ~unsigned(CU_STREAM_NON_BLOCKING)))
        return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = make_stream(*context, flags, priority);
    d.streams.insert(stream);
    *handle = reinterpret_cast<CUstream>(stream);
    return CUDA_SUCCESS;
}

// Beside one, the launch of a graph that keeps user objects may be answered with an error although the graph runs.
void note_wait(Stream &stream) {
    stream.last_keeping_launch.check();
    stream.last_wait.note();
}

// Whether a stream of the context still is one, after the mutex was let go.
bool still_a_stream(Context &context, Stream *stream) {
    auto is = [stream](auto &entry) { return entry.second == stream; };
    return driver().streams.count(stream) || context.legacy == stream ||
           std::any_of(context.per_thread.begin(), context.per_thread.end(), is);
}

}  // namespace

PerThreadDefault::PerThreadDefault() { ++per_thread_default; }
PerThreadDefault::~PerThreadDefault() { --per_thread_default; }

Stream *legacy_stream(Context &context) {
    if (!context.legacy) {
        context.legacy = make_stream(context, CU_STREAM_DEFAULT, 0);
        context.legacy->is_default = context.legacy->is_legacy = true;
    }
    return context.legacy;
}

Stream *per_thread_stream(Context &context) {
    Stream *&stream = context.per_thread[thread_number()];
    if (!stream) {
        stream = make_stream(context, CU_STREAM_DEFAULT, 0);
        stream->is_default = true;
    }
    return stream;
}

CUresult default_stream(Stream *&stream) {
    return resolve_stream(per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, stream);
}

CUresult bad_stream(const Stream *stream) {
    if (!was_destroyed(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    stream->last_boundary.check();  // its end can have been that of a capture
    return CUDA_ERROR_INVALID_CONTEXT;
}

void note_use(Stream &stream) {
    stream.last_boundary.check();
    if (stream.last_use.beside())  // which matters if this call turns out to begin or end a capture
        this_call.beside_use = stream.last_use.function;
    stream.last_use.note();
    if (stream.capture)
        stream.capture->graph->last_touch.touch();
}

CUresult resolve_stream(CUstream handle, Stream *&stream, LegacyUse use) {
    CUresult bad = find_stream(handle, stream, use);
    if (!bad)
        note_use(*stream);
    return bad;
}

CUresult find_stream(CUstream handle, Stream *&stream, LegacyUse use) {
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        Context *context;
        if (CUresult bad = usable_context(context))
            return bad;
        stream = handle == CU_STREAM_PER_THREAD ? per_thread_stream(*context) : legacy_stream(*context);
        return stream->is_legacy ? check_legacy_allowed(*context, use == LegacyUse::Used) : CUDA_SUCCESS;
    }
    stream = reinterpret_cast<Stream *>(handle);
    Driver &d = driver();
    if (stream != d.recent_stream) {
        if (!d.streams.count(stream))
            return bad_stream(stream);
        d.recent_stream = stream;
    }
    return stream->context->fault;
}

DRIVER_CALL("cuStreamCreate", cuStreamCreate, 2000, (CUstream * phStream, unsigned int Flags), (phStream, Flags)) {
    return create(phStream, Flags, 0);
}

DRIVER_CALL("cuStreamCreateWithPriority", cuStreamCreateWithPriority, 5050,
            (CUstream * phStream, unsigned int flags, int priority), (phStream, flags, priority)) {
    return create(phStream, flags, priority);
}

DRIVER_CALL("cuStreamDestroy", cuStreamDestroy_v2, 4000, (CUstream hStream), (hStream)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    auto *stream = reinterpret_cast<Stream *>(hStream);
    auto found = d.streams.find(stream);
    if (found == d.streams.end())
        return bad_stream(stream);
    note_use(*stream);
    end_capture_of(*stream);
    d.streams.erase(found);
    d.recent_stream = nullptr;
    stream->destroyed = true;
    retired<Stream>().known.insert(stream);
    if (stream->idle())
        retire(stream);  // else when its last work has run
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamQuery", cuStreamQuery, 2000, (CUstream stream), (stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_wait_for(*s))
        return bad;
    note_wait(*s);
    if (s->is_legacy)
        return blocking_streams_idle(*s->context) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    return s->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DRIVER_CALL_ON_STREAM("cuStreamSynchronize", cuStreamSynchronize, 2000, (CUstream stream), (stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_wait_for(*s))
        return bad;
    Context *context = s->context;
    note_wait(*s);
    wait_for_stream(lock, *s);
    if (still_a_stream(*context, s))  // a launch can have come into the wait, or be about to see its end
        note_wait(*s);
    synchronised();
    return context->fault;
}

// Partly: in a capture, the external flag makes no node of its own.
DRIVER_CALL_ON_STREAM("cuStreamWaitEvent", cuStreamWaitEvent, 3020,
                      (CUstream stream, CUevent hEvent, unsigned int Flags), (stream, hEvent, Flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    auto *event = reinterpret_cast<Event *>(hEvent);
    if (!d.events.count(event))
        return bad_event(event);
    if (CUresult bad = check_capture_whole(*s))
        return bad;
    if (Flags & ~unsigned(CU_EVENT_WAIT_EXTERNAL))
        return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_WAIT_EXTERNAL) && !s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture || event->captured)
        return capture_wait(*s, *event);
    if (event->shared && (!event->recorded || event->recorded->done)) {
        wait_for_shared(lock, event->shared);
        // Another thread may have ended them meanwhile. A real driver does not wait here: this is no second use.
        if (CUresult bad = find_stream(stream, s))
            return bad;
        if (!d.events.count(event))
            return bad_event(event);
    }
    if (!event->recorded)
        return CUDA_SUCCESS;
    Work work;
    work.kind = WorkKind::Wait;
    work.marker = event->recorded;
    return submit(lock, *s, std::move(work));
}

DRIVER_CALL_ON_STREAM("cuStreamGetFlags", cuStreamGetFlags, 5050, (CUstream stream, unsigned int *flags),
                      (stream, flags)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_not_capturing(*s))
        return bad;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamGetPriority", cuStreamGetPriority, 5050, (CUstream stream, int *priority),
                      (stream, priority)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_capture_whole(*s))
        return bad;
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamGetId", cuStreamGetId, 12000, (CUstream stream, unsigned long long *streamId),
                      (stream, streamId)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_not_capturing(*s))
        return bad;
    if (!streamId)
        return CUDA_ERROR_INVALID_VALUE;
    *streamId = s->id;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamGetCtx", cuStreamGetCtx, 9020, (CUstream stream, CUcontext *pctx), (stream, pctx)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_capture_whole(*s))
        return bad;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = reinterpret_cast<CUcontext>(s->context);
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamGetCtx", cuStreamGetCtx_v2, 12050,
                      (CUstream stream, CUcontext *pCtx, CUgreenCtx *pGreenCtx), (stream, pCtx, pGreenCtx)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (CUresult bad = check_capture_whole(*s))
        return bad;
    if (!pCtx || !pGreenCtx)
        return CUDA_ERROR_INVALID_VALUE;
    *pCtx = reinterpret_cast<CUcontext>(s->context);
    *pGreenCtx = nullptr;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamGetDevice", cuStreamGetDevice, 12080, (CUstream stream, CUdevice *device),
                      (stream, device)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = s->context->device->ordinal;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuLaunchHostFunc", cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn fn, void *userData),
                      (stream, fn, userData)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.kind = WorkKind::HostFunction;
    work.run = [fn, userData] {
        fn(userData);
        return CUDA_SUCCESS;
    };
    return submit(lock, *s, std::move(work));
}

}  // namespace sim
