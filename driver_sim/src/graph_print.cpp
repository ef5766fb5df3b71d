// SPDX-License-Identifier: Apache-2.0
// Graphs as text.
#include "graph.h"

#include <cstdio>

namespace sim {

namespace {

const char *name_of(CUgraphNodeType type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
        return "HOST";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return "MEM_FREE";
    default:
        return "EMPTY";
    }
}

}  // namespace

// Partly: nodes and edges are named; the flags add the addresses of memory nodes, whatever they ask for.
DRIVER_CALL("cuGraphDebugDotPrint", cuGraphDebugDotPrint, 11030,
            (CUgraph hGraph, const char *path, unsigned int flags), (hGraph, path, flags)) {
    Lock lock(driver().mutex);
    Graph *graph = graph_or_capture_of(hGraph);
    if (!graph || !path)
        return CUDA_ERROR_INVALID_VALUE;
    std::FILE *file = std::fopen(path, "w");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    std::map<const Node *, std::size_t> number;
    std::fprintf(file, "digraph dot {\n");
    for (auto &node : graph->nodes) {
        std::size_t at = number.emplace(node.get(), number.size()).first->second;
        std::fprintf(file, "\"node_%zu\"[label=\"%zu %s", at, at, name_of(node->type));
        if (flags && node->block)
            std::fprintf(file, " 0x%llx, %zu bytes", (unsigned long long)node->block->base, node->block->bytes);
        std::fprintf(file, "\"];\n");
        for (const Node *before : node->behind)
            std::fprintf(file, "\"node_%zu\" -> \"node_%zu\";\n", number.at(before), at);
    }
    std::fprintf(file, "}\n");
    return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace sim
