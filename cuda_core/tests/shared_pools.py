# SPDX-License-Identifier: Apache-2.0
"""Pools that can be shared, and the same pools opened again in this process, as another process would open them.

The driver lets a process import a pool of its own (recorded on an H200), so most of sharing is tested without a second
process. Nothing that is opened here is registered.
"""

import ctypes
import os

from cuda.bindings import driver
from cuda.core import Buffer, DeviceMemoryResource, EventOptions, PinnedMemoryResource
from support import check

SIZE = 4096
KINDS = ("device", "pinned")
SHARED_EVENT = EventOptions(ipc_enabled=True)
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def make(kind="device"):
    """Make a resource whose pool can be shared."""
    if kind == "device":
        return DeviceMemoryResource(0, {"ipc_enabled": True, "max_size": 64 << 20})
    return PinnedMemoryResource({"ipc_enabled": True, "max_size": 64 << 20, "numa_id": 0})


def opened(resource):
    """Open the pool of a resource once more, by the number of its descriptor."""
    return open_number(type(resource), int(resource.allocation_handle))


def open_number(kind, number):
    return kind.from_allocation_handle(*(() if kind is PinnedMemoryResource else (0,)), number)


def payload_of(descriptor):
    return descriptor.__reduce__()[1][0]


def descriptors():
    """Return what this process has open, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # the folder's own
    return found


class Shared:
    """A buffer, and its pool as another process would have it."""

    def __init__(self, kind, stream):
        self.stream = stream
        self.resource = make(kind)
        self.buffer = self.resource.allocate(SIZE, stream=stream)
        self.there = opened(self.resource)
        stream.sync()

    @property
    def descriptor(self):
        return self.buffer.ipc_descriptor

    def imported(self, stream=None):
        return Buffer.from_ipc_descriptor(self.there, self.descriptor, stream=stream or self.stream)

    def close(self):
        self.buffer.close()
        self.there.close()
        self.resource.close()


class RawShare:
    """A pool and a pointer of it, exported through the bindings alone."""

    def __init__(self, size=SIZE, device=0):
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        properties.handleTypes = FD
        self.pool = check(driver.cuMemPoolCreate(properties))
        self.address = int(check(driver.cuMemAllocFromPoolAsync(size, self.pool, 0)))
        check(driver.cuStreamSynchronize(0))
        self.number = int(check(driver.cuMemPoolExportToShareableHandle(self.pool, FD, 0)))
        exported = check(driver.cuMemPoolExportPointer(self.address))
        self.payload = ctypes.string_at(exported.getPtr(), 64)

    def close(self):
        os.close(self.number)
        check(driver.cuMemFreeAsync(self.address, 0))
        check(driver.cuStreamSynchronize(0))
        check(driver.cuMemPoolDestroy(self.pool))
