# SPDX-License-Identifier: Apache-2.0
"""Growing a virtual buffer: in reserved addresses, in addresses the driver grants, and by moving."""

import gc

import pytest

from cuda.core import (
    CloseResult,
    Device,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from support import (
    GRANULE,
    address_free,
    blocked,
    fill,
    fill_granules,
    foreign_reservations,
    free_memory,
    granules_hold,
    holds,
    place,
    race,
    read,
    rights_of_granules,
    simulated,
    write,
)


def assert_given_to(old, new):
    """The input of a grow has become the result."""
    assert new is not old
    assert old.ownership is Ownership.TRANSFERRED
    assert old.transferred_to is TransferredTo.GROWN
    assert old.is_closed
    assert (old.handle, old.size, old.memory_resource, old.owner) == (0, 0, None, None)
    assert new.ownership is Ownership.OWNED
    assert new.transferred_to is None
    assert not new.is_closed


# --- allocate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"), [(1, 1), (GRANULE - 1, 1), (GRANULE, 1), (GRANULE + 1, 2), (5 * GRANULE, 5)]
)
def test_allocate_rounds_up_to_the_granularity(resource, asked, given):
    free = free_memory()
    buffer = resource.allocate(asked)
    assert buffer.size == given * GRANULE
    assert buffer.mapped_size == buffer.size
    assert buffer.capacity == buffer.size
    assert buffer.handle % GRANULE == 0
    assert (buffer.ownership, buffer.transferred_to, buffer.loans) == (Ownership.OWNED, None, 0)
    assert buffer.memory_resource is resource
    assert buffer.device_id == 0
    assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, False)
    assert (buffer.is_managed, buffer.is_mapped) == (False, False)
    assert rights_of_granules(buffer) == [3] * given
    assert free_memory() == free - given * GRANULE
    fill_granules(buffer)
    assert granules_hold(buffer, given)
    address = buffer.handle
    assert buffer.close() is CloseResult.DONE
    assert address_free(address, given * GRANULE)
    assert free_memory() == free


def test_an_empty_buffer_costs_no_driver_call(resource, driver_watch):
    with driver_watch.no_call():
        buffer = resource.allocate(0)
        assert (buffer.size, buffer.mapped_size, buffer.capacity) == (0, 0, 0)
        assert (buffer.ownership, buffer.is_closed, bool(buffer)) == (Ownership.OWNED, False, True)
        assert buffer.memory_resource is resource
        assert buffer.close() is CloseResult.DONE
    assert buffer.ownership is Ownership.RELEASED


def test_an_empty_buffer_grows(resource):
    empty = resource.allocate(0)
    buffer = resource.modify_allocation(empty, 3 * GRANULE)
    assert_given_to(empty, buffer)
    assert buffer.size == 3 * GRANULE
    fill_granules(buffer)
    assert granules_hold(buffer, 3)
    assert empty.close() is CloseResult.NOTHING
    assert buffer.close() is CloseResult.DONE


def test_dropping_an_empty_buffer_is_quiet(resource, driver_watch, quiet):
    buffer = resource.allocate(0)
    with driver_watch.no_call():
        del buffer
        gc.collect()


# --- in reserved addresses ---------------------------------------------------------------------------------------


def test_room_in_the_reservation_keeps_the_address(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=8 * GRANULE))
    buffer = resource.allocate(GRANULE)
    address, free = buffer.handle, free_memory()
    fill_granules(buffer)
    assert (buffer.size, buffer.capacity) == (GRANULE, 8 * GRANULE)
    for granules in (2, 3, 5, 8):
        before, old = buffer.size // GRANULE, buffer
        buffer = resource.modify_allocation(old, granules * GRANULE)
        assert_given_to(old, buffer)
        assert buffer.handle == address
        assert (buffer.size, buffer.mapped_size, buffer.capacity) == (granules * GRANULE,) * 2 + (
            8 * GRANULE,
        )
        assert free_memory() == free - (granules - 1) * GRANULE
        assert rights_of_granules(buffer) == [3] * granules
        fill_granules(buffer, first=before)
        assert granules_hold(buffer, granules)
    buffer.close()
    assert address_free(address, 8 * GRANULE)


@pytest.mark.watched
def test_growing_into_room_costs_the_same_for_any_buffer(device, driver_watch):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=64 * GRANULE))
    buffer = resource.allocate(GRANULE)
    costs = []
    for granules in range(2, 41):
        old, grown = buffer, []
        costs.append(
            driver_watch.calls_of(
                lambda o=old, n=granules, g=grown: g.append(resource.modify_allocation(o, n * GRANULE))
            )
        )
        buffer = grown[0]
    assert all(cost == costs[0] for cost in costs)
    assert set(costs[0]) == {"cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess"}
    assert set(costs[0].values()) == {1}
    buffer.close()


