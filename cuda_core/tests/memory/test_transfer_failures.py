# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside a transfer, an export, and the end of a loan fails in turn, once and for good.

What is called is found by running the operation once, so the tests follow the implementation. Giving an allocation
away needs no driver today; the tests hold if it ever does.
"""

import gc

import pytest

from buffer_kinds import BUILT_IN, FREES, SOURCES, WITH_RESOURCE
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from python_resources import Refusing
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    fill,
    fill_granules,
    given_back,
    granules_hold,
    holds,
    place,
    still_allocated,
    warnings_seen,
)

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
WITH_STREAM = pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
OWNED = (Ownership.OWNED, None)


def state(record):
    return (record.ownership, record.transferred_to)


def calls_in_order(sim, function):
    """Return what `function` returns, and its driver calls as (name, n-th of this name)."""
    with sim.logged() as log:
        result = function()
    counts, numbered = {}, []
    for entry in log.calls:
        counts[entry.name] = counts.get(entry.name, 0) + 1
        numbered.append((entry.name, counts[entry.name]))
    return result, numbered


def tells(error, name):
    return "CUDA_ERROR_OUT_OF_MEMORY" in str(error) and name in str(error)


# --- transfer ----------------------------------------------------------------------------------------------------


def detach(buffer, source):
    return buffer.detach()


def adopt(allocation, source):
    return Buffer.adopt(allocation)


def adopt_elsewhere(allocation, source):
    return Buffer.adopt(allocation, source.other)


def move(buffer, source):
    return buffer.move_to(source.other)


# name: (what is given: a buffer or its allocation, the operation)
TRANSFERS = {
    "detach": (lambda buffer: buffer, detach),
    "adopt": (lambda buffer: buffer.detach(), adopt),
    "adopt elsewhere": (lambda buffer: buffer.detach(), adopt_elsewhere),
    "move_to": (lambda buffer: buffer, move),
}


def prepared(source, with_stream, stream, name):
    buffer = source.allocate(stream=stream if with_stream else None)
    address = buffer.handle
    fill(address, source.size, seed=1)
    if not source.built_in:
        source.other.held.update(source.resource.held)
    return TRANSFERS[name][0](buffer), address


def finish(source, result, address):
    """End what an operation has returned, or its input; one free must come of it."""
    assert holds(address, source.size, seed=1)
    buffer = result if isinstance(result, Buffer) else Buffer.adopt(result)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)
    if not source.built_in:
        for resource in (source.resource, source.other):
            resource.held.clear()


@ONCE_AND_FOR_GOOD
@WITH_STREAM
@pytest.mark.parametrize("name", TRANSFERS)
@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_every_call_of_a_transfer_fails(device, driver_watch, stream, kind, name, with_stream, sticky):
    source = SOURCES[kind](device)
    source.other = source.make()
    operation = TRANSFERS[name][1]
    given, address = prepared(source, with_stream, stream, name)
    result, calls = calls_in_order(driver_watch.sim, lambda one=given: operation(one, source))
    assert given.ownership is Ownership.TRANSFERRED
    finish(source, result, address)
    # Whatever it calls, nothing is freed, and nothing waits.
    assert (
        not {
            "cuMemUnmap",
            "cuMemAddressFree",
            "cuMemFree",
            "cuMemFreeAsync",
            "cuMemFreeHost",
            "cuStreamSynchronize",
            "cuEventSynchronize",
        }
        & dict(calls).keys()
    )
    for call, n in calls:
        live = driver_watch.live()
        given, address = prepared(source, with_stream, stream, name)
        with warnings_seen() as seen, driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            result, error = attempt(lambda one=given: operation(one, source), CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        assert seen == []
        if result is None:
            assert tells(error, call), f"{call} {n}: {error}"
            assert state(given) == OWNED
            result = given
        finish(source, result, address)
        del given, result
        assert driver_watch.live() == live, f"{call} {n}: something is left"


@pytest.mark.parametrize("how", ["detach", "move_to"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_buffer_whose_close_failed_can_be_given_away(device, driver_watch, kind, how):
    """Nothing was returned: the buffer is whole, and a fresh owner has no failed close behind it."""
    source = SOURCES[kind](device)
    free = FREES[kind]
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=2)
    with driver_watch.fail(free):
        with pytest.raises(CUDAError):
            buffer.close()
    taken = Buffer.adopt(buffer.detach()) if how == "detach" else buffer.move_to(source.make())
    assert holds(address, source.size, seed=2)
    with warnings_seen() as seen:
        del taken
    assert seen == []
    assert given_back(address)


@pytest.mark.parametrize("kind", ["function", "python"])
def test_the_same_for_memory_that_somebody_else_frees(kind):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(4096)
    address = buffer.handle
    if kind == "function":
        buffer.detach().handed_over()
        buffer = Buffer.from_handle(
            address, 4096, deallocate=lambda ptr, size, stream: resource.deallocate(ptr, size)
        )
    with pytest.raises(LookupError):
        buffer.close()
    adopted = Buffer.adopt(buffer.detach())
    with warnings_seen() as seen:
        del adopted
    assert seen == []
    assert len(resource.asked) == 2
    assert given_back(address)


@pytest.mark.parametrize("how", ["detach", "move_to"])
def test_a_buffer_that_is_half_returned_is_not_given_away(device, driver_watch, how):
    buffer, resource = place(device, GRANULE, stretch=6)
    other = VirtualMemoryResource(device)
    for granules in (2, 3):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    address = buffer.handle
    with driver_watch.fail("cuMemUnmap", nth=2):
        with pytest.raises(CUDAError):
            buffer.close()
    with driver_watch.no_call():
        with pytest.raises(OwnershipError):
            if how == "detach":
                buffer.detach()
            else:
                buffer.move_to(other)
    assert state(buffer) == OWNED
    assert buffer.close() is CloseResult.DONE
    assert address_free(address, 3 * GRANULE)


def test_what_a_grow_could_not_return_travels_with_a_transfer(device, driver_watch):
    """The addresses that a grow left behind stay in the record, and the last owner returns them."""
    live = driver_watch.live()
    buffer, resource = place(device, GRANULE, stretch=4)
    old = buffer.handle
    fill_granules(buffer)
    with blocked(buffer):
        with driver_watch.fail("cuMemUnmap"), pytest.warns(CUDAWarning, match="cuMemUnmap"):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE)
        moved = Buffer.adopt(buffer.detach()).move_to(VirtualMemoryResource(device))
        assert granules_hold(moved, 1)
        assert not address_free(old, GRANULE)
        assert moved.close() is CloseResult.DONE
        assert address_free(old, GRANULE)
    assert driver_watch.live() == live


# --- exports -----------------------------------------------------------------------------------------------------

EXPORTS = {
    "memoryview": (memoryview, lambda export: export.release()),
    "sub-buffer": (lambda buffer: buffer[8:24], lambda export: export.close()),
    "array view": (lambda buffer: buffer.array_view(), lambda export: export.close()),
}


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("origin", ["owned", "borrowed"])
@pytest.mark.parametrize("name", EXPORTS)
def test_every_call_of_an_export_fails(device, driver_watch, name, origin, sticky):
    """An export that raises is no loan. Of borrowed memory the driver is asked where it lives."""
    source = SOURCES["pinned"](device)
    begin, end = EXPORTS[name]
    owned = source.allocate()
    buffer = owned if origin == "owned" else Buffer.from_handle(owned.handle, owned.size, owner=owned)
    export, calls = calls_in_order(driver_watch.sim, lambda: begin(buffer))
    end(export)
    for call, n in calls:
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            export, error = attempt(lambda: begin(buffer), (CUDAError, BufferError))
        assert failure.fired
        if export is None:
            cause = error.__cause__ if isinstance(error, BufferError) and error.__cause__ else error
            assert tells(cause, call), repr(error)
            del cause, error
            gc.collect()
            assert buffer.loans == 0
        else:
            assert buffer.loans == 1
            end(export)
    assert buffer.loans == 0
    if buffer is not owned:
        assert buffer.close() is CloseResult.DONE
    assert owned.close() is CloseResult.DONE


# --- the last loan -----------------------------------------------------------------------------------------------

UNDOING = {"cuMemUnmap", "cuMemAddressFree", "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost"}


def lent_and_closed(source, stream):
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    loan = buffer[8:24]
    assert buffer.close() is CloseResult.LENT
    return loan, address


@ONCE_AND_FOR_GOOD
@WITH_STREAM
@pytest.mark.parametrize("loan_ends", ["close", "drop"])
def test_every_call_of_the_last_loan_fails(device, driver_watch, stream, loan_ends, with_stream, sticky):
    """Nobody can be told by an exception: it is reported once, and a later close gets it returned.

    Plain memory goes back by another thread then, see test_plain_resources.py.
    """
    source = SOURCES["virtual"](device)
    order = stream if with_stream else None
    loan, address = lent_and_closed(source, order)
    result, calls = calls_in_order(driver_watch.sim, loan.close)
    assert result is CloseResult.DONE
    assert given_back(address)
    assert UNDOING & dict(calls).keys()
    live = driver_watch.live()
    for call, n in calls:
        what = f"{call} {n} of {calls}"
        box = list(lent_and_closed(source, order))
        address = box.pop()
        driver_watch.sim.reset()
        with warnings_seen() as seen, driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            if loan_ends == "close":
                assert box.pop().close() is CloseResult.DONE, "the borrow itself has ended"
            box.clear()
            gc.collect()
        assert failure.fired, what
        assert all(warning.category is CUDAWarning for warning in seen), what
        if call in UNDOING:
            assert len(seen) == 1, what
            for word in (f"{address:x}", str(source.size), call, "CUDA_ERROR_OUT_OF_MEMORY"):
                assert word in str(seen[0].message), f"{what}: {seen[0].message}"
        else:
            assert len(seen) <= 1, what
        if seen:
            assert _counters.live().get("stuck") == 1, what
            assert source.allocate(stream=order).close() is CloseResult.DONE
        assert drain(20)
        assert given_back(address), what
        assert driver_watch.live() == live, f"{what}: something is left"


@pytest.mark.parametrize("kind", ["python", "function"])
def test_an_author_that_raises_at_the_last_loan_is_reported_once(device, kind):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(4096)
    if kind == "function":
        allocation = buffer.detach()
        address = allocation.handle
        allocation.handed_over()
        buffer = Buffer.from_handle(
            address, 4096, deallocate=lambda ptr, size, stream: resource.deallocate(ptr, size)
        )
    address, loan = buffer.handle, buffer[:8]
    assert buffer.close() is CloseResult.LENT
    with warnings_seen() as seen:
        assert loan.close() is CloseResult.DONE
        del loan, buffer
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert "not now" in str(seen[0].message)
    assert f"{address:x}" in str(seen[0].message).lower()
    assert still_allocated(address)
    assert resource.asked == ["refused"]
    resource.give_back(address)


# --- grow with loans ---------------------------------------------------------------------------------------------


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("loan_ends", ["before", "after"])
def test_left_addresses_that_cannot_be_returned_are_returned_by_the_close(
    device, driver_watch, loan_ends, sticky
):
    """The loan on the old addresses ends while they cannot be returned; or the buffer was closed before."""
    live = driver_watch.live()
    buffer, resource = place(device, GRANULE, stretch=4)
    old, loan = buffer.handle, buffer[:64]
    fill_granules(buffer)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
        if loan_ends == "before":
            with warnings_seen() as seen, driver_watch.fail("cuMemUnmap", sticky=sticky) as failure:
                loan.close()
            assert failure.fired == 1
            assert [warning.category for warning in seen] == [CUDAWarning]
            assert "cuMemUnmap" in str(seen[0].message)
            assert state(buffer) == OWNED
            assert granules_hold(buffer, 1)
            assert buffer.close() is CloseResult.DONE
        else:
            assert buffer.close() is CloseResult.LENT
            assert state(buffer) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
            loan.close()
        assert address_free(old, GRANULE)
    assert driver_watch.live() == live


@ONCE_AND_FOR_GOOD
def test_every_call_of_a_grow_with_loans_fails(device, driver_watch, sticky):
    def fresh():
        buffer, resource = place(device, GRANULE, stretch=4)
        fill_granules(buffer)
        return buffer, resource, buffer[:64]

    buffer, resource, loan = fresh()
    with blocked(buffer):
        grown, calls = calls_in_order(
            driver_watch.sim, lambda b=buffer, r=resource: r.modify_allocation(b, 2 * GRANULE)
        )
    loan.close()
    grown.close()
    assert "cuMemUnmap" not in dict(calls), "the old addresses are lent"
    for call, n in calls:
        what = f"{call} {n} of {calls}"
        live = driver_watch.live()
        buffer, resource, loan = fresh()
        old = buffer.handle
        with blocked(buffer):
            with warnings_seen(), driver_watch.fail(call, nth=n, sticky=sticky) as failure:
                grown, error = attempt(
                    lambda b=buffer, r=resource: r.modify_allocation(b, 2 * GRANULE), CUDAError
                )
            assert failure.fired, what
            if grown is None:
                assert tells(error, call), f"{what}: {error}"
                assert (state(buffer), buffer.handle, buffer.loans) == (OWNED, old, 1), what
                grown = buffer
            assert grown.loans == 1, what
            assert granules_hold(grown, 1), what
            assert holds(old, GRANULE, seed=0), what
            assert grown.close() is CloseResult.LENT, what
            assert holds(old, GRANULE, seed=0), what
            loan.close()
            assert address_free(old, GRANULE), what
        resource.allocate(GRANULE).close()
        del grown, buffer, loan, error
        assert driver_watch.live() == live, f"{what}: something is left"
