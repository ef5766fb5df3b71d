// SPDX-License-Identifier: Apache-2.0
// Graphs, what they capture, and their memory. Guarded by `driver().mutex`.
#pragma once

#include "driver.h"

namespace sim {

struct Graph;

// An allocation that a graph makes. Its address is fixed when the node is made.
struct GraphBlock {
    Address base = 0;
    std::size_t bytes = 0;
    Device *device = nullptr;
    std::uint64_t id = 0;
    bool armed = false;  // allocated by a launch and not yet freed
    int there = 0;       // the same in the order in which work runs: how many have allocated it, less who has freed it
    std::weak_ptr<struct GraphMemory> memory;   // that it is a part of
    std::shared_ptr<struct GraphMemory> keeps;  // while armed: the memory outlives graph and executable
};

// The memory behind all allocations of a graph, shared with what is instantiated from it. It is taken at a
// launch and kept, also after the end of the graph, until it is trimmed.
struct GraphMemory {
    Device *device = nullptr;
    std::vector<std::unique_ptr<GraphBlock>> blocks;
    std::size_t used = 0, reserved = 0;  // bytes, 0 before a launch
    std::shared_ptr<int> in_flight = std::make_shared<int>();  // held by submitted work that uses it
    unsigned executables = 0;  // of a graph with memory there is one at a time
    ~GraphMemory();
};

struct Node {
    Graph *graph = nullptr;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    std::vector<Node *> behind;  // what must have run before
    Work work;                   // what a launch submits
    GraphBlock *block = nullptr;  // of an allocation or a free node
};

struct UserObject {
    void *pointer = nullptr;
    CUhostFn destroy = nullptr;
    unsigned references = 0;
};

// References to user objects, given back at the end of whoever holds them.
using References = std::map<UserObject *, unsigned>;
struct HeldObjects {
    explicit HeldObjects(const References &references);
    HeldObjects(const HeldObjects &) = delete;
    HeldObjects &operator=(const HeldObjects &) = delete;
    ~HeldObjects();
    const References references;
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;  // in an order in which they can run
    std::shared_ptr<GraphMemory> memory;
    std::vector<std::shared_ptr<GraphMemory>> borrowed;  // of other graphs, that this one frees
    References user_objects;
    Touch last_touch;  // while it is captured, too
};

struct ExecutableGraph {
    explicit ExecutableGraph(const Graph &graph);
    struct Step {
        CUgraphNodeType type;
        std::vector<std::size_t> behind;
        Work work;
        GraphBlock *block;
    };
    std::vector<Step> steps;
    std::shared_ptr<GraphMemory> memory;
    std::vector<std::shared_ptr<GraphMemory>> borrowed;
    std::shared_ptr<const HeldObjects> user_objects;  // held by the work of its launches, too
    unsigned long long flags = 0;
    Touch last_touch;
};

struct Capture {
    Stream *origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::uint64_t thread = 0, id = 0;
    bool invalid = false;
    std::unique_ptr<Graph> graph;
    std::map<Stream *, std::vector<Node *>> last;  // by stream: what the next node comes behind
    std::vector<CUgraphEdgeData> edge_data;        // what was last shown of the edges; all of them are plain
    std::vector<Node *> abandoned;                 // what was last on branches that are gone
    ~Capture();
};

// --- capture.cpp ---

Node *capture_node(Stream &stream, CUgraphNodeType type);
void end_capture_of(Stream &stream);  // the stream goes away
std::vector<Graph *> graphs_in_captures();

// --- graph_memory.cpp ---

GraphBlock *graph_block_at(Address address);
CUresult capture_allocation(Stream &stream, std::size_t bytes, Address &address);
CUresult capture_free(Stream &stream, Address address);
CUresult free_graph_memory(Address address);                              // at once
CUresult free_graph_memory(Lock &lock, Stream &stream, Address address);  // behind what is on the stream
CUresult allocate_graph_memory(Lock &lock, Stream &stream, GraphBlock &block);
CUresult prepare_memory(GraphMemory &memory);
bool has_memory(const GraphBlock &block);  // in the order in which work runs

// --- graph.cpp ---

Graph *graph_of(CUgraph handle);
Graph *graph_or_capture_of(CUgraph handle);
ExecutableGraph *executable_of(CUgraphExec handle);
void drop(UserObject *object, unsigned count);
void destroy_graph(Graph *graph);
std::vector<std::size_t> order_of_steps(const ExecutableGraph &graph);

}  // namespace sim
