# SPDX-License-Identifier: Apache-2.0
"""Growth that costs what it adds: addresses reserved and memory mapped ahead, old addresses kept, no waiting."""

import gc
import math

import pytest

from captures import capturing
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    Ownership,
    TransferredTo,
    VirtualMemoryResource,
)
from support import (
    GRANULE,
    address_free,
    blocked,
    check,
    fill_granules,
    foreign_reservations,
    free_memory,
    given_back,
    granules_hold,
    place,
    read,
    still_allocated,
    write,
)

TIB = 1 << 40


def live_package():
    from cuda.core._memory import _counters

    return _counters.live()


# --- reserving ahead ---------------------------------------------------------------------------------------------


def test_vmm_06_each_allocation_can_say_how_much_it_reserves(resource):
    buffer = resource.allocate(GRANULE, reserve_size=6 * GRANULE + 1)
    assert (buffer.size, buffer.mapped_size, buffer.capacity) == (GRANULE, GRANULE, 7 * GRANULE)
    address = buffer.handle
    fill_granules(buffer)
    with foreign_reservations(address, buffer.capacity):
        for granules in (2, 5, 7):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
            assert buffer.handle == address
    assert granules_hold(buffer, 1)
    assert resource.allocate(GRANULE).capacity == GRANULE, "it was said for one allocation"
    buffer.close()
    assert address_free(address, 7 * GRANULE)


def test_an_allocation_can_reserve_less_than_the_options_say(device):
    resource = VirtualMemoryResource(device, {"reserve_size": 8 * GRANULE})
    assert resource.allocate(GRANULE, reserve_size=0).capacity == GRANULE
    assert resource.allocate(2 * GRANULE, reserve_size=GRANULE).capacity == 2 * GRANULE


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (1.0, TypeError),
        ("1", TypeError),
        (True, TypeError),
        (2**63, OverflowError),
        (2**63 - 1, OverflowError),
        (2**62, ValueError),
        (64 * TIB + 1, ValueError),
    ],
)
def test_val_05_reservations_that_are_refused(resource, driver_watch, value, error):
    live = live_package()
    with driver_watch.no_call():
        with pytest.raises(error, match="reserve_size"):
            resource.allocate(GRANULE, reserve_size=value)
    assert live_package() == live


def test_all_buffers_together_reserve_no_more_than_half_of_the_address_space(resource, driver_watch):
    """Ahead, that is: what is really needed is the driver's to refuse."""
    first = resource.allocate(GRANULE, reserve_size=16 * TIB)
    with driver_watch.no_call():
        with pytest.raises(ValueError, match=str(16 * TIB)):
            resource.allocate(GRANULE, reserve_size=50 * TIB)
    plain = resource.allocate(GRANULE)
    assert live_package()["reserved_addresses"] == 16 * TIB + GRANULE
    with blocked(plain):
        with pytest.raises(ValueError, match="reserve_size"):
            resource.modify_allocation(plain, 2 * GRANULE, config={"reserve_size": 50 * TIB})
    assert plain.ownership is Ownership.OWNED
    first.close()
    plain.close()
    assert "reserved_addresses" not in live_package()


def test_growing_up_to_the_capacity_waits_for_nothing(device, stream):
    """Not even for a stream that is being captured."""
    resource = VirtualMemoryResource(device, {"reserve_size": 4 * GRANULE})
    buffer = resource.allocate(GRANULE, stream=stream)
    address = buffer.handle
    with capturing(stream):
        for granules in (2, 4):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
            assert buffer.handle == address
    buffer.close()


