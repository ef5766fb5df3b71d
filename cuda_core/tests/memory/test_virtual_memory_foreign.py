# SPDX-License-Identifier: Apache-2.0
"""Virtual memory that somebody else made, direct calls of ``deallocate``, and subclasses in Python."""

import gc

import pytest

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from support import (
    GRANULE,
    address_free,
    blocked,
    check,
    fill,
    fill_granules,
    free_memory,
    granules_hold,
    holds,
    reserve,
    warnings_seen,
)


@pytest.fixture
def by_hand(device):
    """The address of two granules that were reserved, created and mapped through the bindings."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    access = driver.CUmemAccessDesc()
    access.location.type = properties.location.type
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    size = 2 * GRANULE
    address = reserve(size)
    chunk = check(driver.cuMemCreate(size, properties, 0))
    check(driver.cuMemMap(address, size, 0, chunk, 0))
    check(driver.cuMemRelease(chunk))
    check(driver.cuMemSetAccess(address, size, [access], 1))
    fill(address, size, seed=4)
    return address


@pytest.mark.parametrize("how", ["close", "drop", "deallocate"])
def test_memory_made_by_hand_is_freed_by_its_address_and_size(resource, by_hand, how):
    free = free_memory()
    if how == "deallocate":
        resource.deallocate(by_hand, 2 * GRANULE)
    else:
        buffer = Buffer.from_handle(by_hand, 2 * GRANULE, resource)
        assert (buffer.ownership, buffer.memory_resource) == (Ownership.OWNED, resource)
        assert holds(buffer.handle, buffer.size, seed=4)
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        gc.collect()
    assert free_memory() == free + 2 * GRANULE
    assert address_free(by_hand, 2 * GRANULE)


@pytest.mark.parametrize("moving", [False, True], ids=["where there is room", "moving"])
def test_memory_made_by_hand_grows(resource, by_hand, moving):
    buffer = Buffer.from_handle(by_hand, 2 * GRANULE, resource)
    if moving:
        with blocked(buffer):
            grown = resource.modify_allocation(buffer, 3 * GRANULE)
        assert address_free(by_hand, 2 * GRANULE)
    else:
        grown = resource.modify_allocation(buffer, 3 * GRANULE)
    assert holds(grown.handle, 2 * GRANULE, seed=4)
    fill(grown.handle, grown.size, seed=6)
    assert holds(grown.handle, grown.size, seed=6)
    grown.close()


@pytest.mark.provokes_refusals
def test_a_wrong_size_is_an_error_and_the_addresses_stay(resource, by_hand):
    for size in (GRANULE, 4 * GRANULE):
        with pytest.raises(CUDAError):
            resource.deallocate(by_hand, size)
    assert not address_free(by_hand, 2 * GRANULE)
    driver.cuMemUnmap(by_hand, 2 * GRANULE)
    check(driver.cuMemAddressFree(by_hand, 2 * GRANULE))


def test_a_second_owner_of_one_address_is_refused(resource):
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    with pytest.raises(OwnershipError):
        Buffer.from_handle(buffer.handle, buffer.size, resource)
    gc.collect()
    assert granules_hold(buffer, 1)
    address = buffer.handle
    buffer.close()
    assert address_free(address, GRANULE)


def test_the_address_of_an_open_buffer_cannot_be_deallocated(resource, driver_watch):
    buffer = resource.allocate(2 * GRANULE)
    fill_granules(buffer)
    for size in (2 * GRANULE, GRANULE):
        with driver_watch.no_call():
            with pytest.raises(OwnershipError):
                resource.deallocate(buffer.handle, size)
    assert buffer.ownership is Ownership.OWNED
    assert granules_hold(buffer, 2)
    with blocked(buffer):
        moved = resource.modify_allocation(buffer, 3 * GRANULE)
    with pytest.raises(OwnershipError):
        resource.deallocate(moved.handle, 3 * GRANULE)
    moved.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_an_address_that_another_buffer_has_taken_stays_that_buffers(device, driver_watch):
    """A close frees the address and keeps an older one that the driver refuses. Somebody else gets the address; the
    second close must not make the resource forget that."""
    resource = VirtualMemoryResource(device)
    old = resource.allocate(GRANULE)
    with blocked(old), warnings_seen(), driver_watch.fail("cuMemUnmap", sticky=True):
        stuck = resource.modify_allocation(old, 2 * GRANULE)
    address = stuck.handle
    with driver_watch.fail("cuMemUnmap"):
        with pytest.raises(CUDAError, match="cuMemUnmap"):
            stuck.close()
    assert address_free(address, 2 * GRANULE), "everything was tried, and only the old addresses are left"
    resource.config.addr_hint = address
    other = resource.allocate(2 * GRANULE)
    assert other.handle == address
    fill_granules(other)
    assert stuck.close() is CloseResult.DONE
    with pytest.raises(OwnershipError):
        resource.deallocate(address, 2 * GRANULE)
    with pytest.raises(OwnershipError):
        Buffer.from_handle(address, 2 * GRANULE, resource)
    assert granules_hold(other, 2)
    other.close()


# --- subclasses --------------------------------------------------------------------------------------------------


class Counting(VirtualMemoryResource):
    """Written for an older release: it overrides ``deallocate`` and hands on to the base class."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size))
        super().deallocate(ptr, size, stream=stream)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_subclass_is_asked_once_for_each_allocation(device, how):
    free = free_memory()
    resource = Counting(device)
    buffer = resource.allocate(2 * GRANULE)
    address = buffer.handle
    if how == "close":
        assert buffer.close() is CloseResult.DONE
    del buffer
    gc.collect()
    assert resource.asked == [(address, 2 * GRANULE)]
    assert free_memory() == free


def test_a_subclass_is_asked_once_for_a_buffer_that_moved(device, quiet):
    free = free_memory()
    resource = Counting(device)
    buffer = resource.allocate(GRANULE)
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert resource.asked == []
    fill_granules(grown)
    address = grown.handle
    grown.close()
    del buffer
    gc.collect()
    assert resource.asked == [(address, 2 * GRANULE)]
    assert free_memory() == free


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_subclass_whose_free_fails_is_asked_again_by_the_next_close(device, driver_watch):
    resource = Counting(device)
    buffer = resource.allocate(3 * GRANULE)
    with driver_watch.fail("cuMemAddressFree"):
        with pytest.raises(CUDAError, match="cuMemAddressFree"):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE
    assert len(resource.asked) == 2


def test_a_subclass_that_closes_the_buffer_it_frees(device):
    class Closes(Counting):
        buffers = None

        def deallocate(self, ptr, size, *, stream=None):
            assert self.buffers.pop().close() is CloseResult.NOTHING
            super().deallocate(ptr, size, stream=stream)

    resource = Closes(device)
    buffer = resource.allocate(GRANULE)
    resource.buffers = [buffer]
    assert buffer.close() is CloseResult.DONE
    assert len(resource.asked) == 1
