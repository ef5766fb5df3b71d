# SPDX-License-Identifier: Apache-2.0
"""Types and enumerations that the signatures of ``cuda.core`` use.

Each enumeration is one of strings: wherever a member is accepted, its string value is accepted too.
"""

import enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cuda.bindings import driver

__all__ = [
    "DevicePointerType",
    "IsStreamType",
    "ManagedMemoryLocationType",
    "VirtualMemoryAccessType",
    "VirtualMemoryAllocationType",
    "VirtualMemoryGranularityType",
    "VirtualMemoryHandleType",
    "VirtualMemoryLocationType",
]

DevicePointerType: TypeAlias = driver.CUdeviceptr | int | None
"""A device address: an ``int``, a ``cuda.bindings.driver.CUdeviceptr``, or None."""


class IsStreamType(Protocol):
    """An object that stands for a CUDA stream, from this or another library."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol (0) and the address of the stream."""
        ...


class _StringEnum(str, enum.Enum):
    # enum.StrEnum came with Python 3.11.
    def __str__(self) -> str:
        return str.__str__(self)


class ManagedMemoryLocationType(_StringEnum):
    """A place where managed memory can lie."""

    DEVICE = "device"  #: memory of a device
    HOST = "host"  #: memory of the host, on any NUMA node
    HOST_NUMA = "host_numa"  #: memory of one NUMA node of the host


class VirtualMemoryHandleType(_StringEnum):
    """How a physical allocation can be handed to another process."""

    POSIX_FD = "posix_fd"  #: a file descriptor
    WIN32_KMT = "win32_kmt"  #: a Windows handle; refused on Linux
    FABRIC = "fabric"  #: a handle that other nodes of one fabric can open


class VirtualMemoryLocationType(_StringEnum):
    """Where the physical memory lies."""

    DEVICE = "device"  #: memory of the device
    HOST = "host"  #: memory of the host
    HOST_NUMA = "host_numa"  #: memory of the NUMA node that is nearest to the device
    HOST_NUMA_CURRENT = "host_numa_current"  #: memory of the calling thread's NUMA node


class VirtualMemoryGranularityType(_StringEnum):
    """Which granularity sizes are rounded to."""

    MINIMUM = "minimum"  #: the smallest that works
    RECOMMENDED = "recommended"  #: the one that works best


class VirtualMemoryGrowthType(_StringEnum):
    """How much physical memory a grow adds."""

    EXACT = "exact"  #: what was asked for
    GEOMETRIC = "geometric"  #: at least half of what is mapped, so that n grows make O(log n) chunks


class VirtualMemoryAccessType(_StringEnum):
    """What a place may do with the memory."""

    READ_WRITE = "rw"
    READ = "r"


class VirtualMemoryAllocationType(_StringEnum):
    """The kind of physical allocation."""

    PINNED = "pinned"  #: stays where it was allocated
    MANAGED = "managed"  #: refused: the driver makes no managed virtual memory


# Public names of cuda-core 1.2.2 that belong to what this build does not have.
_ABSENT = frozenset(
    {
        "AddressModeType",
        "ArrayFormatType",
        "CompilerBackendType",
        "DeviceResourcesType",
        "FilterModeType",
        "GraphConditionalType",
        "GraphMemoryType",
        "ObjectCodeFormatType",
        "PCHStatusType",
        "ProcessStateType",
        "ReadModeType",
        "SourceCodeType",
        "WorkqueueSharingScopeType",
    }
)

if not TYPE_CHECKING:  # a checker would believe that every name is there

    def __getattr__(name: str) -> object:
        if name in _ABSENT:
            raise AttributeError(f"cuda.core.typing.{name} is not in this build")
        raise AttributeError(f"module 'cuda.core.typing' has no attribute {name!r}")
