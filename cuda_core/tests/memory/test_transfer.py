# SPDX-License-Identifier: Apache-2.0
"""Giving an allocation away and taking it up: ``detach``, ``Allocation``, ``adopt``, ``handed_over``, ``move_to``."""

import copy
import gc
import pickle
import warnings
import weakref

import attrs
import pytest

from buffer_kinds import SOURCES, WITH_RESOURCE, free_raw
from cuda.core import (
    Allocation,
    Buffer,
    CloseResult,
    CUDAWarning,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from python_resources import Plain
from support import (
    GRANULE,
    child_output,
    fill,
    given_back,
    holds,
    name_of,
    race,
    still_allocated,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


@pytest.fixture(params=WITH_RESOURCE.values(), ids=WITH_RESOURCE)
def resourceful(request, device):
    return request.param(device)


def state(buffer):
    return (buffer.ownership, buffer.transferred_to)


OWNED = (Ownership.OWNED, None)
DETACHED = (Ownership.TRANSFERRED, TransferredTo.DETACHED)
MOVED = (Ownership.TRANSFERRED, TransferredTo.MOVED)


# --- detach ------------------------------------------------------------------------------------------------------


def test_a_detached_allocation_has_the_whole_recipe(source, device):
    stream = device.create_stream()
    buffer = source.allocate(stream=stream)
    address, size, owner = buffer.handle, buffer.size, buffer.owner
    device_id = buffer.device_id if source.has_device else None
    allocation = buffer.detach()
    assert isinstance(allocation, Allocation)
    assert (allocation.handle, allocation.size) == (address, size)
    assert allocation.memory_resource is source.resource
    assert allocation.owner is owner
    if source.has_device:
        assert allocation.device_id == device_id
    assert [int(recorded.handle) for recorded in allocation.streams] == [int(stream.handle)]
    assert isinstance(allocation.streams, tuple)
    assert state(allocation) == OWNED
    Buffer.adopt(allocation).close()
    stream.close()


def test_detaching_ends_the_buffer_and_frees_nothing(source):
    buffer = source.allocate()
    address, before = buffer.handle, hash(buffer)
    fill(address, source.size, seed=1)
    allocation = buffer.detach()
    assert state(buffer) == DETACHED
    assert (buffer.handle, buffer.size, buffer.memory_resource, buffer.owner) == (0, 0, None, None)
    assert (buffer.is_closed, bool(buffer), hash(buffer)) == (True, True, before)
    assert buffer.close() is CloseResult.NOTHING
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*TRANSFERRED.*DETACHED"):
        buffer.detach()
    del buffer
    gc.collect()
    assert not source.frees()
    assert holds(address, source.size, seed=1)
    Buffer.adopt(allocation).close()


@pytest.mark.parametrize("how", ["close", "with", "drop", "cycle"])
def test_an_adopted_allocation_is_freed_once(source, how):
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=2)
    adopted = Buffer.adopt(buffer.detach())
    assert adopted is not buffer
    assert state(adopted) == OWNED
    assert (adopted.handle, adopted.size) == (address, source.size)
    assert adopted.memory_resource is source.resource
    assert holds(address, source.size, seed=2)
    if how == "close":
        assert adopted.close() is CloseResult.DONE
        assert adopted.close() is CloseResult.NOTHING
    elif how == "with":
        with adopted:
            pass
    elif how == "cycle":
        cycle = [adopted]
        cycle.append(cycle)
        del cycle
    del adopted, buffer
    gc.collect()
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_an_allocation_passes_through_many_hands(source):
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=3)
    for _ in range(50):
        buffer = Buffer.adopt(buffer.detach())
    assert holds(address, source.size, seed=3)
    assert not source.frees()
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.parametrize("when", ["adopted", "handed over"])
def test_an_allocation_is_taken_once(source, when):
    allocation = source.allocate().detach()
    address, size = allocation.handle, allocation.size
    if when == "adopted":
        taken = Buffer.adopt(allocation)
        assert state(allocation) == MOVED
    else:
        allocation.handed_over()
        assert state(allocation) == DETACHED
    for again in (lambda: Buffer.adopt(allocation), allocation.handed_over):
        with pytest.raises(OwnershipError):
            again()
    assert still_allocated(address)
    if when == "adopted":
        assert state(taken) == OWNED
        assert taken.close() is CloseResult.DONE
    else:
        free_raw(source.name, address, size)
    assert state(allocation) == (MOVED if when == "adopted" else DETACHED)


