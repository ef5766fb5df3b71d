// SPDX-License-Identifier: Apache-2.0
// Stream capture: submitted work becomes nodes of a graph. What may not happen meanwhile invalidates it.
#include "graph.h"

#include <algorithm>

namespace sim {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<std::shared_ptr<Capture>> &captures() {
    static auto *list = new std::vector<std::shared_ptr<Capture>>;
    return *list;
}

// Where a stream gets into a capture or out of it, by a call that has noted its use.
void note_boundary(Stream &stream) {
    if (this_call.beside_use)
        note_overlap(this_call.beside_use);
    stream.last_boundary.note();
}

void finish(const std::shared_ptr<Capture> &capture) {
    for (auto &entry : capture->last) {
        note_boundary(*entry.first);
        entry.first->capture.reset();
    }
    auto &list = captures();
    list.erase(std::remove(list.begin(), list.end(), capture), list.end());
}

CUgraphNodeType node_type(WorkKind kind) {
    switch (kind) {
    case WorkKind::HostFunction:
        return CU_GRAPH_NODE_TYPE_HOST;
    case WorkKind::Set:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    default:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    }
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Stream *stream;
    if (CUresult bad = resolve_stream(handle, stream))
        return bad;
    if (unsigned(mode) > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    note_boundary(*stream);
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = thread_number();
    capture->id = d.next_id++;
    capture->graph = std::make_unique<Graph>();
    capture->last[stream];
    stream->capture = capture;
    captures().push_back(capture);
    return CUDA_SUCCESS;
}

// Whether all streams that joined have been waited for by the origin.
bool joined(const Capture &capture) {
    std::set<const Node *> reached;
    std::vector<const Node *> open(capture.last.at(capture.origin).begin(), capture.last.at(capture.origin).end());
    while (!open.empty()) {
        const Node *node = open.back();
        open.pop_back();
        if (reached.insert(node).second)
            open.insert(open.end(), node->behind.begin(), node->behind.end());
    }
    for (auto &entry : capture.last)
        for (const Node *node : entry.second)
            if (!reached.count(node))
                return false;
    for (const Node *node : capture.abandoned)
        if (!reached.count(node))
            return false;
    return true;
}

}  // namespace

// What a capture has made and nobody was given.
Capture::~Capture() {
    if (graph)
        destroy_graph(graph.release());
}

std::vector<Graph *> graphs_in_captures() {
    std::vector<Graph *> list;
    for (auto &capture : captures())
        list.push_back(capture->graph.get());
    return list;
}

CUresult check_capture_allows() {
    CUresult result = CUDA_SUCCESS;
    if (captures().empty() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    for (auto &capture : captures()) {
        bool own = capture->thread == thread_number() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        // A capture that is already broken still refuses.
        if (own || global) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult check_no_capture_in(Context &context) {
    CUresult result = CUDA_SUCCESS;
    for (auto &capture : captures())
        if (capture->origin->context == &context) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

CUresult check_legacy_allowed(Context &context, bool invalidate) {
    CUresult result = CUDA_SUCCESS;
    for (auto &capture : captures())
        for (auto &entry : capture->last)
            if (entry.first->context == &context && entry.first->blocking()) {
                capture->invalid |= invalidate;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
    return result;
}

CUresult check_not_capturing(Stream &stream) {
    if (!stream.capture)
        return CUDA_SUCCESS;
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult check_wait_for(Stream &stream) {
    return stream.capture ? check_not_capturing(stream) : check_capture_allows();
}

Node *capture_node(Stream &stream, CUgraphNodeType type) {
    Capture &capture = *stream.capture;
    auto node = std::make_unique<Node>();
    Node *result = node.get();
    node->graph = capture.graph.get();
    node->type = type;
    node->behind = capture.last[&stream];
    capture.last[&stream] = {result};
    capture.graph->nodes.push_back(std::move(node));
    return result;
}

CUresult check_capture_whole(const Stream &stream) {
    return stream.capture && stream.capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult capture_work(Stream &stream, Work work) {
    if (CUresult bad = check_capture_whole(stream))
        return bad;
    Node *node = capture_node(stream, node_type(work.kind));
    node->work = std::move(work);
    return CUDA_SUCCESS;
}

CUresult capture_record(Stream &stream, Event &event) {
    if (stream.capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event.captured = true;
    event.captured_on = &stream;
    event.captured_in = stream.capture;
    event.captured_behind.clear();
    for (Node *node : stream.capture->last[&stream])
        event.captured_behind.push_back(node);
    return CUDA_SUCCESS;
}

// A wait for an event that was captured joins the stream to the capture.
CUresult capture_wait(Stream &stream, Event &event) {
    if (CUresult bad = check_capture_whole(stream))
        return bad;
    std::shared_ptr<Capture> source = event.captured_in.lock();
    if (!source && event.captured) {  // in a capture that has ended
        if (stream.capture)
            stream.capture->invalid = true;
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!source) {
        if (!event.recorded)
            return CUDA_SUCCESS;
        stream.capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    source->graph->last_touch.touch();
    if (stream.capture && stream.capture != source) {
        stream.capture->invalid = source->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (source->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream.is_legacy) {
        source->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream.capture)
        note_boundary(stream);
    stream.capture = source;
    auto &last = source->last[&stream];
    for (Node *node : event.captured_behind)
        if (std::find(last.begin(), last.end(), node) == last.end())
            last.push_back(node);
    return CUDA_SUCCESS;
}

void end_capture_of(Stream &stream) {
    std::shared_ptr<Capture> capture = stream.capture;
    if (!capture)
        return;
    capture->graph->last_touch.touch();
    if (capture->origin == &stream) {
        finish(capture);
        return;
    }
    // A branch may go; the end of the capture asks for its work all the same.
    auto &last = capture->last[&stream];
    capture->abandoned.insert(capture->abandoned.end(), last.begin(), last.end());
    capture->last.erase(&stream);
    note_boundary(stream);
    stream.capture.reset();
}

DRIVER_CALL_ON_STREAM("cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010,
                      (CUstream stream, CUstreamCaptureMode mode), (stream, mode)) {
    return begin(stream, mode);
}

DRIVER_CALL_ON_STREAM("cuStreamEndCapture", cuStreamEndCapture, 10000, (CUstream stream, CUgraph *phGraph),
                      (stream, phGraph)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = nullptr;
    std::shared_ptr<Capture> capture = s->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != s) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_number()) {
        finish(capture);
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    bool whole = capture->invalid || joined(*capture);
    finish(capture);
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!whole)
        return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    Graph *graph = capture->graph.release();
    driver().graphs.insert(graph);
    *phGraph = reinterpret_cast<CUgraph>(graph);
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuStreamIsCapturing", cuStreamIsCapturing, 10000,
                      (CUstream stream, CUstreamCaptureStatus *captureStatus), (stream, captureStatus)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s, LegacyUse::Asked))
        return bad;
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = !s->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
                     : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

// Partly: only the form of CUDA 12.3.
DRIVER_CALL_ON_STREAM("cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v3, 12030,
                      (CUstream stream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                       CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out,
                       size_t *numDependencies_out),
                      (stream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                       numDependencies_out)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s, LegacyUse::Asked))
        return bad;
    if (!captureStatus_out)
        return CUDA_ERROR_INVALID_VALUE;
    Capture *capture = s->capture.get();
    if (!capture || capture->invalid) {
        *captureStatus_out = capture ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
    }
    *captureStatus_out = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    auto &last = capture->last[s];
    if (id_out)
        *id_out = capture->id;
    if (graph_out)
        *graph_out = reinterpret_cast<CUgraph>(capture->graph.get());
    if (dependencies_out)
        *dependencies_out = reinterpret_cast<const CUgraphNode *>(last.data());
    if (edgeData_out) {  // never null, also where there is no edge: callers read it by the number of edges
        capture->edge_data.assign(std::max<std::size_t>(last.size(), 1), CUgraphEdgeData{});
        *edgeData_out = capture->edge_data.data();
    }
    if (numDependencies_out)
        *numDependencies_out = last.size();
    return CUDA_SUCCESS;
}

// Partly: only the form of CUDA 12.3; data of edges is not looked at.
DRIVER_CALL_ON_STREAM("cuStreamUpdateCaptureDependencies", cuStreamUpdateCaptureDependencies_v2, 12030,
                      (CUstream stream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                       size_t numDependencies, unsigned int flags),
                      (stream, dependencies, dependencyData, numDependencies, flags)) {
    (void)dependencyData;
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (numDependencies && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    if (!s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (CUresult bad = check_capture_whole(*s))
        return bad;
    std::vector<Node *> last;
    if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
        last = s->capture->last[s];
    for (std::size_t i = 0; i < numDependencies; ++i) {
        auto *node = reinterpret_cast<Node *>(dependencies[i]);
        auto &nodes = s->capture->graph->nodes;
        if (std::none_of(nodes.begin(), nodes.end(), [node](auto &each) { return each.get() == node; }))
            return CUDA_ERROR_INVALID_VALUE;
        if (std::find(last.begin(), last.end(), node) == last.end())
            last.push_back(node);
    }
    s->capture->last[s] = std::move(last);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, 10010,
            (CUstreamCaptureMode * mode), (mode)) {
    if (!mode || unsigned(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

}  // namespace sim