def test_reserving_ahead_takes_addresses_and_no_memory(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=16 * GRANULE))
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    assert free_memory() == free - GRANULE
    assert not address_free(buffer.handle + 15 * GRANULE, GRANULE)
    buffer.close()


def test_a_reserve_size_below_the_request_does_not_shrink_it(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=GRANULE))
    buffer = resource.allocate(4 * GRANULE)
    assert (buffer.size, buffer.capacity) == (4 * GRANULE, 4 * GRANULE)
    buffer.close()


def test_reserve_size_is_rounded_up(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=3 * GRANULE + 1))
    buffer = resource.allocate(1)
    assert buffer.capacity == 4 * GRANULE
    buffer.close()


# --- in addresses that the driver grants -------------------------------------------------------------------------


def test_adjacent_addresses_keep_the_address(device):
    buffer, resource = place(device, GRANULE, stretch=8)
    address = buffer.handle
    fill_granules(buffer)
    for granules in (2, 4, 7):
        before, old = buffer.size // GRANULE, buffer
        buffer = resource.modify_allocation(old, granules * GRANULE)
        assert_given_to(old, buffer)
        assert buffer.handle == address
        assert buffer.size == granules * GRANULE
        fill_granules(buffer, first=before)
        assert granules_hold(buffer, granules)
        # One range over the seams of several reservations: a copy across all of it works.
        assert len(read(buffer.handle, buffer.size)) == buffer.size
    buffer.close()
    assert address_free(address, 7 * GRANULE)


def test_room_that_does_not_suffice_is_used_and_extended_or_left(device):
    """The request is larger than the reserved room; whichever way it grows, nothing is lost."""
    buffer, resource = place(device, GRANULE, stretch=12, reserve_size=2 * GRANULE)
    address = buffer.handle
    fill_granules(buffer)
    grown = resource.modify_allocation(buffer, 6 * GRANULE)
    assert_given_to(buffer, grown)
    assert grown.size == 6 * GRANULE
    fill_granules(grown, first=1)
    assert granules_hold(grown, 6)
    again = grown.handle
    grown.close()
    assert address_free(again, 6 * GRANULE)
    assert address_free(address, 12 * GRANULE)


# --- by moving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [GRANULE + 1, 2 * GRANULE, 3 * GRANULE - 5, 9 * GRANULE])
def test_a_blocked_grow_moves_and_keeps_the_bytes(resource, asked):
    old = resource.allocate(GRANULE)
    fill_granules(old)
    address, free = old.handle, free_memory()
    granules = -(-asked // GRANULE)
    with blocked(old):
        new = resource.modify_allocation(old, asked)
        assert_given_to(old, new)
        assert new.handle != address
        assert new.size == granules * GRANULE
        assert free_memory() == free - (granules - 1) * GRANULE, "the old memory was mapped again, not copied"
        assert address_free(address, GRANULE)
    assert rights_of_granules(new) == [3] * granules
    fill_granules(new, first=1)
    assert granules_hold(new, granules)
    new.close()


def test_a_buffer_of_several_reservations_moves_as_one(device):
    buffer, resource = place(device, GRANULE, stretch=8)
    address = buffer.handle
    for granules in (2, 3, 4):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    assert buffer.handle == address
    fill_granules(buffer)
    with blocked(buffer):
        moved = resource.modify_allocation(buffer, 5 * GRANULE)
        assert moved.handle != address
        assert address_free(address, 4 * GRANULE), "every reservation of the old range was freed"
    assert granules_hold(moved, 4)
    moved.close()


def test_a_moved_buffer_grows_on_in_every_way(device):
    buffer, resource = place(device, GRANULE, stretch=4, reserve_size=2 * GRANULE)
    fill_granules(buffer)
    filled = 1
    for granules in range(2, 14):
        old = buffer
        if granules % 3 == 0:
            with blocked(old):
                buffer = resource.modify_allocation(old, granules * GRANULE)
        else:
            buffer = resource.modify_allocation(old, granules * GRANULE)
        assert_given_to(old, buffer)
        fill_granules(buffer, first=filled)
        filled = granules
        assert granules_hold(buffer, filled)
    buffer.close()


def test_rights_of_a_chunk_travel_when_the_buffer_moves(resource):
    buffer = resource.allocate(GRANULE)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
    assert rights_of_granules(buffer) == [3, 1]
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 4 * GRANULE)
    assert rights_of_granules(buffer) == [3, 1, 3, 3]
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 5 * GRANULE)
    assert rights_of_granules(buffer) == [3, 1, 3, 3, 3]
    buffer.close()


