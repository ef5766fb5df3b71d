// SPDX-License-Identifier: Apache-2.0
// What is instantiated gets the parameters of another graph of the same shape.
#include "graph.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

CUgraphExecUpdateResult compare(const ExecutableGraph &one, const ExecutableGraph &other) {
    if (one.steps.size() != other.steps.size())
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (std::size_t i = 0; i < one.steps.size(); ++i)
        if (one.steps[i].type != other.steps[i].type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
        std::vector<std::size_t> before = one.steps[i].behind, after = other.steps[i].behind;
        std::sort(before.begin(), before.end());
        std::sort(after.begin(), after.end());
        if (before != after)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (std::size_t i = 0; i < one.steps.size(); ++i)
        if (one.steps[i].block != other.steps[i].block)
            return CU_GRAPH_EXEC_UPDATE_ERROR;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

// Partly: nodes are paired in the order in which they were captured; memory nodes cannot be changed.
DRIVER_CALL("cuGraphExecUpdate", cuGraphExecUpdate_v2, 12000,
            (CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo),
            (hGraphExec, hGraph, resultInfo)) {
    Lock lock(driver().mutex);
    ExecutableGraph *executable = executable_of(hGraphExec);
    Graph *graph = graph_of(hGraph);
    if (!executable || !graph || !resultInfo)
        return CUDA_ERROR_INVALID_VALUE;
    std::memset(resultInfo, 0, sizeof *resultInfo);
    for (auto &node : graph->nodes)
        if (node->work.check)
            if (CUresult bad = node->work.check()) {
                resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR;
                return bad;
            }
    ExecutableGraph source(*graph);
    resultInfo->result = compare(*executable, source);
    if (resultInfo->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    executable->steps = std::move(source.steps);
    // What the other graph holds takes the place of what was held; launches in flight keep that.
    std::swap(executable->user_objects, source.user_objects);
    return CUDA_SUCCESS;
}

}  // namespace sim
