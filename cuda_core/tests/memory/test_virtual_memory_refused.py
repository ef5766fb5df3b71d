# SPDX-License-Identifier: Apache-2.0
"""Refusals that the driver makes by itself: no memory left, no addresses left. They need no injected failure."""

import pytest

from cuda.bindings import driver
from cuda.core import (
    CloseResult,
    CUDAError,
    Ownership,
    VirtualMemoryResource,
)
from support import GRANULE, address_free, blocked, fill_granules, free_memory, granules_hold, place

pytestmark = pytest.mark.provokes_refusals


def more_than_there_is():
    return (int(driver.cuMemGetInfo()[2]) // GRANULE + 1) * GRANULE


def test_an_allocation_beyond_the_device_leaves_nothing(resource, driver_watch):
    live, free = driver_watch.live(), free_memory()
    for _ in range(3):
        with pytest.raises(CUDAError, match=r"CUDA_ERROR_OUT_OF_MEMORY.*cuMemCreate"):
            resource.allocate(more_than_there_is())
    assert driver_watch.live() == live
    assert free_memory() == free
    resource.allocate(GRANULE).close()


@pytest.mark.parametrize("way", ["in room", "adjacent", "moving"])
def test_a_grow_beyond_the_device_leaves_the_buffer_as_it_was(device, driver_watch, way):
    wanted = more_than_there_is()
    if way == "in room":
        resource = VirtualMemoryResource(device, {"reserve_size": wanted})
        buffer = resource.allocate(2 * GRANULE)
    else:
        buffer, resource = place(device, 2 * GRANULE, stretch=4)
    fill_granules(buffer)
    address, live, free = buffer.handle, driver_watch.live(), free_memory()

    def grow():
        with pytest.raises(CUDAError, match=r"CUDA_ERROR_OUT_OF_MEMORY.*cuMemCreate"):
            resource.modify_allocation(buffer, wanted)

    if way == "moving":
        with blocked(buffer):
            grow()
    else:
        grow()
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 2 * GRANULE)
    assert granules_hold(buffer, 2)
    assert driver_watch.live() == live
    assert free_memory() == free
    grown = resource.modify_allocation(buffer, 3 * GRANULE)
    assert granules_hold(grown, 2)
    assert grown.close() is CloseResult.DONE


def test_more_addresses_than_there_are(device, driver_watch):
    live = driver_watch.live()
    resource = VirtualMemoryResource(device, {"reserve_size": 2**62})
    with pytest.raises(ValueError, match="reserve_size"):
        resource.allocate(GRANULE)
    resource.config.reserve_size = 0
    with pytest.raises(CUDAError, match=f"cuMemAddressReserve.*{2**62} bytes of addresses"):
        resource.allocate(2**62)
    assert driver_watch.live() == live
    resource.allocate(GRANULE).close()


def test_a_grow_beyond_all_addresses_leaves_the_buffer_as_it_was(resource):
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    with pytest.raises(CUDAError):
        resource.modify_allocation(buffer, 2**62)
    assert (buffer.ownership, buffer.size) == (Ownership.OWNED, GRANULE)
    assert granules_hold(buffer, 1)
    buffer.close()


def test_a_full_device_is_usable_again_after_a_close(resource):
    free = free_memory()
    part = free * 2 // 5 // GRANULE * GRANULE
    first, second = resource.allocate(part), resource.allocate(part)
    with pytest.raises(CUDAError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        resource.allocate(part)
    address = first.handle
    first.close()
    assert address_free(address, part)
    third = resource.allocate(part)
    third.close()
    second.close()
    assert free_memory() == free


def test_a_peer_that_is_not_there_is_refused(device):
    """By the resource when it is made, or by the driver at the first allocation; nothing is left either way."""
    with pytest.raises((ValueError, CUDAError)):
        VirtualMemoryResource(device, {"peers": (99,)}).allocate(GRANULE)
