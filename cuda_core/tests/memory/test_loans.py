# SPDX-License-Identifier: Apache-2.0
"""Memory that somebody looks at is not freed: close, grow, detach and collection with loans, in every order."""

import contextlib
import ctypes
import gc
import itertools
import weakref

import pytest

from buffer_kinds import SOURCES, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    StreamOptions,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory import _queue
from python_resources import Plain
from support import (
    GRANULE,
    address_free,
    blocked,
    check,
    child_output,
    fill,
    fill_granules,
    free_memory,
    given_back,
    holds,
    place,
    read,
    still_allocated,
    warnings_seen,
    write,
)

pytestmark = pytest.mark.usefixtures("device")

LENT = (Ownership.TRANSFERRED, TransferredTo.LOANS)


def state(buffer):
    return (buffer.ownership, buffer.transferred_to)


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


# How a loan begins, and how it is ended when it is not just dropped.
EXPORTS = {
    "memoryview": (memoryview, lambda loan: loan.release()),
    "sub-buffer": (lambda buffer: buffer[8:24], lambda loan: loan.close()),
    "array view": (lambda buffer: buffer.array_view(), lambda loan: loan.close()),
}


def exports_of(source):
    return [name for name in EXPORTS if source.at_host or name != "memoryview"]


# --- every order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loan_ends", ["end", "drop"])
@pytest.mark.parametrize("buffer_ends", ["close", "with", "drop", "cycle"])
def test_the_last_one_to_end_answers_for_the_free(source, buffer_ends, loan_ends):
    """Every kind of loan, one to three of them, in every order with the end of the buffer itself."""
    names = exports_of(source)
    freed = 0
    for loans in (1, 2, 3):
        chosen = [names[index % len(names)] for index in range(loans)]
        for order in itertools.permutations(range(loans + 1)):
            buffer = source.allocate()
            address = buffer.handle
            fill(address, source.size, seed=loans)
            things = {index: EXPORTS[name][0](buffer) for index, name in enumerate(chosen)}
            assert buffer.loans == loans
            things[loans] = buffer
            del buffer
            for position, index in enumerate(order):
                assert holds(address, source.size, seed=loans), order
                open_loans = sum(other != loans for other in order[position:])
                if index == loans:
                    end_buffer(things, index, buffer_ends, open_loans)
                else:
                    end_loan(things, index, EXPORTS[chosen[index]][1], loan_ends)
                assert still_allocated(address) if position < loans else given_back(address), order
                assert source.frees() in (None, freed + (position == loans))
            freed += 1


def end_buffer(things, index, how, open_loans):
    if how == "close":
        result = things[index].close()
        assert result is (CloseResult.LENT if open_loans else CloseResult.DONE)
        assert state(things[index]) == (LENT if open_loans else (Ownership.RELEASED, None))
        assert things[index].loans == open_loans
        assert (things[index].handle, things[index].is_closed) == (0, True)
        # Closed to its user: it can only be closed again.
        assert things[index].close() is CloseResult.NOTHING
        with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
            things[index][:4]
    elif how == "with":
        with things[index]:
            pass
        assert things[index].is_closed
    elif how == "cycle":
        cycle = [things[index]]
        cycle.append(cycle)
        del cycle
    del things[index]
    if how == "cycle":
        gc.collect()


def end_loan(things, index, end, how):
    if how == "end":
        end(things[index])
    del things[index]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_that_has_ended_holds_nothing(source, name):
    """The buffer was dropped, the export was ended and is still there."""
    if name not in exports_of(source):
        name = "sub-buffer"
    begin, end = EXPORTS[name]
    buffer = source.allocate()
    address, export = buffer.handle, begin(buffer)
    del buffer
    assert still_allocated(address)
    end(export)
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_the_error_tells_that_the_memory_is_lent(source):
    buffer = source.allocate()
    loan = buffer[:8]
    assert buffer.close() is CloseResult.LENT
    for use in (buffer.detach, lambda: buffer[:4], buffer.array_view, lambda: buffer.device_id):
        with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*TRANSFERRED.*LOANS"):
            use()
    assert "LOANS" in repr(buffer)
    loan.close()
    assert state(buffer) == LENT, "a state that is reached is kept"
    assert buffer.loans == 0


@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_the_loans_keep_the_resource(device, kind):
    source = SOURCES[kind](device)
    gone = weakref.ref(source.resource)
    buffer = source.allocate()
    address, loan = buffer.handle, buffer[:8]
    buffer.close()
    source.resource = None
    del buffer
    gc.collect()
    assert still_allocated(address)
    loan.close()
    del loan
    gc.collect()
    assert given_back(address)
    assert gone() is None