def test_what_was_handed_over_is_freed_by_foreign_code(source, quiet):
    allocation = source.allocate().detach()
    address, size = allocation.handle, allocation.size
    fill(address, size, seed=4)
    with warnings_seen() as seen:
        assert allocation.handed_over() is None
        del allocation
        gc.collect()
    assert seen == []
    assert not source.frees()
    assert holds(address, size, seed=4)
    free_raw(source.name, address, size)


@pytest.mark.parametrize("how", ["drop", "cycle"])
def test_an_allocation_that_nobody_takes_is_reported_and_not_freed(source, how):
    allocation = source.allocate().detach()
    address, size = allocation.handle, allocation.size
    fill(address, size, seed=5)
    with warnings_seen() as seen:
        if how == "cycle":
            cycle = [allocation]
            cycle.append(cycle)
            del cycle
        del allocation
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert f"{address:x}" in str(seen[0].message).lower()
    assert str(size) in str(seen[0].message)
    assert not source.frees()
    assert holds(address, size, seed=5)
    free_raw(source.name, address, size)


def test_equal_reports_are_shown_each():
    """Under the default filter a warning with the same text from the same place is shown once."""
    resource = Plain()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            resource.allocate(256).detach()
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning] * 3
    for address in list(resource.held):
        resource.give_back(address)


def test_an_allocation_keeps_its_resource(resourceful):
    allocation = resourceful.allocate().detach()
    address, gone = allocation.handle, weakref.ref(resourceful.resource)
    resourceful.resource = None
    gc.collect()
    assert allocation.memory_resource is gone()
    adopted = Buffer.adopt(allocation)
    del allocation
    gc.collect()
    assert adopted.memory_resource is gone()
    fill(address, resourceful.size, seed=6)
    assert holds(address, resourceful.size, seed=6)
    assert adopted.close() is CloseResult.DONE
    gc.collect()
    assert given_back(address)
    assert gone() is None, "a closed buffer keeps no resource alive"


def test_a_borrowed_buffer_cannot_be_detached(source):
    buffer = source.allocate()
    view = Buffer.from_handle(buffer.handle, buffer.size, owner=buffer)
    with pytest.raises(OwnershipError, match="BORROWED"):
        view.detach()
    assert state(view) == (Ownership.BORROWED, None)
    assert view.owner is buffer
    view.close()
    buffer.close()


def test_a_closed_buffer_cannot_be_detached(source):
    buffer = source.allocate()
    buffer.close()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*RELEASED"):
        buffer.detach()


def test_detaching_with_loans_is_refused_until_they_end(source):
    buffer = source.allocate()
    loan = buffer[16:32]
    with pytest.raises(BufferError):
        buffer.detach()
    assert state(buffer) == OWNED
    assert buffer.loans == 1
    loan.close()
    Buffer.adopt(buffer.detach()).close()


# --- the Allocation object ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        lambda a: Allocation(),
        lambda a: Allocation(a.handle, a.size),
        lambda a: type(a)(),
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda a: pickle.dumps(a, protocol=2),
    ],
    ids=[
        "construct",
        "construct with arguments",
        "construct by type",
        "copy",
        "deepcopy",
        "pickle",
        "pickle 2",
    ],
)
def test_there_is_one_allocation_object_for_one_allocation(source, operation):
    allocation = source.allocate().detach()
    with pytest.raises(TypeError):
        operation(allocation)
    assert state(allocation) == OWNED
    Buffer.adopt(allocation).close()


def test_an_allocation_object_made_from_nothing_is_nothing():
    try:
        made = Allocation.__new__(Allocation)
    except TypeError:
        return
    assert made.ownership is Ownership.RELEASED
    with pytest.raises(OwnershipError):
        Buffer.adopt(made)
    with pytest.raises(OwnershipError):
        made.handed_over()


def test_an_allocation_cannot_be_evolved():
    allocation = Plain().allocate(256).detach()
    for changes in ({}, {"size": 1}):
        with pytest.raises((TypeError, attrs.exceptions.NotAnAttrsClassError)):
            attrs.evolve(allocation, **changes)
    if hasattr(copy, "replace"):
        with pytest.raises(TypeError):
            copy.replace(allocation, size=1)
    assert state(allocation) == OWNED
    Buffer.adopt(allocation).close()


def test_an_allocation_is_compared_by_identity():
    resource = Plain()
    first, second = resource.allocate(256).detach(), resource.allocate(256).detach()
    assert first == first
    assert first != second
    assert first not in (first.handle, (first.handle, first.size), None)
    assert len({first, second, first}) == 2
    before = hash(first)
    adopted = Buffer.adopt(first)
    assert hash(first) == before
    assert first != adopted
    adopted.close()
    Buffer.adopt(second).close()


