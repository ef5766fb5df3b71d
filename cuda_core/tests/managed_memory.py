# SPDX-License-Identifier: Apache-2.0
"""Managed memory of a resource written in Python, and what the driver says about it."""

from cuda.bindings import driver
from cuda.core import ManagedBuffer, MemoryResource
from support import check

RANGE = driver.CUmem_range_attribute


class Managed(MemoryResource):
    """Managed memory, as an author writes it: ``allocate`` gives buffers that can be advised."""

    def __init__(self):
        self.held, self.asked = {}, []

    def allocate(self, size, *, stream=None):
        address = int(check(driver.cuMemAllocManaged(size, 1)))
        self.held[address] = size
        return ManagedBuffer.from_handle(address, size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size))
        del self.held[ptr]
        check(driver.cuMemFree(ptr))

    is_device_accessible = is_host_accessible = is_managed = True
    device_id = 0


def ask(buffer, attribute):
    """What the driver says, without the package."""
    return int(check(driver.cuMemRangeGetAttribute(4, attribute, buffer.handle, buffer.size)))


def location(buffer, which):
    kind = ask(buffer, getattr(RANGE, f"CU_MEM_RANGE_ATTRIBUTE_{which}_LOCATION_TYPE"))
    number = ask(buffer, getattr(RANGE, f"CU_MEM_RANGE_ATTRIBUTE_{which}_LOCATION_ID"))
    if kind == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID:
        return "INVALID", number  # some versions of the bindings call the same number NONE
    return driver.CUmemLocationType(kind).name.removeprefix("CU_MEM_LOCATION_TYPE_"), number


def prefetched(buffer):
    return location(buffer, "LAST_PREFETCH")


def accessors(buffer, places=3):
    found = check(
        driver.cuMemRangeGetAttribute(
            4 * places, RANGE.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, buffer.handle, buffer.size
        )
    )
    return {int(ordinal) for ordinal in found} - {-2}
