# SPDX-License-Identifier: Apache-2.0
"""The memory layer: buffers, the resources that make them, and the state machine that says who frees what."""

from typing import TYPE_CHECKING

from cuda.core import _later
from cuda.core._memory._array_view import ArrayView
from cuda.core._memory._buffer import Buffer
from cuda.core._memory._device_memory_resource import DeviceMemoryResource
from cuda.core._memory._graph_memory_resource import GraphMemoryResource
from cuda.core._memory._legacy import LegacyPinnedMemoryResource
from cuda.core._memory._managed_buffer import ManagedBuffer
from cuda.core._memory._managed_memory_resource import ManagedMemoryResource
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._memory._ownership import Ownership, TransferredTo
from cuda.core._memory._pinned_memory_resource import PinnedMemoryResource
from cuda.core._memory._release import CloseResult
from cuda.core._memory._transfer import Allocation
from cuda.core._memory._virtual_memory_resource import VirtualMemoryResource

if TYPE_CHECKING:
    from cuda.core._memory._memory_report import memory_report
    from cuda.core._memory._pool_options import (
        DeviceMemoryResourceOptions,
        ManagedMemoryResourceOptions,
        PinnedMemoryResourceOptions,
    )
    from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions

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

# Imported when first asked for.
_LATER = {
    "DeviceMemoryResourceOptions": "cuda.core._memory._pool_options",
    "ManagedMemoryResourceOptions": "cuda.core._memory._pool_options",
    "PinnedMemoryResourceOptions": "cuda.core._memory._pool_options",
    "VirtualMemoryResourceOptions": "cuda.core._memory._virtual_memory_options",
    "memory_report": "cuda.core._memory._memory_report",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return _later.fetch(__name__, name, _LATER)

    def __dir__() -> list[str]:
        return _later.names(__name__, _LATER)