def test_a_moved_buffer_does_not_touch_its_neighbours(device):
    buffer, resource = place(device, 2 * GRANULE, stretch=6)
    with foreign_reservations(buffer.handle, buffer.size):
        before, behind = buffer.handle - GRANULE, buffer.handle + buffer.size
        taken = [place for place in (before, behind) if not address_free(place, GRANULE)]
        assert behind in taken
        assert before in taken or not simulated()  # not every driver lets others have what is before
        moved = resource.modify_allocation(buffer, 3 * GRANULE)
        assert not any(address_free(place, GRANULE) for place in taken)
        moved.close()


# --- what a grow keeps and refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, GRANULE, 3 * GRANULE - 1, 3 * GRANULE])
def test_a_request_that_is_covered_returns_the_buffer_itself(resource, driver_watch, size):
    buffer = resource.allocate(3 * GRANULE)
    address = buffer.handle
    with driver_watch.no_call():
        assert resource.modify_allocation(buffer, size) is buffer
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 3 * GRANULE)
    buffer.close()


def test_the_result_of_a_grow_knows_what_the_input_knew(resource):
    old = resource.allocate(GRANULE)
    hash_of_old = hash(old)
    new = resource.modify_allocation(old, 2 * GRANULE)
    assert new.memory_resource is resource
    assert new.device_id == 0
    assert (new.is_device_accessible, new.is_host_accessible, new.is_managed, new.is_mapped) == (
        True,
        False,
        False,
        False,
    )
    assert new.owner is None
    assert new.loans == 0
    assert hash(old) == hash_of_old
    assert old == old
    assert old != new
    new.close()


def test_the_input_of_a_grow_refuses_every_use(resource):
    old = resource.allocate(GRANULE)
    new = resource.modify_allocation(old, 2 * GRANULE)
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*TRANSFERRED.*GROWN"):
        resource.modify_allocation(old, 4 * GRANULE)
    assert old.close() is CloseResult.NOTHING
    assert (new.ownership, new.size) == (Ownership.OWNED, 2 * GRANULE)
    new.close()


def test_the_old_buffer_keeps_nothing_alive(resource):
    old = resource.allocate(GRANULE)
    free = free_memory()
    new = resource.modify_allocation(old, 2 * GRANULE)
    del new
    gc.collect()
    assert free_memory() == free + GRANULE
    assert old.ownership is Ownership.TRANSFERRED


def test_virtual_memory_needs_no_current_context(resource):
    """A thread that never made a device current allocates, grows both ways and closes."""

    def work():
        buffer = resource.allocate(GRANULE)
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE)
        buffer = resource.modify_allocation(buffer, 3 * GRANULE)
        return buffer.close()

    assert race(work) == [CloseResult.DONE]


@pytest.mark.two_devices
def test_the_device_of_the_resource_decides_and_the_current_one_stays(devices, device):
    resource = VirtualMemoryResource(devices[1])
    free_here = free_memory()
    devices[1].set_current()
    free_there = free_memory()
    devices[0].set_current()
    buffer = resource.allocate(GRANULE)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert buffer.device_id == 1
    assert resource.device_id == 1
    assert int(Device().device_id) == 0
    assert free_memory() == free_here
    assert rights_of_granules(buffer, device=1) == [3] * 3
    assert rights_of_granules(buffer, device=0) == [0] * 3
    devices[1].set_current()
    assert free_memory() == free_there - 3 * GRANULE
    devices[0].set_current()
    buffer.close()
    assert int(Device().device_id) == 0
    devices[1].set_current()
    assert free_memory() == free_there
    devices[0].set_current()


@pytest.mark.two_devices
def test_peers_get_their_rights_on_every_chunk(devices, device):
    options = VirtualMemoryResourceOptions(peers=(1,), peer_access="r")
    resource = VirtualMemoryResource(device, options)
    buffer = resource.allocate(GRANULE)
    buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert rights_of_granules(buffer, device=0) == [3] * 3
    assert rights_of_granules(buffer, device=1) == [1] * 3
    buffer.close()


def test_bytes_written_across_a_seam_survive_a_move(resource):
    buffer = resource.allocate(GRANULE)
    buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    text = bytes(range(256)) * 16
    write(buffer.handle + GRANULE - 2048, text)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert read(buffer.handle + GRANULE - 2048, 4096) == text
    fill(buffer.handle, buffer.size, seed=9)
    assert holds(buffer.handle, buffer.size, seed=9)
    buffer.close()