# --- mapping ahead -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", [0, 256 * GRANULE], ids=["moving", "in room"])
def test_geometric_growth_makes_a_logarithm_of_chunks(device, driver_watch, reserve):
    resource = VirtualMemoryResource(device, {"growth": "geometric", "reserve_size": reserve})
    before = live_package().get("mappings", 0)
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    grows, silent = 199, 0
    for granules in range(2, grows + 2):
        calls = driver_watch.calls()
        old, buffer = buffer, resource.modify_allocation(buffer, granules * GRANULE)
        silent += driver_watch.calls() == calls
        assert (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
        assert buffer.size == granules * GRANULE <= buffer.mapped_size <= buffer.capacity
        assert buffer.mapped_size <= 1.5 * buffer.size + GRANULE
        fill_granules(buffer, first=granules - 1)
    chunks = live_package()["mappings"] - before
    assert chunks <= math.log(grows, 1.5) + 4
    if driver_watch.sim:
        assert silent == grows - (chunks - 1), "all others found their memory mapped"
    assert granules_hold(buffer, grows + 1)
    unmaps = driver_watch.calls_of(buffer.close)
    if driver_watch.sim:
        assert unmaps["cuMemUnmap"] == chunks


def test_exact_growth_maps_what_was_asked_for(device):
    resource = VirtualMemoryResource(device, {"reserve_size": 16 * GRANULE})
    buffer = resource.allocate(8 * GRANULE)
    free = free_memory()
    buffer = resource.modify_allocation(buffer, 9 * GRANULE)
    assert buffer.mapped_size == buffer.size == 9 * GRANULE
    assert free_memory() == free - GRANULE
    buffer.close()


def test_growth_can_be_said_for_one_grow(device):
    resource = VirtualMemoryResource(device, {"reserve_size": 16 * GRANULE})
    buffer = resource.modify_allocation(
        resource.allocate(8 * GRANULE),
        9 * GRANULE,
        config={"growth": "geometric", "reserve_size": 16 * GRANULE},
    )
    assert buffer.mapped_size == 12 * GRANULE
    buffer = resource.modify_allocation(buffer, 13 * GRANULE)
    assert buffer.mapped_size == 13 * GRANULE
    buffer.close()


def test_nothing_is_mapped_ahead_beyond_the_reservation(device):
    """Growing up to the capacity keeps the address; a wish to map ahead does not change that."""
    resource = VirtualMemoryResource(device, {"growth": "geometric", "reserve_size": 10 * GRANULE})
    buffer = resource.allocate(8 * GRANULE)
    address = buffer.handle
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 9 * GRANULE)
        assert (buffer.handle, buffer.mapped_size, buffer.capacity) == (address, 10 * GRANULE, 10 * GRANULE)
        buffer = resource.modify_allocation(buffer, 10 * GRANULE)
        assert buffer.handle == address
    buffer.close()


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("reserve", [False, True], ids=["moving", "in room"])
def test_a_device_without_memory_for_more_maps_what_was_asked_for(device, reserve):
    total = int(check(driver.cuMemGetInfo())[1])
    resource = VirtualMemoryResource(device, {"growth": "geometric", "reserve_size": total if reserve else 0})
    free = free_memory()
    size = free * 3 // 4 // GRANULE * GRANULE
    buffer = resource.allocate(size)
    grown = resource.modify_allocation(buffer, size + GRANULE)
    assert grown.mapped_size == grown.size == size + GRANULE
    grown.close()
    assert free_memory() == free


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_failure_that_more_memory_would_not_mend_is_told_at_once(device, driver_watch):
    resource = VirtualMemoryResource(device, {"growth": "geometric", "reserve_size": 32 * GRANULE})
    buffer = resource.allocate(8 * GRANULE)
    with driver_watch.fail("cuMemCreate", result="CUDA_ERROR_NOT_PERMITTED") as failure:
        with pytest.raises(CUDAError, match="CUDA_ERROR_NOT_PERMITTED"):
            resource.modify_allocation(buffer, 9 * GRANULE)
    assert failure.fired == 1
    assert (buffer.ownership, buffer.mapped_size) == (Ownership.OWNED, 8 * GRANULE)
    buffer.close()


# --- keeping the old addresses -----------------------------------------------------------------------------------


