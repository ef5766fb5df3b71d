# SPDX-License-Identifier: Apache-2.0
"""Python access to CUDA's memory, with one explicit owner for every allocation.

This build has the memory layer of ``cuda.core`` and what it needs: devices, contexts, streams and events. Importing it
needs no driver; the first call that does raises a clear error where there is none.
"""

import os
from typing import TYPE_CHECKING

from cuda.core import _later, graph, utils
from cuda.core._context import Context
from cuda.core._device import Device
from cuda.core._errors import CUDAError, CUDAWarning, OwnershipError
from cuda.core._event import Event, EventOptions
from cuda.core._host import Host
from cuda.core._memory import (
    _LATER,
    Allocation,
    ArrayView,
    Buffer,
    CloseResult,
    DeviceMemoryResource,
    GraphMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedBuffer,
    ManagedMemoryResource,
    MemoryResource,
    Ownership,
    PinnedMemoryResource,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._stream import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream, StreamOptions
from cuda.core._version import __version__

if TYPE_CHECKING:
    from cuda.core._memory import (
        DeviceMemoryResourceOptions,
        ManagedMemoryResourceOptions,
        PinnedMemoryResourceOptions,
        VirtualMemoryResourceOptions,
        memory_report,
    )

__all__ = [
    "LEGACY_DEFAULT_STREAM",
    "PER_THREAD_DEFAULT_STREAM",
    "Allocation",
    "ArrayView",
    "Buffer",
    "CUDAError",
    "CUDAWarning",
    "CloseResult",
    "Context",
    "Device",
    "DeviceMemoryResource",
    "DeviceMemoryResourceOptions",
    "Event",
    "EventOptions",
    "GraphMemoryResource",
    "Host",
    "LegacyPinnedMemoryResource",
    "ManagedBuffer",
    "ManagedMemoryResource",
    "ManagedMemoryResourceOptions",
    "MemoryResource",
    "Ownership",
    "OwnershipError",
    "PinnedMemoryResource",
    "PinnedMemoryResourceOptions",
    "Stream",
    "StreamOptions",
    "TransferredTo",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
    "__version__",
    "graph",
    "memory_report",
    "utils",
]

# Public names of cuda-core 1.2.2 that this build does not have.
_ABSENT = frozenset(
    {
        "ContextOptions",
        "DeviceResources",
        "GraphicsResource",
        "Kernel",
        "LaunchConfig",
        "Linker",
        "LinkerOptions",
        "ObjectCode",
        "Program",
        "ProgramOptions",
        "SMResource",
        "SMResourceOptions",
        "TensorMapDescriptor",
        "TensorMapDescriptorOptions",
        "WorkqueueResource",
        "WorkqueueResourceOptions",
        "checkpoint",
        "launch",
        "system",
        "texture",
    }
)

if os.environ.get("CUDA_CORE_AUDIT"):  # whatever is allocated from here on is recorded
    from cuda.core.audit import _whole_program

    _whole_program.start(os.environ["CUDA_CORE_AUDIT"])


if not TYPE_CHECKING:  # a checker would believe that every name is there

    def __getattr__(name: str) -> object:
        if name in _ABSENT:
            raise AttributeError(
                f"cuda.core.{name} is not in this build: it has the memory layer of cuda-core 1.2.2 and what that needs"
            )
        return _later.fetch(__name__, name, _LATER)

    def __dir__() -> list[str]:
        return _later.names(__name__, _LATER)
