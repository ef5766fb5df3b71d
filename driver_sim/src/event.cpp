// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

namespace sim {

namespace {

CUresult known(CUevent handle, Event *&event) {
    event = reinterpret_cast<Event *>(handle);
    return driver().events.count(event) ? event->context->fault : bad_event(event);
}

// An event that was last recorded in a capture has nothing that could be waited for.
CUresult check_wait(const Event &event) {
    if (std::shared_ptr<Capture> capture = event.captured_in.lock()) {
        capture->graph->last_touch.touch();
        if (!capture->invalid) {
            capture->invalid = true;
            return CUDA_ERROR_CAPTURED_EVENT;
        }
    }
    if (event.captured)
        return CUDA_ERROR_INVALID_VALUE;
    return check_capture_allows();
}

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = resolve_stream(stream_handle, stream))
        return bad;
    Event *event;
    if (CUresult bad = known(handle, event))
        return bad;
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return capture_record(*stream, *event);
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_ILLEGAL_STATE;
    event->captured = false;
    event->captured_in.reset();
    Work work;
    work.kind = WorkKind::Record;
    work.marker = std::make_shared<Marker>();
    work.marker->stream = stream;
    if (event->shared) {
        work.marker->shared = event->shared;
        work.marker->number = shared_submit(*event->shared);
    }
    event->recorded = work.marker;
    return submit(lock, *stream, std::move(work));
}

}  // namespace

// A destroyed event is kept for a while, but not the descriptor and the page that other processes know it by.
void retire_event(Event *event) {
    event->shared.reset();
    event->recorded.reset();
    retire(event);
}

CUresult bad_event(const Event *event) {
    return was_destroyed(event) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL("cuEventCreate", cuEventCreate, 2000, (CUevent * phEvent, unsigned int Flags), (phEvent, Flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    constexpr unsigned known_flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!phEvent || (Flags & ~known_flags))
        return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    auto *event = new Event;
    event->context = context;
    event->flags = Flags;
    if (Flags & CU_EVENT_INTERPROCESS)
        if (CUresult bad = share_event(*event)) {
            delete event;
            return bad;
        }
    d.events.insert(event);
    *phEvent = reinterpret_cast<CUevent>(event);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuEventDestroy", cuEventDestroy_v2, 4000, (CUevent hEvent), (hEvent)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    auto *event = reinterpret_cast<Event *>(hEvent);
    if (!d.events.erase(event))
        return bad_event(event);
    if (std::shared_ptr<Capture> capture = event->captured_in.lock())
        capture->graph->last_touch.touch();
    retire_event(event);
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuEventRecord", cuEventRecord, 2000, (CUevent hEvent, CUstream stream), (hEvent, stream)) {
    return record(hEvent, stream, 0);
}

// Partly: in a capture, the external flag makes no node of its own.
DRIVER_CALL_ON_STREAM("cuEventRecordWithFlags", cuEventRecordWithFlags, 11010,
                      (CUevent hEvent, CUstream stream, unsigned int flags), (hEvent, stream, flags)) {
    if (flags & ~unsigned(CU_EVENT_RECORD_EXTERNAL))
        return CUDA_ERROR_INVALID_VALUE;
    return record(hEvent, stream, flags);
}

DRIVER_CALL("cuEventQuery", cuEventQuery, 2000, (CUevent hEvent), (hEvent)) {
    Lock lock(driver().mutex);
    Event *event;
    if (CUresult bad = known(hEvent, event))
        return bad;
    if (CUresult bad = check_wait(*event))
        return bad;
    if (event->shared)
        return shared_done(*event->shared) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    return !event->recorded || event->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DRIVER_CALL("cuEventSynchronize", cuEventSynchronize, 2000, (CUevent hEvent), (hEvent)) {
    Lock lock(driver().mutex);
    Event *event;
    if (CUresult bad = known(hEvent, event))
        return bad;
    if (CUresult bad = check_wait(*event))
        return bad;
    Context *context = event->context;
    std::shared_ptr<SharedEventPage> shared = event->shared;
    if (std::shared_ptr<Marker> marker = event->recorded)
        wait_for_marker(lock, marker);
    if (shared)
        wait_for_shared(lock, shared);
    synchronised();
    return context->fault;
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    Lock lock(driver().mutex);
    Event *start, *end;
    if (CUresult bad = known(start_handle, start))
        return bad;
    if (CUresult bad = known(end_handle, end))
        return bad;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    for (Event *event : {start, end}) {
        if (event->captured)
            return CUDA_ERROR_INVALID_VALUE;
        if ((event->flags & CU_EVENT_DISABLE_TIMING) || !event->recorded)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!start->recorded->done || !end->recorded->done)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = float(end->recorded->milliseconds - start->recorded->milliseconds);
    return CUDA_SUCCESS;
}

// cuda.h makes the old name mean the new version.
#undef cuEventElapsedTime
DRIVER_CALL("cuEventElapsedTime", cuEventElapsedTime, 2000, (float *pMilliseconds, CUevent hStart, CUevent hEnd),
            (pMilliseconds, hStart, hEnd)) {
    return elapsed(pMilliseconds, hStart, hEnd);
}

DRIVER_CALL("cuEventElapsedTime", cuEventElapsedTime_v2, 12080, (float *pMilliseconds, CUevent hStart, CUevent hEnd),
            (pMilliseconds, hStart, hEnd)) {
    return elapsed(pMilliseconds, hStart, hEnd);
}

}  // namespace sim
