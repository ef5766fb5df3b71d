# SPDX-License-Identifier: Apache-2.0
"""Graphs by capture: what is put into streams becomes a graph, which is launched as a whole, again and again."""

from typing import TYPE_CHECKING

from cuda.core import _later
from cuda.core.graph._graph import Graph
from cuda.core.graph._graph_builder import GraphBuilder

if TYPE_CHECKING:
    from cuda.core.graph._graph_options import GraphCompleteOptions, GraphDebugPrintOptions

__all__ = ["Graph", "GraphBuilder", "GraphCompleteOptions", "GraphDebugPrintOptions"]

# Names of cuda-core 1.2.2 that belong to graphs built node by node.
_ABSENT = frozenset(
    {
        "AllocNode",
        "ChildGraphNode",
        "ConditionalNode",
        "EmptyNode",
        "EventRecordNode",
        "EventWaitNode",
        "ExecutableChildGraphNode",
        "ExecutableEventRecordNode",
        "ExecutableEventWaitNode",
        "ExecutableGraphNode",
        "ExecutableHostCallbackNode",
        "ExecutableKernelNode",
        "ExecutableMemcpyNode",
        "ExecutableMemsetNode",
        "FreeNode",
        "GraphCondition",
        "GraphDefinition",
        "GraphNode",
        "HostCallbackNode",
        "IfElseNode",
        "IfNode",
        "KernelNode",
        "MemcpyNode",
        "MemsetNode",
        "SwitchNode",
        "WhileNode",
    }
)

# Imported when first asked for.
_LATER = {
    "GraphCompleteOptions": "cuda.core.graph._graph_options",
    "GraphDebugPrintOptions": "cuda.core.graph._graph_options",
}

if not TYPE_CHECKING:  # a checker would believe that every name is there

    def __getattr__(name: str) -> object:
        if name in _ABSENT:
            raise AttributeError(
                f"cuda.core.graph.{name} is not in this build: its graphs are made by capture only"
            )
        return _later.fetch(__name__, name, _LATER)

    def __dir__() -> list[str]:
        return _later.names(__name__, _LATER)
