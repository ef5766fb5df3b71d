// SPDX-License-Identifier: Apache-2.0
// Graphs and what is instantiated from them.
#include "graph.h"

#include <algorithm>

namespace sim {

namespace {

template <class Thing> Thing *touched(Thing *thing, bool is_there) {
    if (!is_there) {
        check_ended(thing);
        return nullptr;
    }
    thing->last_touch.touch();
    return thing;
}

}  // namespace

Graph *graph_of(CUgraph handle) {
    auto *graph = reinterpret_cast<Graph *>(handle);
    return touched(graph, driver().graphs.count(graph) != 0);
}

// The graph of a running capture, too: it may be looked at and given user objects, not destroyed or instantiated.
Graph *graph_or_capture_of(CUgraph handle) {
    auto *graph = reinterpret_cast<Graph *>(handle);
    bool is_there = driver().graphs.count(graph) != 0;
    if (!is_there)
        for (Graph *captured : graphs_in_captures())
            is_there = is_there || captured == graph;
    return touched(graph, is_there);
}

ExecutableGraph *executable_of(CUgraphExec handle) {
    auto *graph = reinterpret_cast<ExecutableGraph *>(handle);
    return touched(graph, driver().executable_graphs.count(graph) != 0);
}

void drop(UserObject *object, unsigned count) {
    object->references -= count;
    if (object->references)
        return;
    driver().user_objects.erase(object);
    call_on_host_thread([run = object->destroy, pointer = object->pointer] {
        run(pointer);
        return CUDA_SUCCESS;
    });
    delete object;
}

HeldObjects::HeldObjects(const References &held) : references(held) {
    for (auto &entry : references)
        entry.first->references += entry.second;
}

HeldObjects::~HeldObjects() {
    for (auto &entry : references)
        drop(entry.first, entry.second);
}

ExecutableGraph::ExecutableGraph(const Graph &graph)
    : memory(graph.memory), borrowed(graph.borrowed),
      user_objects(std::make_shared<HeldObjects>(graph.user_objects)) {
    std::map<Node *, std::size_t> position;
    for (auto &node : graph.nodes) {
        position[node.get()] = steps.size();
        std::vector<std::size_t> behind;
        for (Node *before : node->behind)
            behind.push_back(position.at(before));
        steps.push_back({node->type, std::move(behind), node->work, node->block});
    }
}

namespace {

CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Graph *graph = graph_of(graph_handle);
    constexpr unsigned long long known_flags =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!handle || !graph || (flags & ~known_flags))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->memory && graph->memory->executables)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (auto &node : graph->nodes)
        if (node->work.check)
            if (CUresult bad = node->work.check())
                return bad;
    auto made = std::make_unique<ExecutableGraph>(*graph);
    if (made->memory)
        ++made->memory->executables;
    made->flags = flags;
    *handle = reinterpret_cast<CUgraphExec>(made.get());
    d.executable_graphs.insert(made.release());
    return CUDA_SUCCESS;
}

CUresult launch(Lock &lock, ExecutableGraph &graph, Stream &stream) {
    bool auto_free = graph.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    std::map<GraphBlock *, bool> allocated;  // as the steps run
    for (auto &step : graph.steps) {
        if (!step.block)
            continue;
        bool &is = allocated.emplace(step.block, step.block->armed).first->second;
        bool allocates = step.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if (is == allocates && !(allocates && auto_free))
            return CUDA_ERROR_INVALID_VALUE;
        is = allocates;
    }
    for (auto &step : graph.steps)
        if (auto_free && step.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && step.block->armed)
            free_graph_memory(lock, stream, step.block->base);
    if (graph.memory)
        if (CUresult bad = prepare_memory(*graph.memory))
            return bad;
    // A real driver does not keep the launch apart from waits for the stream when there are user objects to give back:
    // now and then it answers UNKNOWN then, although the graph runs. Beside other launches it does not.
    if (!graph.user_objects->references.empty()) {
        stream.last_wait.check();
        stream.last_keeping_launch.note();
    }
    for (std::size_t index : order_of_steps(graph)) {
        ExecutableGraph::Step &step = graph.steps[index];
        if (step.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            allocate_graph_memory(lock, stream, *step.block);
        } else if (step.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            free_graph_memory(lock, stream, step.block->base);
        } else if (step.work.run) {
            Work work = step.work;
            work.keeps = graph.user_objects;
            // The memory must last until the work has run, whatever happens to the graph meanwhile.
            if (graph.memory && work.kind != WorkKind::HostFunction)
                work.run = [run = step.work.run, memory = graph.memory, use = graph.memory->in_flight] {
                    return run();
                };
            submit(lock, stream, std::move(work));
        }
    }
    // Also a launch of no work, or of memory alone, is over when what is in front of it has run.
    Work end;
    end.kind = WorkKind::LaunchEnd;
    end.keeps = graph.user_objects;
    submit(lock, stream, std::move(end));
    return CUDA_SUCCESS;
}

