# SPDX-License-Identifier: Apache-2.0
"""How a graph is completed and printed: options that are checked when given and when assigned."""

from __future__ import annotations

from typing import Any

import attrs

from cuda.core._memory._option_checks import a_flag, option
from cuda.core._stream import Stream, Stream_accept

__all__ = ["GraphCompleteOptions", "GraphDebugPrintOptions"]


def _stream_or_none(value: Any) -> Stream | None:
    return None if value is None else Stream_accept(value)


def _flag(name: str) -> Any:
    return option(False, a_flag(name))


@attrs.define(slots=False, on_setattr=attrs.setters.convert)
class GraphCompleteOptions:
    """How an executable graph is made. Checked when given and when assigned.

    Attributes
    ----------
    auto_free_on_launch : bool
        A launch first frees what an earlier one has allocated and nobody has freed. (Default False)
    upload_stream : Stream, optional
        A stream on which the graph is uploaded as soon as it is made. (Default None)
    device_launch : bool
        The graph can be launched from the device. Not together with ``auto_free_on_launch``. (Default False)
    use_node_priority : bool
        Run nodes with the priorities that they were captured with, not that of the stream. (Default False)

    Raises
    ------
    TypeError
        If a value has the wrong type.

    Examples
    --------
    >>> GraphCompleteOptions(auto_free_on_launch=1)
    Traceback (most recent call last):
        ...
    TypeError: auto_free_on_launch must be True or False, got 1
    """

    auto_free_on_launch: bool = _flag("auto_free_on_launch")
    upload_stream: Stream | None = option(default=None, converter=_stream_or_none)
    device_launch: bool = _flag("device_launch")
    use_node_priority: bool = _flag("use_node_priority")


@attrs.define(slots=False, on_setattr=attrs.setters.convert)
class GraphDebugPrintOptions:
    """What is printed of a graph beside its nodes and edges. Checked when given and when assigned.

    Attributes
    ----------
    verbose : bool
        Everything below.
    runtime_types : bool
        Structures of the CUDA runtime instead of the driver's.
    kernel_node_params, memcpy_node_params, memset_node_params, host_node_params, event_node_params : bool
        Parameters of nodes of that type.
    ext_semas_signal_node_params, ext_semas_wait_node_params, batch_mem_op_node_params : bool
        The same.
    mem_alloc_node_params, mem_free_node_params, conditional_node_params : bool
        The same.
    kernel_node_attributes : bool
        Attributes of kernel nodes.
    handles : bool
        Handles of nodes and functions.
    extra_topo_info : bool
        Numbers of edges.

    Raises
    ------
    TypeError
        If a value is not True or False.

    Examples
    --------
    >>> GraphDebugPrintOptions(verbose=True).handles
    False
    """

    verbose: bool = _flag("verbose")
    runtime_types: bool = _flag("runtime_types")
    kernel_node_params: bool = _flag("kernel_node_params")
    memcpy_node_params: bool = _flag("memcpy_node_params")
    memset_node_params: bool = _flag("memset_node_params")
    host_node_params: bool = _flag("host_node_params")
    event_node_params: bool = _flag("event_node_params")
    ext_semas_signal_node_params: bool = _flag("ext_semas_signal_node_params")
    ext_semas_wait_node_params: bool = _flag("ext_semas_wait_node_params")
    kernel_node_attributes: bool = _flag("kernel_node_attributes")
    handles: bool = _flag("handles")
    mem_alloc_node_params: bool = _flag("mem_alloc_node_params")
    mem_free_node_params: bool = _flag("mem_free_node_params")
    batch_mem_op_node_params: bool = _flag("batch_mem_op_node_params")
    extra_topo_info: bool = _flag("extra_topo_info")
    conditional_node_params: bool = _flag("conditional_node_params")

    def _to_flags(self) -> int:
        """Return the flags of the driver: each option has its bit."""
        return sum(bit for name, bit in _PRINT_BITS.items() if getattr(self, name))


# CUgraphDebugDot_flags of cuda.h.
_PRINT_BITS = {
    "verbose": 1 << 0,
    "runtime_types": 1 << 1,
    "kernel_node_params": 1 << 2,
    "memcpy_node_params": 1 << 3,
    "memset_node_params": 1 << 4,
    "host_node_params": 1 << 5,
    "event_node_params": 1 << 6,
    "ext_semas_signal_node_params": 1 << 7,
    "ext_semas_wait_node_params": 1 << 8,
    "kernel_node_attributes": 1 << 9,
    "handles": 1 << 10,
    "mem_alloc_node_params": 1 << 11,
    "mem_free_node_params": 1 << 12,
    "batch_mem_op_node_params": 1 << 13,
    "extra_topo_info": 1 << 14,
    "conditional_node_params": 1 << 15,
}
