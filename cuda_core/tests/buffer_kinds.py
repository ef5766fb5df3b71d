# SPDX-License-Identifier: Apache-2.0
"""Every kind of buffer that owns its memory, behind one face, so that one test covers them all.

A `Source` makes buffers of one kind. What it says about them (how large they are made, whether the host reaches
them) is written down here and not asked of the package.
"""

import gc

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    PinnedMemoryResource,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from python_resources import Plain
from support import GRANULE, check

SMALL = 4096


class Source:
    """Makes buffers of `size` bytes. ``resource`` is None where a plain function frees them."""

    size = SMALL
    at_host = False  # the host reaches the memory
    built_in = True  # it is freed in C, and nobody is asked
    has_device = True
    needs_stream = False
    frees_in_order = False

    def __init__(self, device):
        self.device = device
        self.arguments = ()  # of the resource's type, for subclasses of it too
        self.resource = self.make()

    def make(self):
        """Make one more resource of this kind."""
        raise NotImplementedError

    def allocate(self, size=None, *, stream=None, resource=None):
        resource = self.resource if resource is None else resource
        return resource.allocate(self.size if size is None else size, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        """Call ``deallocate`` of the resource by hand."""
        return self.resource.deallocate(ptr, size, stream=stream)

    def frees(self):
        """How often somebody outside the package was asked to free, where that can be counted."""
        return None


class VirtualSource(Source):
    name = "virtual"
    size = GRANULE

    def make(self):
        self.arguments = (self.device,)
        return VirtualMemoryResource(*self.arguments)


class PinnedSource(Source):
    name = "pinned"
    at_host = True
    has_device = False

    def make(self):
        return LegacyPinnedMemoryResource()


class DeviceSource(Source):
    name = "device"

    def make(self):
        self.arguments = (self.device.device_id,)
        return _SynchronousMemoryResource(*self.arguments)


class PoolSource(Source):
    """A pool of its own, so that its memory is the device's again when the resource and its buffers are gone."""

    name = "pool"
    needs_stream = True  # frees in the order of a stream, and wants to be told which
    frees_in_order = True  # a close waits for nothing: the driver frees behind the stream

    def make(self):
        self.arguments = (self.device, {})
        return DeviceMemoryResource(*self.arguments)

    def allocate(self, size=None, *, stream=None, resource=None):
        return super().allocate(size, stream=stream or self.device.default_stream, resource=resource)

    def deallocate(self, ptr, size, *, stream=None):
        return super().deallocate(ptr, size, stream=self.device.default_stream if stream is None else stream)


class PinnedPoolSource(PoolSource):
    name = "pinned pool"
    at_host = True
    has_device = False

    def make(self):
        self.arguments = ({},)
        return PinnedMemoryResource(*self.arguments)


class ManagedPoolSource(PoolSource):
    name = "managed pool"
    at_host = True
    has_device = False

    def make(self):
        self.arguments = ({},)
        return ManagedMemoryResource(*self.arguments)


class PythonSource(Source):
    name = "python"
    built_in = False

    def make(self):
        return Plain()

    def frees(self):
        return len(self.resource.asked)


class FunctionSource(Source):
    """No resource: a function that was given to ``from_handle``."""

    name = "function"
    built_in = False

    def make(self):
        self.asked = []
        return None

    def allocate(self, size=None, *, stream=None, resource=None):
        size = self.size if size is None else size
        address = int(check(driver.cuMemAlloc(size))) if size else 0

        def free(ptr, size, stream):
            self.asked.append((ptr, size, stream))
            if ptr:
                check(driver.cuMemFree(ptr))

        return Buffer.from_handle(address, size, deallocate=free, stream=stream)

    def frees(self):
        return len(self.asked)


SOURCES = {
    kind.name: kind
    for kind in (
        VirtualSource,
        PinnedSource,
        DeviceSource,
        PoolSource,
        PinnedPoolSource,
        ManagedPoolSource,
        PythonSource,
        FunctionSource,
    )
}
POOL_TYPES = {
    "pool": DeviceMemoryResource,
    "pinned pool": PinnedMemoryResource,
    "managed pool": ManagedMemoryResource,
}
POOLS = {name: kind for name, kind in SOURCES.items() if kind.frees_in_order}
BUILT_IN = {name: kind for name, kind in SOURCES.items() if kind.built_in}
WAITING = {
    name: kind for name, kind in BUILT_IN.items() if not kind.frees_in_order
}  # their close waits for work
WITH_RESOURCE = {name: kind for name, kind in SOURCES.items() if name != "function"}

FREES = {  # the driver's call that frees each kind
    "virtual": "cuMemUnmap",
    "pinned": "cuMemFreeHost",
    "device": "cuMemFree",
    **dict.fromkeys(POOLS, "cuMemFreeAsync"),
}


def raw_memory(kind, size):
    """Make memory of a built-in kind through the bindings alone; return its address."""
    if kind == "device":
        return int(check(driver.cuMemAlloc(size)))
    if kind == "pinned":
        return int(check(driver.cuMemAllocHost(size)))
    if kind in POOLS:
        return raw_pool_memory(kind, size)
    return raw_virtual_memory(size)


def raw_virtual_memory(size, address=0):
    """One reservation with one mapping of one chunk, usable by device 0."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = int(check(driver.cuMemAddressReserve(size, 0, address, 0)))
    chunk = check(driver.cuMemCreate(size, properties, 0))
    check(driver.cuMemMap(address, size, 0, chunk, 0))
    check(driver.cuMemRelease(chunk))
    check(driver.cuMemSetAccess(address, size, [access], 1))
    return address


raw_pools = {}


def make_raw_pools():
    """Make the pools of `raw_memory`. They stay: a driver crashes later when one is destroyed under its memory."""
    for kind in POOLS:
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        if kind == "pinned pool":
            properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        elif kind == "managed pool":
            properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
        pool = check(driver.cuMemPoolCreate(properties))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(driver.cuMemPoolSetAccess(pool, [access], 1))
        raw_pools[kind] = pool


def raw_pool_memory(kind, size):
    if not raw_pools:
        make_raw_pools()
    address = int(check(driver.cuMemAllocFromPoolAsync(size, raw_pools[kind], 0)))
    check(driver.cuStreamSynchronize(0))
    return address


def free_raw(kind, address, size):
    """Free, through the bindings alone, what `raw_memory` or a resource of this kind made."""
    if kind in ("device", "python", "function"):
        check(driver.cuMemFree(address))
    elif kind == "pinned":
        check(driver.cuMemFreeHost(address))
    elif kind in POOLS:
        check(driver.cuMemFreeAsync(address, 0))
        check(driver.cuStreamSynchronize(0))
    else:
        check(driver.cuMemUnmap(address, size))
        check(driver.cuMemAddressFree(address, size))


def end(box, how):
    """End the buffer that is the only thing in the list `box`: close it, leave ``with``, drop it, collect a cycle."""
    if how == "close":
        box.pop().close()
    elif how == "with":
        with box.pop():
            pass
    elif how == "cycle":
        cycle = [box.pop()]
        cycle.append(cycle)
        del cycle
    else:
        box.clear()
    gc.collect()


ENDINGS = ("close", "with", "drop", "cycle")


def used(resource):
    """Return how many bytes of a resource's pool are given out."""
    return resource.attributes.used_mem_current