CUresult give_list(const std::vector<Node *> &list, CUgraphNode *nodes, size_t *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes) {
        std::size_t n = std::min(*count, list.size());
        for (std::size_t i = 0; i < *count; ++i)
            nodes[i] = i < n ? reinterpret_cast<CUgraphNode>(list[i]) : nullptr;
        *count = n;
    } else {
        *count = list.size();
    }
    return CUDA_SUCCESS;
}

Node *node_of(CUgraphNode handle) {
    std::vector<Graph *> graphs = graphs_in_captures();
    graphs.insert(graphs.end(), driver().graphs.begin(), driver().graphs.end());
    for (Graph *graph : graphs)
        for (auto &node : graph->nodes)
            if (node.get() == reinterpret_cast<Node *>(handle)) {
                graph->last_touch.touch();
                return node.get();
            }
    return nullptr;
}

}  // namespace

// Any order in which every step comes behind what it depends on.
std::vector<std::size_t> order_of_steps(const ExecutableGraph &graph) {
    std::vector<std::size_t> order, ready;
    std::vector<std::size_t> missing(graph.steps.size());
    for (std::size_t i = 0; i < graph.steps.size(); ++i)
        if ((missing[i] = graph.steps[i].behind.size()) == 0)
            ready.push_back(i);
    while (!ready.empty()) {
        std::size_t at = pick(ready.size());
        std::size_t index = ready[at];
        ready.erase(ready.begin() + std::ptrdiff_t(at));
        order.push_back(index);
        for (std::size_t i = index + 1; i < graph.steps.size(); ++i)
            for (std::size_t before : graph.steps[i].behind)
                if (before == index && --missing[i] == 0)
                    ready.push_back(i);
    }
    return order;
}

void destroy_graph(Graph *graph) {
    note_end(graph);
    driver().graphs.erase(graph);
    for (auto &entry : graph->user_objects)
        drop(entry.first, entry.second);
    delete graph;
}

