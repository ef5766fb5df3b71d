# SPDX-License-Identifier: Apache-2.0
"""Another resource takes an allocation: ``move_to``, ``adopt`` with ``mr``, who may, and that a range travels whole."""

import gc
import weakref

import pytest

from buffer_kinds import SOURCES, WITH_RESOURCE
from cuda.core import (
    Buffer,
    CloseResult,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    Ownership,
    OwnershipError,
    PinnedMemoryResource,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from python_resources import Plain
from support import (
    GRANULE,
    address_free,
    blocked,
    fill,
    fill_granules,
    given_back,
    holds,
    place,
    rights_of_granules,
)

pytestmark = pytest.mark.usefixtures("device")

OWNED = (Ownership.OWNED, None)
MOVED = (Ownership.TRANSFERRED, TransferredTo.MOVED)


def state(buffer):
    return (buffer.ownership, buffer.transferred_to)


@pytest.fixture(params=WITH_RESOURCE.values(), ids=WITH_RESOURCE)
def resourceful(request, device):
    return request.param(device)


# --- who may take it ---------------------------------------------------------------------------------------------


def test_another_resource_of_the_same_kind_may_adopt(resourceful):
    other = resourceful.make()
    buffer = resourceful.allocate()
    address = buffer.handle
    fill(address, resourceful.size, seed=7)
    if not resourceful.built_in:
        other.held[address] = resourceful.resource.held.pop(address)
    adopted = Buffer.adopt(buffer.detach(), other)
    assert adopted.memory_resource is other
    assert (adopted.handle, adopted.size) == (address, resourceful.size)
    assert holds(address, resourceful.size, seed=7)
    assert adopted.close() is CloseResult.DONE
    assert given_back(address)
    if not resourceful.built_in:
        assert resourceful.resource.asked == []
        assert [entry[:2] for entry in other.asked] == [(address, resourceful.size)]


class SubclassOfVirtual(VirtualMemoryResource):
    pass


class SubclassOfPlain(Plain):
    pass


def misfits(source, device):
    """Resources that must not take up what a source made, and things that are none."""
    resources = {
        "virtual": VirtualMemoryResource(device),
        "subclass of virtual": SubclassOfVirtual(device),
        "pinned": LegacyPinnedMemoryResource(),
        "device": _SynchronousMemoryResource(0),
        "pool": DeviceMemoryResource(0),
        "pinned pool": PinnedMemoryResource(),
        "managed pool": ManagedMemoryResource(),
        "python": Plain(),
        "subclass of python": SubclassOfPlain(),
    }
    del resources[source.name]
    return resources


def test_no_other_kind_of_resource_may_take_an_allocation(resourceful, device):
    allocation = resourceful.allocate().detach()
    for name, other in misfits(resourceful, device).items():
        with pytest.raises(ValueError):
            Buffer.adopt(allocation, other)
        assert state(allocation) == OWNED, name
    for thing in (4096, "resource", object()):
        with pytest.raises(TypeError):
            Buffer.adopt(allocation, thing)
    assert state(allocation) == OWNED
    buffer = Buffer.adopt(allocation)
    for name, other in misfits(resourceful, device).items():
        with pytest.raises(ValueError):
            buffer.move_to(other)
        assert state(buffer) == OWNED, name
    for thing in (None, 4096, "resource", object()):
        with pytest.raises(TypeError):
            buffer.move_to(thing)
    assert state(buffer) == OWNED
    assert buffer.close() is CloseResult.DONE
    assert resourceful.frees() in (None, 1)


def test_what_a_function_frees_has_no_kind_of_resource(device):
    source = SOURCES["function"](device)
    allocation = source.allocate().detach()
    with pytest.raises(ValueError):
        Buffer.adopt(allocation, Plain())
    buffer = Buffer.adopt(allocation)
    with pytest.raises(ValueError):
        buffer.move_to(Plain())
    assert state(buffer) == OWNED
    assert source.frees() == 0
    buffer.close()
    assert source.frees() == 1


@pytest.mark.two_devices
@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_no_resource_of_another_device_may_take_an_allocation(devices, kind):
    here, there = SOURCES[kind](devices[0]), SOURCES[kind](devices[1])
    for mine, other in ((here, there), (there, here)):
        buffer = mine.allocate()
        assert buffer.device_id == mine.device.device_id
        allocation = buffer.detach()
        with pytest.raises(ValueError):
            Buffer.adopt(allocation, other.resource)
        assert state(allocation) == OWNED
        buffer = Buffer.adopt(allocation)
        with pytest.raises(ValueError):
            buffer.move_to(other.resource)
        assert state(buffer) == OWNED
        assert buffer.close() is CloseResult.DONE


# --- move_to -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["another resource", "its own"])
def test_an_allocation_moves_to_another_resource(resourceful, where):
    buffer = resourceful.allocate()
    address = buffer.handle
    fill(address, resourceful.size, seed=8)
    other = resourceful.make() if where == "another resource" else resourceful.resource
    if not resourceful.built_in:
        held = resourceful.resource.held.pop(address)
        other.held[address] = held
    moved = buffer.move_to(other)
    assert moved is not buffer
    assert state(buffer) == MOVED
    assert (buffer.handle, buffer.size) == (0, 0)
    assert state(moved) == OWNED
    assert (moved.handle, moved.size) == (address, resourceful.size)
    assert moved.memory_resource is other
    assert buffer.close() is CloseResult.NOTHING
    assert holds(address, resourceful.size, seed=8)
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*TRANSFERRED.*MOVED"):
        buffer.move_to(other)
    del buffer
    gc.collect()
    assert holds(address, resourceful.size, seed=8)
    assert moved.close() is CloseResult.DONE
    assert given_back(address)
    if not resourceful.built_in:
        assert len(other.asked) == 1
        other.asked.clear()


def test_moving_is_refused_while_somebody_looks(resourceful):
    buffer, other = resourceful.allocate(), resourceful.make()
    loan = buffer[:8]
    with pytest.raises(BufferError):
        buffer.move_to(other)
    assert state(buffer) == OWNED
    assert buffer.memory_resource is resourceful.resource
    loan.close()
    if not resourceful.built_in:
        other.held.update(resourceful.resource.held)
    assert buffer.move_to(other).close() is CloseResult.DONE


def test_a_borrowed_buffer_cannot_be_moved(resourceful):
    buffer = resourceful.allocate()
    view = Buffer.from_handle(buffer.handle, buffer.size, owner=buffer)
    with pytest.raises(OwnershipError, match="BORROWED"):
        view.move_to(resourceful.resource)
    assert state(view) == (Ownership.BORROWED, None)
    view.close()
    buffer.close()


def test_a_closed_buffer_cannot_be_moved(resourceful):
    buffer = resourceful.allocate()
    buffer.close()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed.*RELEASED"):
        buffer.move_to(resourceful.resource)


# --- virtual memory: the range travels whole ---------------------------------------------------------------------


def grown_buffer(device):
    """Three chunks in two reservations, the second with other rights; moved once."""
    buffer, resource = place(device, GRANULE, stretch=8)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
    buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    fill(buffer.handle, GRANULE, seed=0)
    fill(buffer.handle + 2 * GRANULE, GRANULE, seed=2)
    return buffer, resource


def assert_whole(buffer):
    assert rights_of_granules(buffer)[:3] == [3, 1, 3]
    assert holds(buffer.handle, GRANULE, seed=0)
    assert holds(buffer.handle + 2 * GRANULE, GRANULE, seed=2)


@pytest.mark.parametrize("to", ["own resource", "other resource"])
@pytest.mark.parametrize("how", ["adopt", "move_to"])
def test_a_grown_buffer_keeps_chunks_and_rights_and_grows_on(device, how, to):
    buffer, resource = grown_buffer(device)
    target = resource if to == "own resource" else VirtualMemoryResource(device)
    taken = Buffer.adopt(buffer.detach(), target) if how == "adopt" else buffer.move_to(target)
    assert (taken.size, taken.mapped_size) == (3 * GRANULE, 3 * GRANULE)
    assert_whole(taken)
    if to == "other resource":
        with pytest.raises(ValueError):
            resource.modify_allocation(taken, 4 * GRANULE)
    address = taken.handle
    with blocked(taken):
        grown = target.modify_allocation(taken, 5 * GRANULE)
    assert (taken.ownership, taken.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
    assert grown.handle != address
    assert_whole(grown)
    fill_granules(grown, first=3)
    address = grown.handle
    assert grown.close() is CloseResult.DONE
    assert address_free(address, 5 * GRANULE)


def test_reserved_addresses_travel_with_an_allocation(device):
    buffer, resource = place(device, GRANULE, stretch=6, reserve_size=4 * GRANULE)
    address = buffer.handle
    adopted = Buffer.adopt(buffer.detach(), VirtualMemoryResource(device))
    assert adopted.capacity == 4 * GRANULE
    grown = adopted.memory_resource.modify_allocation(adopted, 4 * GRANULE)
    assert grown.handle == address
    grown.close()
    assert address_free(address, 4 * GRANULE)
    assert resource.allocate(GRANULE).close() is CloseResult.DONE


def test_the_old_resource_may_go_after_a_move(device):
    buffer, resource = grown_buffer(device)
    gone = weakref.ref(resource)
    moved = buffer.move_to(VirtualMemoryResource(device))
    del resource, buffer
    gc.collect()
    assert gone() is None
    assert_whole(moved)
    assert moved.close() is CloseResult.DONE
