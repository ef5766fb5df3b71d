# SPDX-License-Identifier: Apache-2.0
"""Giving memory at the end of a buffer back: whole chunks, or a chunk split when that is asked for."""

import gc

import pytest

from captures import capturing
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    Device,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
)
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    calls_in_order,
    fill_granules,
    free_memory,
    granules_hold,
    race,
    rights_of_granules,
    still_allocated,
    warnings_seen,
)

ROOM = 8 * GRANULE


def of_chunks(device, *sizes, **options):
    """Return a filled buffer whose chunks have these sizes in granules, and its resource."""
    resource = VirtualMemoryResource(device, {"reserve_size": ROOM, **options})
    buffer = resource.allocate(sizes[0] * GRANULE)
    for size in sizes[1:]:
        buffer = resource.modify_allocation(buffer, buffer.size + size * GRANULE)
    fill_granules(buffer)
    return buffer, resource


def sizes_of(buffer):
    return buffer.size // GRANULE, buffer.mapped_size // GRANULE, buffer.capacity // GRANULE


@pytest.mark.parametrize("kept", [1, 3])
def test_vmm_11_shrink_gives_back_whole_tail_chunks(device, quiet, kept):
    large, resource = of_chunks(device, 1, 2, 2)
    address, free = large.handle, free_memory()
    small = resource.shrink(large, kept * GRANULE)
    assert small is not large
    assert (large.ownership, large.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
    assert (small.ownership, small.handle) == (Ownership.OWNED, address)
    assert sizes_of(small) == (kept, kept, 8)
    assert free_memory() == free + (5 - kept) * GRANULE
    assert granules_hold(small, kept)
    assert not still_allocated(address + kept * GRANULE), "the memory behind it is gone"
    assert not address_free(address + kept * GRANULE, GRANULE), "its addresses are still the buffer's"
    grown = resource.modify_allocation(small, 6 * GRANULE)
    assert grown.handle == address
    assert rights_of_granules(grown) == [3] * 6
    fill_granules(grown, first=kept)
    assert granules_hold(grown, 6)
    assert grown.close() is CloseResult.DONE
    assert address_free(address, ROOM)


@pytest.mark.provokes_refusals
def test_vmm_11_what_was_given_back_cannot_be_read(device):
    large, resource = of_chunks(device, 1, 1)
    small = resource.shrink(large, GRANULE)
    error, *_ = driver.cuMemcpyDtoH(bytearray(16), small.handle + GRANULE, 16)
    assert error != driver.CUresult.CUDA_SUCCESS
    assert granules_hold(small, 1)
    small.close()


def test_a_chunk_of_which_a_part_is_kept_stays_mapped(device, driver_watch):
    large, resource = of_chunks(device, 1, 4)
    address, free = large.handle, free_memory()
    with driver_watch.no_call():
        small = resource.shrink(large, 2 * GRANULE)
    assert sizes_of(small) == (2, 5, 8)
    assert free_memory() == free
    with driver_watch.no_call():
        assert resource.trim(small) == 0
        again = resource.modify_allocation(small, 4 * GRANULE)
    assert again.handle == address
    assert sizes_of(again) == (4, 5, 8)
    assert granules_hold(again, 4), "nothing has touched the bytes"
    again.close()


@pytest.mark.parametrize("chunks", [(5,), (1, 4), (1, 1, 3), (2, 2, 1)])
@pytest.mark.parametrize("rights", ["rw", "r", None])
def test_a_split_keeps_the_bytes_the_address_and_the_rights(device, chunks, rights):
    resource = VirtualMemoryResource(device, {"reserve_size": ROOM})
    buffer = resource.allocate(chunks[0] * GRANULE)
    for size in chunks[1:]:
        buffer = resource.modify_allocation(buffer, buffer.size + size * GRANULE)
    fill_granules(buffer)
    resource.set_access(buffer, device, rights)
    address, free = buffer.handle, free_memory()
    small = resource.shrink(buffer, 3 * GRANULE, split=True)
    assert small.handle == address
    assert sizes_of(small) == (3, 3, 8)
    assert free_memory() == free + 2 * GRANULE
    assert rights_of_granules(small) == [{"rw": 3, "r": 1, None: 0}[rights]] * 3
    resource.set_access(small, device, "rw")
    assert granules_hold(small, 3)
    with blocked(small):
        moved = resource.modify_allocation(small, 9 * GRANULE)
    assert granules_hold(moved, 3)
    moved.close()
    assert address_free(address, ROOM)


def test_a_split_of_memory_at_the_host(device):
    resource = VirtualMemoryResource(
        device, {"location_type": "host", "handle_type": None, "peers": (0,), "reserve_size": ROOM}
    )
    buffer = resource.allocate(4 * GRANULE)
    memoryview(buffer)[: 2 * GRANULE] = bytes(range(256)) * (2 * GRANULE // 256)
    small = resource.shrink(buffer, 2 * GRANULE, split=True)
    assert sizes_of(small) == (2, 2, 8)
    assert bytes(small) == bytes(range(256)) * (2 * GRANULE // 256)
    small.close()


def test_shrinking_to_nothing_keeps_the_addresses(device):
    free = free_memory()
    large, resource = of_chunks(device, 2, 1)
    address = large.handle
    empty = resource.shrink(large, 0)
    assert sizes_of(empty) == (0, 0, 8)
    assert free_memory() == free
    assert not address_free(address, GRANULE)
    grown = resource.modify_allocation(empty, GRANULE)
    assert grown.handle == address
    fill_granules(grown)
    assert resource.shrink(grown, 0).close() is CloseResult.DONE
    assert address_free(address, ROOM)


@pytest.mark.parametrize("size", [3 * GRANULE, 3 * GRANULE - 1])
def test_a_size_that_the_buffer_has_already_returns_it(device, driver_watch, size):
    buffer, resource = of_chunks(device, 3)
    with driver_watch.no_call():
        assert resource.shrink(buffer, size) is buffer
        assert resource.trim(buffer) == 0
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


def test_shrinking_a_buffer_of_several_reservations_keeps_them(device):
    from support import place

    buffer, resource = place(device, GRANULE, stretch=6)
    for granules in (2, 4):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    fill_granules(buffer)
    address = buffer.handle
    small = resource.shrink(buffer, GRANULE)
    assert sizes_of(small) == (1, 1, 4)
    assert not address_free(address + 3 * GRANULE, GRANULE)
    grown = resource.modify_allocation(small, 4 * GRANULE)
    assert grown.handle == address
    assert granules_hold(grown, 1)
    grown.close()
    assert address_free(address, 4 * GRANULE)


def test_trim_gives_back_what_growth_has_mapped_ahead(device):
    resource = VirtualMemoryResource(device, {"growth": "geometric", "reserve_size": 32 * GRANULE})
    buffer = resource.allocate(8 * GRANULE)
    buffer = resource.modify_allocation(buffer, 9 * GRANULE)
    fill_granules(buffer)
    assert sizes_of(buffer) == (9, 12, 32)
    free = free_memory()
    assert resource.trim(buffer) == 0, "a part of the chunk is used"
    assert resource.trim(buffer, split=True) == 3 * GRANULE
    assert sizes_of(buffer) == (9, 9, 32)
    assert free_memory() == free + 3 * GRANULE
    assert buffer.ownership is Ownership.OWNED
    assert granules_hold(buffer, 9)
    buffer.close()


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, ValueError),
        (GRANULE + 1, ValueError),
        (2 * GRANULE, ValueError),
        (2**63 - 1, (ValueError, OverflowError)),
        (2**64, OverflowError),
        (1.0, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_val_05_sizes_that_shrink_refuses(resource, driver_watch, size, error):
    buffer = resource.allocate(GRANULE)
    with driver_watch.no_call():
        with pytest.raises(error, match="new_size"):
            resource.shrink(buffer, size)
    assert (buffer.ownership, buffer.size) == (Ownership.OWNED, GRANULE)
    buffer.close()


@pytest.mark.parametrize("call", ["shrink", "trim"])
def test_buffers_that_shrink_and_trim_refuse(device, resource, driver_watch, call):
    other = VirtualMemoryResource(device)
    closed, transferred = resource.allocate(GRANULE), resource.allocate(GRANULE)
    closed.close()
    grown = resource.modify_allocation(transferred, 2 * GRANULE)
    borrowed = Buffer.from_handle(grown.handle, GRANULE)
    foreign = other.allocate(GRANULE)
    act = (lambda b: resource.shrink(b, 0)) if call == "shrink" else resource.trim
    with driver_watch.no_call():
        for thing, error in (
            (None, TypeError),
            (4096, TypeError),
            (closed, OwnershipError),
            (transferred, OwnershipError),
            (borrowed, OwnershipError),
            (foreign, ValueError),
        ):
            with pytest.raises(error):
                act(thing)
    assert (grown.ownership, foreign.ownership) == (Ownership.OWNED, Ownership.OWNED)
    for buffer in (grown, foreign):
        buffer.close()


def test_shrinking_is_refused_while_somebody_looks(device, driver_watch):
    buffer, resource = of_chunks(device, 1, 1)
    part = buffer[:16]
    with driver_watch.no_call():
        with pytest.raises(BufferError, match="loans"):
            resource.shrink(buffer, GRANULE)
        with pytest.raises(BufferError, match="loans"):
            resource.trim(buffer, split=True)
        assert resource.trim(buffer) == 0
    assert (buffer.ownership, buffer.size) == (Ownership.OWNED, 2 * GRANULE)
    part.close()
    assert resource.shrink(buffer, GRANULE).close() is CloseResult.DONE


def test_shrinking_waits_for_no_capture_and_breaks_none(device, stream):
    buffer, resource = of_chunks(device, 1, 1)
    buffer.set_deallocation_stream(stream)
    with capturing(stream):
        with pytest.raises(CUDAError, match="captured"):
            resource.shrink(buffer, GRANULE)
        assert (buffer.ownership, buffer.size) == (Ownership.OWNED, 2 * GRANULE)
    assert granules_hold(buffer, 2)
    resource.shrink(buffer, GRANULE).close()


def test_a_split_of_memory_of_another_stream_goes_on_beside_a_capture(device, stream):
    buffer, resource = of_chunks(device, 3)
    buffer.set_deallocation_stream(device.create_stream())
    with capturing(stream):
        small = resource.shrink(buffer, GRANULE, split=True)
    assert granules_hold(small, 1)
    small.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("split", [False, True])
def test_shrinking_waits_for_the_recorded_stream(device, stream, driver_watch, split):
    """Work that ran after the unmap would make the stream fail."""
    buffer, resource = of_chunks(device, 1, 3)
    buffer.set_deallocation_stream(stream)
    with driver_watch.sim.hold():
        address, size = buffer.handle + 3 * GRANULE, GRANULE // 4
        assert (
            driver.cuMemsetD32Async(address, 7, size, int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
        )
        small = resource.shrink(buffer, (2 if split else 1) * GRANULE, split=split)
    stream.sync()
    assert granules_hold(small, small.size // GRANULE)
    small.close()


def test_of_two_that_shrink_and_grow_one_buffer_one_wins(device):
    for _ in range(20):
        buffer, resource = of_chunks(device, 1, 1)
        Device(0).set_current()
        outcomes = race(
            lambda b=buffer, r=resource: r.shrink(b, GRANULE),
            lambda b=buffer, r=resource: r.modify_allocation(b, 3 * GRANULE),
            lambda b=buffer, r=resource: r.shrink(b, 0),
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, Buffer)]
        assert len(won) == 1, outcomes
        assert {type(o) for o in outcomes} == {Buffer, OwnershipError}
        assert won[0].close() is CloseResult.DONE


# --- failures ----------------------------------------------------------------------------------------------------

SHRINKS = {
    "whole chunks": lambda resource, buffer: resource.shrink(buffer, GRANULE),
    "split": lambda resource, buffer: resource.shrink(buffer, 4 * GRANULE, split=True),
    "chunks and split": lambda resource, buffer: resource.shrink(buffer, 2 * GRANULE, split=True),
}
KEPT = {"whole chunks": 1, "split": 4, "chunks and split": 2}


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("way", SHRINKS)
def test_every_call_of_a_shrink_fails(device, driver_watch, way, sticky):
    def prepared():
        buffer, resource = of_chunks(device, 1, 2, 2)
        buffer.set_deallocation_stream(LEGACY_DEFAULT_STREAM)
        return buffer, resource

    shrink, kept = SHRINKS[way], KEPT[way]
    buffer, resource = prepared()
    small, calls = calls_in_order(driver_watch, lambda b=buffer, r=resource: shrink(r, b))
    small.close()
    assert "cuMemUnmap" in dict(calls)
    for name, n in calls:
        what = f"{name} {n} of {calls}"
        live, free = driver_watch.live(), free_memory()
        buffer, resource = prepared()
        address = buffer.handle
        driver_watch.sim.reset()
        with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            small, error = attempt(lambda b=buffer, r=resource: shrink(r, b), CUDAError)
        assert failure.fired, what
        assert len(driver_watch.refused()) == failure.fired, what
        if small is None:
            assert name in str(error), what
            assert seen == [], what
            assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 5 * GRANULE)
            _, broke = attempt(lambda b=buffer, r=resource: r.trim(b), OwnershipError)
            if broke is None:
                assert rights_of_granules(buffer) == [3] * 5, what
                assert granules_hold(buffer, 5), what
            else:
                assert sticky, f"{what}: one failure never breaks a buffer"
                assert name in ("cuMemMap", "cuMemSetAccess", "cuMemRetainAllocationHandle"), what
            survivor = buffer
        else:
            assert (small.ownership, small.handle, small.size) == (Ownership.OWNED, address, kept * GRANULE)
            assert small.mapped_size >= small.size
            assert {warning.category for warning in seen} <= {CUDAWarning}
            assert len(seen) <= 1
            assert granules_hold(small, kept), what
            resource.trim(small, split=True)  # what stayed goes now
            assert small.mapped_size == small.size, what
            assert granules_hold(small, kept), what
            survivor = small
        assert survivor.close() is CloseResult.DONE
        resource.allocate(GRANULE).close()
        assert address_free(address, ROOM), what
        del resource
        gc.collect()
        device.create_event().close()  # with the next stream or event those go that were refused
        assert driver_watch.live() == live, f"{what}: something is left"
        assert free_memory() == free, what