// Partly: nodes are made by capture only.
DRIVER_CALL("cuGraphCreate", cuGraphCreate, 10000, (CUgraph * phGraph, unsigned int flags), (phGraph, flags)) {
    Lock lock(driver().mutex);
    if (!phGraph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    auto *graph = new Graph;
    driver().graphs.insert(graph);
    *phGraph = reinterpret_cast<CUgraph>(graph);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphDestroy", cuGraphDestroy, 10000, (CUgraph hGraph), (hGraph)) {
    Lock lock(driver().mutex);
    Graph *graph = graph_of(hGraph);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    destroy_graph(graph);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphGetNodes", cuGraphGetNodes, 10000, (CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes),
            (hGraph, nodes, numNodes)) {
    Lock lock(driver().mutex);
    Graph *graph = graph_or_capture_of(hGraph);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<Node *> list;
    for (auto &node : graph->nodes)
        list.push_back(node.get());
    return give_list(list, nodes, numNodes);
}

DRIVER_CALL("cuGraphGetRootNodes", cuGraphGetRootNodes, 10000,
            (CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes), (hGraph, rootNodes, numRootNodes)) {
    Lock lock(driver().mutex);
    Graph *graph = graph_or_capture_of(hGraph);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<Node *> list;
    for (auto &node : graph->nodes)
        if (node->behind.empty())
            list.push_back(node.get());
    return give_list(list, rootNodes, numRootNodes);
}

DRIVER_CALL("cuGraphNodeGetType", cuGraphNodeGetType, 10000, (CUgraphNode hNode, CUgraphNodeType *type),
            (hNode, type)) {
    Lock lock(driver().mutex);
    Node *node = node_of(hNode);
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphMemFreeNodeGetParams", cuGraphMemFreeNodeGetParams, 11040,
            (CUgraphNode hNode, CUdeviceptr *dptr_out), (hNode, dptr_out)) {
    Lock lock(driver().mutex);
    Node *node = node_of(hNode);
    if (!node || !dptr_out || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = node->block->base;
    return CUDA_SUCCESS;
}

// Partly: no launch from the device.
DRIVER_CALL("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, 11040,
            (CUgraphExec * phGraphExec, CUgraph hGraph, unsigned long long flags), (phGraphExec, hGraph, flags)) {
    return instantiate(phGraphExec, hGraph, flags);
}

// Partly: no launch from the device; nothing is uploaded before the first launch.
DRIVER_CALL("cuGraphInstantiateWithParams", cuGraphInstantiateWithParams, 12000,
            (CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
            (phGraphExec, hGraph, instantiateParams)) {
    if (!instantiateParams)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = nullptr;
    instantiateParams->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return result;
}

DRIVER_CALL("cuGraphExecGetFlags", cuGraphExecGetFlags, 12000, (CUgraphExec hGraphExec, cuuint64_t *flags),
            (hGraphExec, flags)) {
    Lock lock(driver().mutex);
    ExecutableGraph *graph = executable_of(hGraphExec);
    if (!graph || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = graph->flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphExecDestroy", cuGraphExecDestroy, 10000, (CUgraphExec hGraphExec), (hGraphExec)) {
    Lock lock(driver().mutex);
    ExecutableGraph *graph = executable_of(hGraphExec);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult bad = check_capture_allows())
        return bad;
    driver().executable_graphs.erase(graph);
    note_end(graph);
    if (graph->memory)
        --graph->memory->executables;
    delete graph;  // its launches in flight still hold its user objects
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuGraphUpload", cuGraphUpload, 11010, (CUgraphExec hGraphExec, CUstream stream),
                      (hGraphExec, stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    ExecutableGraph *graph = executable_of(hGraphExec);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return check_wait_for(*s);
    return graph->memory ? prepare_memory(*graph->memory) : CUDA_SUCCESS;
}

// Partly: not into a capture.
DRIVER_CALL_ON_STREAM("cuGraphLaunch", cuGraphLaunch, 10000, (CUgraphExec hGraphExec, CUstream stream),
                      (hGraphExec, stream)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    ExecutableGraph *graph = executable_of(hGraphExec);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)  // a graph inside a graph is not modelled
        return check_wait_for(*s);
    return launch(lock, *graph, *s);
}

DRIVER_CALL("cuUserObjectCreate", cuUserObjectCreate, 11030,
            (CUuserObject * object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount, unsigned int flags),
            (object_out, ptr, destroy, initialRefcount, flags)) {
    Lock lock(driver().mutex);
    if (!object_out || !destroy || initialRefcount == 0 || initialRefcount > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    start_host_thread();  // which destroys it
    auto *object = new UserObject{ptr, destroy, initialRefcount};
    driver().user_objects.insert(object);
    *object_out = reinterpret_cast<CUuserObject>(object);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuUserObjectRetain", cuUserObjectRetain, 11030, (CUuserObject object, unsigned int count),
            (object, count)) {
    Lock lock(driver().mutex);
    auto *o = reinterpret_cast<UserObject *>(object);
    if (!driver().user_objects.count(o) || count == 0 || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    o->references += count;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuUserObjectRelease", cuUserObjectRelease, 11030, (CUuserObject object, unsigned int count),
            (object, count)) {
    Lock lock(driver().mutex);
    auto *o = reinterpret_cast<UserObject *>(object);
    if (!driver().user_objects.count(o) || count == 0 || count > o->references)
        return CUDA_ERROR_INVALID_VALUE;
    drop(o, count);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphRetainUserObject", cuGraphRetainUserObject, 11030,
            (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags),
            (graph, object, count, flags)) {
    Lock lock(driver().mutex);
    Graph *g = graph_or_capture_of(graph);
    auto *o = reinterpret_cast<UserObject *>(object);
    if (!g || !driver().user_objects.count(o) || count == 0 || count > INT32_MAX ||
        (flags & ~unsigned(CU_GRAPH_USER_OBJECT_MOVE)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        o->references += count;
    g->user_objects[o] += count;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuGraphReleaseUserObject", cuGraphReleaseUserObject, 11030,
            (CUgraph graph, CUuserObject object, unsigned int count), (graph, object, count)) {
    Lock lock(driver().mutex);
    Graph *g = graph_or_capture_of(graph);
    auto *o = reinterpret_cast<UserObject *>(object);
    if (!g || !g->user_objects.count(o) || count == 0 || count > g->user_objects[o])
        return CUDA_ERROR_INVALID_VALUE;
    if ((g->user_objects[o] -= count) == 0)
        g->user_objects.erase(o);
    drop(o, count);
    return CUDA_SUCCESS;
}

}  // namespace sim