def moved_and_kept(resource, stream=None):
    old = resource.allocate(GRANULE, stream=stream)
    fill_granules(old)
    address = old.handle
    with blocked(old):
        new = resource.modify_allocation(old, 2 * GRANULE, keep_old=True)
    assert new.handle != address
    assert (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
    assert (old.handle, old.size) == (0, 0)
    assert new.loans == 1
    return old, new, address


@pytest.mark.parametrize("how", ["close", "leave with", "drop"])
def test_kept_addresses_show_the_same_memory_until_the_old_buffer_ends(resource, how):
    old, new, address = moved_and_kept(resource)
    write(address + 64, b"through the old address")
    assert read(new.handle + 64, 23) == b"through the old address"
    if how == "close":
        assert old.close() is CloseResult.DONE
        assert old.close() is CloseResult.NOTHING
    elif how == "leave with":
        old.__exit__(None, None, None)
    del old
    gc.collect()
    assert new.loans == 0
    assert given_back(address)
    assert address_free(address, GRANULE)
    assert new.close() is CloseResult.DONE


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_new_buffer_that_ends_first_leaves_the_memory_to_the_kept_addresses(resource, how):
    free = free_memory()
    old, new, address = moved_and_kept(resource)
    place_ = new.handle
    if how == "close":
        assert new.close() is CloseResult.LENT
    del new
    gc.collect()
    write(address, b"still there")
    assert read(place_, 11) == b"still there"
    old.close()
    assert given_back(address)
    assert given_back(place_)
    del old
    gc.collect()
    assert free_memory() == free


def test_a_grow_in_place_has_nothing_to_keep(device):
    buffer, resource = place(device, GRANULE, stretch=4)
    grown = resource.modify_allocation(buffer, 2 * GRANULE, keep_old=True)
    assert grown.loans == 0
    assert buffer.close() is CloseResult.NOTHING
    assert grown.close() is CloseResult.DONE


def test_addresses_kept_through_several_moves(resource):
    """They all show the same memory, and go together when the last old buffer is closed."""
    buffers, addresses = [resource.allocate(GRANULE)], []
    fill_granules(buffers[0])
    for granules in (2, 3, 4):
        addresses.append(buffers[-1].handle)
        with blocked(buffers[-1]):
            buffers.append(resource.modify_allocation(buffers[-1], granules * GRANULE, keep_old=True))
    new = buffers.pop()
    assert new.loans == 3
    write(addresses[0], b"the same")
    assert {bytes(read(address, 8)) for address in (*addresses, new.handle)} == {b"the same"}
    assert buffers[1].close() is CloseResult.LENT
    assert buffers[2].close() is CloseResult.LENT
    assert all(map(still_allocated, addresses))
    assert buffers[0].close() is CloseResult.DONE
    assert not any(map(still_allocated, addresses))
    assert new.close() is CloseResult.DONE


def test_a_kept_buffer_is_not_detached_or_shrunk(resource):
    old, new, _ = moved_and_kept(resource)
    with pytest.raises(BufferError):
        new.detach()
    with pytest.raises(BufferError):
        resource.shrink(new, GRANULE)
    old.close()
    Buffer.adopt(new.detach()).close()


def test_closing_the_old_buffer_waits_and_refuses_a_capture(resource, stream):
    old, new, address = moved_and_kept(resource, stream)
    with capturing(stream):
        with pytest.raises(CUDAError, match="captured"):
            old.close()
        assert still_allocated(address)
        assert new.loans == 1
    assert old.close() is CloseResult.DONE
    assert not still_allocated(address)
    new.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("wait", [True, False])
def test_closing_the_old_buffer_is_ordered_behind_the_stream(resource, stream, driver_watch, wait):
    old, new, address = moved_and_kept(resource, stream)
    with driver_watch.sim.hold():
        check(driver.cuMemsetD32Async(address, 0xABCD, GRANULE // 4, int(stream.handle)))
        assert old.close(wait=wait) is (CloseResult.DONE if wait else CloseResult.QUEUED)
        assert still_allocated(address) != wait
    stream.sync()
    assert given_back(address)
    assert read(new.handle, 4) == (0xABCD).to_bytes(4, "little")
    assert new.close() is CloseResult.DONE


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("name", ["cuMemUnmap", "cuMemAddressFree"])
def test_kept_addresses_that_the_driver_refuses_go_with_the_new_buffer(resource, driver_watch, name):
    from support import warnings_seen

    old, new, address = moved_and_kept(resource)
    with driver_watch.fail(name, sticky=True), warnings_seen() as seen:
        old.close()
    assert len(seen) == 1
    assert name in str(seen[0].message)
    assert not address_free(address, GRANULE)
    assert new.close() is CloseResult.DONE
    assert address_free(address, GRANULE)


# --- releases that do not wait -----------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["close", "with", "close(wait=False)"])
def test_a_resource_whose_closes_do_not_wait(device, stream, driver_watch, how):
    resource = VirtualMemoryResource(device, {"wait_on_close": how == "close(wait=False)"})
    buffer = resource.allocate(GRANULE, stream=stream)
    address = buffer.handle
    with driver_watch.sim.hold():
        check(driver.cuMemsetD32Async(address, 1, GRANULE // 4, int(stream.handle)))
        if how == "with":
            with buffer:
                pass
        else:
            closed = buffer.close() if how == "close" else buffer.close(wait=False)
            assert closed is CloseResult.QUEUED
        assert buffer.ownership is Ownership.RELEASED
        assert still_allocated(address)
    stream.sync()
    assert given_back(address)


@pytest.mark.sim_only
def test_close_overrides_what_the_resource_says(device, stream, driver_watch):
    resource = VirtualMemoryResource(device, {"wait_on_close": False})
    buffer = resource.allocate(GRANULE, stream=stream)
    address = buffer.handle
    with driver_watch.sim.hold():
        check(driver.cuMemsetD32Async(address, 1, GRANULE // 4, int(stream.handle)))
        assert buffer.close(wait=True) is CloseResult.DONE
        assert not still_allocated(address)


@pytest.mark.sim_only
def test_the_addresses_of_a_moving_grow_go_to_the_queue(device, stream, driver_watch):
    resource = VirtualMemoryResource(device, {"wait_on_close": False})
    buffer = resource.allocate(GRANULE, stream=stream)
    address = buffer.handle
    with blocked(buffer), driver_watch.sim.hold():
        check(driver.cuMemsetD32Async(address, 0xABCD, GRANULE // 4, int(stream.handle)))
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
        assert still_allocated(address), "nothing has waited"
    stream.sync()
    assert given_back(address)
    assert read(grown.handle, 4) == (0xABCD).to_bytes(4, "little")
    assert grown.close() is CloseResult.DONE


def test_an_idle_stream_needs_no_queue(device, stream):
    resource = VirtualMemoryResource(device, {"wait_on_close": False})
    assert resource.wait_on_close is False
    assert resource.allocate(GRANULE, stream=stream).close() is CloseResult.DONE