def test_everything_in_one_cycle(source):
    buffer = source.allocate()
    address = buffer.handle
    part, view = buffer[:64], buffer.array_view()
    cycle = [buffer, part, view, part[:8]]
    cycle.append(cycle)
    with warnings_seen() as seen:
        del buffer, part, view, cycle
        gc.collect()
    assert seen == []
    assert given_back(address)
    assert source.frees() in (None, 1)


@pytest.mark.parametrize("buffer_ends", ["close", "drop"])
def test_an_owner_lives_until_the_last_loan(buffer_ends):
    """The memory is somebody else's, and so is the free: what ends with the last loan is the owner reference."""

    class Owner(bytearray):
        pass

    owner = Owner(64)
    gone = weakref.ref(owner)
    exported = (ctypes.c_char * 64).from_buffer(owner)
    buffer = Buffer.from_handle(ctypes.addressof(exported), 64, owner=owner)
    del exported
    view, part = memoryview(buffer), buffer[8:16]
    if buffer_ends == "close":
        assert buffer.close() is CloseResult.LENT
        assert state(buffer) == LENT
        assert buffer.owner is None
    del buffer, owner
    gc.collect()
    assert gone() is not None
    view[8:12] = b"read"
    assert bytes(gone()[8:12]) == b"read"
    view.release()
    gc.collect()
    assert gone() is not None
    part.close()
    del part
    gc.collect()
    assert gone() is None


# --- detach ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPORTS)
def test_detaching_waits_for_no_collection(name):
    buffer = LegacyPinnedMemoryResource().allocate(4096)
    begin, end = EXPORTS[name]
    loan = begin(buffer)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(BufferError):
                buffer.detach()
            assert state(buffer) == (Ownership.OWNED, None)
        end(loan)
        allocation = buffer.detach()
    finally:
        gc.enable()
    Buffer.adopt(allocation).close()


def test_loans_begin_anew_after_an_adoption(source):
    buffer = source.allocate()
    buffer[:8].close()
    adopted = Buffer.adopt(buffer.detach())
    assert (buffer.loans, adopted.loans) == (0, 0)
    loan = adopted[:8]
    assert adopted.loans == 1
    assert adopted.close() is CloseResult.LENT
    address = loan.handle
    assert still_allocated(address)
    loan.close()
    assert given_back(address)


# --- grow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sub-buffer", "array view"])
@pytest.mark.parametrize("loan_ends", ["end", "drop"])
def test_a_moving_grow_leaves_the_old_addresses_to_the_loans(resource, name, loan_ends):
    begin, end = EXPORTS[name]
    buffer = resource.allocate(2 * GRANULE)
    fill_granules(buffer)
    old = buffer.handle
    things = {0: begin(buffer)}
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 3 * GRANULE)
        assert grown.handle != old
        assert grown.loans == 1, "a loan that was taken through the old buffer counts on the new one"
        write(old + 100, b"through the loan")
        assert read(grown.handle + 100, 16) == b"through the loan"
        write(grown.handle + GRANULE, b"through the buffer")
        assert read(old + GRANULE, 18) == b"through the buffer"
        assert not address_free(old, GRANULE)
        end_loan(things, 0, end, loan_ends)
        assert grown.loans == 0
        assert address_free(old, 2 * GRANULE)
    assert grown.close() is CloseResult.DONE


def test_a_grow_in_place_keeps_loans(device):
    buffer, resource = place(device, GRANULE, stretch=4)
    part = buffer[16:32]
    grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert grown.handle == part.handle - 16
    assert grown.loans == 1
    assert grown.close() is CloseResult.LENT
    write(part.handle, b"still there")
    assert read(part.handle, 11) == b"still there"
    address = part.handle
    part.close()
    assert given_back(address)


def test_loans_through_several_grows(resource):
    """Three addresses, a loan on each; they go back when nobody looks at any of them."""
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    places, parts = [buffer.handle], [buffer[:64]]
    for granules in (2, 3):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
        assert buffer.loans == len(parts)
        places.append(buffer.handle)
        parts.append(buffer[:64])
    assert len(set(places)) == 3
    write(places[0], b"the same memory")
    assert [read(place, 15) for place in places] == [b"the same memory"] * 3
    for part in (parts[1], parts[2], parts[0]):
        assert all(map(still_allocated, places))
        part.close()
    assert buffer.loans == 0
    assert [still_allocated(place) for place in places] == [False, False, True]
    assert address_free(places[0], GRANULE)
    assert address_free(places[1], 2 * GRANULE)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("order", ["old first", "new first"])
