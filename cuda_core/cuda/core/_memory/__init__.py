# SPDX-License-Identifier: Apache-2.0
"""The memory layer: buffers, the resources that make them, and the state machine that says who frees what."""

from cuda.core._memory._array_view import ArrayView
from cuda.core._memory._buffer import Buffer
from cuda.core._memory._device_memory_resource import DeviceMemoryResource, DeviceMemoryResourceOptions
from cuda.core._memory._graph_memory_resource import GraphMemoryResource
from cuda.core._memory._legacy import LegacyPinnedMemoryResource
from cuda.core._memory._managed_buffer import ManagedBuffer
from cuda.core._memory._managed_memory_resource import ManagedMemoryResource, ManagedMemoryResourceOptions
from cuda.core._memory._memory_report import memory_report
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._memory._ownership import Ownership, TransferredTo
from cuda.core._memory._pinned_memory_resource import PinnedMemoryResource, PinnedMemoryResourceOptions
from cuda.core._memory._release import CloseResult
from cuda.core._memory._transfer import Allocation
from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions
from cuda.core._memory._virtual_memory_resource import VirtualMemoryResource

__all__ = [
    "Allocation",
    "ArrayView",
    "Buffer",
    "CloseResult",
    "DeviceMemoryResource",
    "DeviceMemoryResourceOptions",
    "GraphMemoryResource",
    "LegacyPinnedMemoryResource",
    "ManagedBuffer",
    "ManagedMemoryResource",
    "ManagedMemoryResourceOptions",
    "MemoryResource",
    "Ownership",
    "PinnedMemoryResource",
    "PinnedMemoryResourceOptions",
    "TransferredTo",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
    "memory_report",
]