@pytest.mark.parametrize(
    "name",
    ["handle", "size", "device_id", "memory_resource", "owner", "streams", "ownership", "transferred_to"],
)
def test_nothing_of_an_allocation_can_be_written(name):
    allocation = Plain().allocate(256).detach()
    with pytest.raises(AttributeError):
        setattr(allocation, name, 0)
    Buffer.adopt(allocation).close()


@pytest.mark.parametrize("when", ["open", "adopted", "handed over"])
def test_the_repr_of_an_allocation_tells_its_state(driver_watch, when):
    resource = Plain()
    allocation = resource.allocate(256).detach()
    address, taken = allocation.handle, None
    if when == "adopted":
        taken = Buffer.adopt(allocation)
    elif when == "handed over":
        allocation.handed_over()
        resource.give_back(address)
    with driver_watch.no_call():
        text = repr(allocation)
    assert "Allocation" in text
    assert {"open": "OWNED", "adopted": "MOVED", "handed over": "DETACHED"}[when] in text
    if when == "open":
        assert f"{address:x}" in text.lower()
        assert "256" in text
        taken = Buffer.adopt(allocation)
    if taken is not None:
        taken.close()


# --- adopt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thing", [None, 4096, "allocation", object(), (4096, 256), "buffer", "resource", "class"], ids=name_of
)
def test_only_an_allocation_can_be_adopted(resource, driver_watch, thing):
    buffer = resource.allocate(GRANULE)
    thing = {"buffer": buffer, "resource": resource, "class": Allocation}.get(thing, thing)
    with driver_watch.no_call():
        with pytest.raises(TypeError):
            Buffer.adopt(thing)
    assert state(buffer) == OWNED
    buffer.close()


def test_adopting_on_a_thread_without_a_context(source):
    buffer = source.allocate()
    address = buffer.handle
    allocation = buffer.detach()
    (adopted,) = race(lambda: Buffer.adopt(allocation))
    assert state(adopted) == OWNED
    assert adopted.close() is CloseResult.DONE
    assert given_back(address)


# --- threads, exit -----------------------------------------------------------------------------------------------


def test_of_racing_detaches_one_wins(source):
    for _ in range(50):
        buffer = source.allocate()
        outcomes = race(*[buffer.detach] * 4)
        won = [outcome for outcome in outcomes if isinstance(outcome, Allocation)]
        assert len(won) == 1
        assert sum(isinstance(outcome, OwnershipError) for outcome in outcomes) == 3
        Buffer.adopt(won[0]).close()
    assert source.frees() in (None, 50)


def test_of_racing_adoptions_one_wins(source):
    for _ in range(50):
        allocation = source.allocate().detach()
        address = allocation.handle
        outcomes = race(
            *[lambda a=allocation: Buffer.adopt(a)] * 3,
            allocation.handed_over,
        )
        won = [outcome for outcome in outcomes if not isinstance(outcome, OwnershipError)]
        assert len(won) == 1, outcomes
        if won[0] is None:
            free_raw(source.name, address, source.size)
        else:
            assert won[0].close() is CloseResult.DONE


def test_close_against_detach(source):
    for _ in range(50):
        buffer = source.allocate()
        closed, detached = race(buffer.close, buffer.detach)
        if isinstance(detached, Allocation):
            assert closed is CloseResult.NOTHING or isinstance(closed, OwnershipError), repr(closed)
            assert state(buffer) == DETACHED
            Buffer.adopt(detached).close()
        else:
            assert isinstance(detached, OwnershipError), repr(detached)
            assert closed is CloseResult.DONE
            assert buffer.ownership is Ownership.RELEASED


@pytest.mark.parametrize("kind", SOURCES)
def test_allocations_alive_at_exit_end_silently(kind):
    code = """if True:
        import sys
        from buffer_kinds import SOURCES
        from cuda.core import Buffer, Device
        device = Device(0)
        device.set_current()
        source = SOURCES[sys.argv[1]](device)
        open_one = source.allocate().detach()
        adopted_one = source.allocate().detach()
        buffer = Buffer.adopt(adopted_one)
        handed = source.allocate().detach()
        handed.handed_over()
        cycle = [source.allocate().detach()]
        cycle.append(cycle)
        print("end")
    """
    assert child_output(code, kind, options=["-W", "error"]) == "end\n"