@pytest.mark.parametrize("buffer_ends", ["close", "drop"])
def test_a_grown_buffer_closed_while_its_old_addresses_are_lent(resource, buffer_ends, order):
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    old, loans = buffer.handle, [buffer[:64]]
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
        new = grown.handle
        loans.append(grown[:64])
        if buffer_ends == "close":
            assert grown.close() is CloseResult.LENT
            assert state(grown) == LENT
        del grown
        gc.collect()
        if order == "new first":
            loans.reverse()
        loans.pop(0).close()
        assert read(old, 64) == read(new, 64)
        loans.pop(0).close()
        assert address_free(old, GRANULE)
        assert free_memory() == free
    assert address_free(new, 2 * GRANULE)
    assert state(buffer) == (Ownership.TRANSFERRED, TransferredTo.GROWN)


def test_closing_the_input_of_a_grow_does_not_end_its_loans(resource):
    buffer = resource.allocate(GRANULE)
    part = buffer[:64]
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
        assert buffer.close() is CloseResult.NOTHING
        del buffer
        gc.collect()
        assert grown.loans == 1
        write(part.handle, b"alive")
        assert read(grown.handle, 5) == b"alive"
        old = part.handle
        part.close()
        assert address_free(old, GRANULE)
    grown.close()


def test_a_grown_buffer_cannot_be_detached_while_the_old_one_is_lent(resource):
    buffer = resource.allocate(GRANULE)
    part = buffer[:64]
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
        with pytest.raises(BufferError):
            grown.detach()
        with pytest.raises(BufferError):
            grown.move_to(VirtualMemoryResource(0))
        part.close()
        assert Buffer.adopt(grown.detach()).close() is CloseResult.DONE


@pytest.mark.sim_only
def test_old_addresses_wait_for_the_recorded_stream_too(device, resource, driver_watch):
    """The loan ends while work of the recorded stream still writes through the old address."""
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    buffer = resource.allocate(GRANULE, stream=stream)
    part, old = buffer[:64], buffer.handle
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
        with driver_watch.sim.hold():
            check(driver.cuMemsetD32Async(old, 0xABCD, GRANULE // 4, int(stream.handle)))
            part.close()
        # Work that ran after the unmap would have made the stream fail.
        stream.sync()
        assert read(grown.handle, 4) == (0xABCD).to_bytes(4, "little")
        assert grown.close() is CloseResult.DONE
        assert address_free(old, GRANULE)
    stream.close()


# --- the order of the free ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loan_ends", ["end", "drop"])
def test_the_last_loan_frees_in_stream_order(source, device, driver_watch, loan_ends):
    hold = driver_watch.sim.hold if driver_watch.sim else contextlib.nullcontext
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    part = buffer[:64]
    assert buffer.close() is CloseResult.LENT
    with hold():
        check(driver.cuMemsetD32Async(address, 1, source.size // 4, int(stream.handle)))
        if loan_ends == "end":
            part.close()
        del part
        gc.collect()
        if not source.built_in:
            stream.sync()
    stream.sync()
    assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    assert _queue.drain(timeout=20)
    assert given_back(address)
    stream.close()


def test_the_stream_of_the_buffer_is_handed_to_an_author_by_the_last_loan(device):
    resource, stream = Plain(), device.create_stream()
    buffer = resource.allocate(512, stream=stream)
    part = buffer[:8]
    address = part.handle
    buffer.close()
    assert resource.asked == []
    part.close()
    ((ptr, size, handed),) = resource.asked
    assert (ptr, size, int(handed.handle)) == (address, 512, int(stream.handle))
    resource.asked.clear()
    stream.close()


# --- the end of the interpreter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_loans_alive_at_exit_end_silently(kind):
    code = """if True:
        import sys
        from buffer_kinds import SOURCES, WITH_RESOURCE
        from cuda.core import Device
        device = Device(0)
        device.set_current()
        source = SOURCES[sys.argv[1]](device)
        kept = [source.allocate() for _ in range(4)]
        loans = [kept[0][:8], kept[1].array_view(), kept[2][:8][:4]]
        if source.at_host:
            loans.append(memoryview(kept[3]))
        for buffer in kept[:2]:
            buffer.close()
        cycle = [loans.pop()]
        cycle.append(cycle)
        print("end")
    """
    assert child_output(code, kind, options=["-W", "error"]) == "end\n"
