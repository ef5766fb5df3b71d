# SPDX-License-Identifier: Apache-2.0
"""One address, one owner: a second is refused where it would free twice, and allowed where the resource counts."""

import gc

import pytest

from buffer_kinds import BUILT_IN, ENDINGS, end, free_raw, raw_memory, raw_virtual_memory
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAWarning,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from python_resources import Plain
from support import GRANULE, fill, given_back, holds, open_stretch, race, still_allocated, warnings_seen

SIZE = 4096

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=BUILT_IN.values(), ids=BUILT_IN)
def source(request, device):
    return request.param(device)


def refused(source, address, size):
    with pytest.raises(OwnershipError, match=f"{address:x}"):
        Buffer.from_handle(address, size, source.resource)
    assert still_allocated(address)
    return True


@pytest.mark.parametrize("first", ["allocated", "from_handle", "adopted"])
def test_a_second_owner_is_refused(source, first):
    if first == "from_handle":
        buffer = Buffer.from_handle(raw_memory(source.name, source.size), source.size, source.resource)
    else:
        buffer = source.allocate()
    if first == "adopted":
        buffer = Buffer.adopt(buffer.detach())
    address = buffer.handle
    fill(address, source.size, seed=1)
    for _ in range(2):
        assert refused(source, address, source.size)
    assert buffer.ownership is Ownership.OWNED
    assert holds(address, source.size, seed=1)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_the_index_knows_buffers_that_are_older_than_it(source):
    """It is built when it is first asked for, after many allocations and closes."""
    buffers = [source.allocate() for _ in range(50)]
    for buffer in buffers[::2]:
        buffer.close()
    for buffer in buffers[1::2]:
        assert refused(source, buffer.handle, source.size)
        buffer.close()
    later = source.allocate()
    assert refused(source, later.handle, source.size)
    later.close()


def test_an_unadopted_allocation_is_an_owner(source):
    allocation = source.allocate().detach()
    address = allocation.handle
    assert refused(source, address, source.size)
    assert allocation.ownership is Ownership.OWNED
    adopted = Buffer.adopt(allocation)
    assert refused(source, address, source.size)
    adopted.close()


def test_what_was_handed_over_may_come_back(source):
    allocation = source.allocate().detach()
    address = allocation.handle
    fill(address, source.size, seed=2)
    allocation.handed_over()
    back = Buffer.from_handle(address, source.size, source.resource)
    assert holds(address, source.size, seed=2)
    assert refused(source, address, source.size)
    assert back.close() is CloseResult.DONE
    assert given_back(address)


def test_an_allocation_that_went_away_unadopted_may_come_back(source):
    """It was reported; memory that nobody owns can be owned again."""
    allocation = source.allocate().detach()
    address = allocation.handle
    with warnings_seen() as seen:
        del allocation
    assert [warning.category for warning in seen] == [CUDAWarning]
    back = Buffer.from_handle(address, source.size, source.resource)
    assert back.close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.parametrize("how", ENDINGS)
def test_an_ended_owner_leaves_no_trace(source, how):
    address = raw_memory(source.name, source.size)
    box = [Buffer.from_handle(address, source.size, source.resource)]
    refused(source, address, source.size)
    end(box, how)
    assert given_back(address)
    again = raw_memory(source.name, source.size)
    Buffer.from_handle(again, source.size, source.resource).close()
    assert given_back(again)


def test_a_failed_second_owner_leaves_the_first_alone(source):
    buffer = source.allocate()
    for _ in range(3):
        assert refused(source, buffer.handle, source.size)
    gc.collect()
    assert still_allocated(buffer.handle)
    assert Buffer.adopt(buffer.detach()).close() is CloseResult.DONE


def test_a_resource_that_has_an_owner_refuses_an_adoption(source):
    """The same address is owned through two resources by mistake: the taker notices."""
    other = source.make()
    buffer = source.allocate()
    address = buffer.handle
    mistake = Buffer.from_handle(address, source.size, other)
    with pytest.raises(OwnershipError, match=f"{address:x}"):
        buffer.move_to(other)
    assert buffer.ownership is Ownership.OWNED
    allocation = buffer.detach()
    with pytest.raises(OwnershipError, match=f"{address:x}"):
        Buffer.adopt(allocation, other)
    assert allocation.ownership is Ownership.OWNED
    mistake.detach().handed_over()
    assert Buffer.adopt(allocation, other).close() is CloseResult.DONE
    assert given_back(address)


def test_no_bytes_have_no_owner(source, driver_watch):
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=3)
    nothing = [Buffer.from_handle(address, 0, source.resource) for _ in range(3)]
    assert [view.ownership for view in nothing] == [Ownership.OWNED] * 3
    for view in nothing:
        assert view.close() is CloseResult.DONE
    gc.collect()
    assert holds(address, source.size, seed=3), "nothing of it was freed"
    assert refused(source, address, source.size)
    buffer.close()


def test_an_address_fresh_from_the_driver_wins(device, quiet):
    """A stale owner (somebody freed the memory behind its back) must not free what lies there now."""
    address = open_stretch(3)
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(addr_hint=address))
    stale = Buffer.from_handle(raw_virtual_memory(GRANULE, address), GRANULE, resource)
    assert stale.handle == address
    free_raw("virtual", address, GRANULE)
    fresh = resource.allocate(GRANULE)
    assert fresh.handle == address
    fill(address, GRANULE, seed=4)
    assert stale.ownership is Ownership.RELEASED
    assert stale.close() is CloseResult.NOTHING
    with pytest.raises(OwnershipError):
        stale.detach()
    del stale
    gc.collect()
    assert holds(address, GRANULE, seed=4)
    assert fresh.close() is CloseResult.DONE


# --- Python-defined resources ------------------------------------------------------------------------------------


class Shared(Plain):
    """Counts the owners of an address itself."""

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size, stream))
        self.owners[ptr] -= 1
        if not self.owners[ptr]:
            self.give_back(ptr)


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("how", ENDINGS)
def test_a_python_resource_may_have_two_owners(order, how):
    resource = Shared()
    first = resource.allocate(SIZE)
    address = first.handle
    resource.owners = {address: 2}
    boxes = [[first], [Buffer.from_handle(address, SIZE, resource)]]
    del first
    if order == "second":
        boxes.reverse()
    end(boxes[0], how)
    assert len(resource.asked) == 1
    assert still_allocated(address)
    end(boxes[1], how)
    assert [entry[:2] for entry in resource.asked] == [(address, SIZE)] * 2
    assert given_back(address)


class Unique(Plain):
    unique_addresses = True


class UniqueByProperty(Plain):
    @property
    def unique_addresses(self):
        return True


@pytest.mark.parametrize("kind", [Unique, UniqueByProperty])
def test_a_python_resource_can_ask_for_the_check(kind):
    resource = kind()
    buffer = resource.allocate(SIZE)
    address = buffer.handle
    with pytest.raises(OwnershipError, match=f"{address:x}"):
        Buffer.from_handle(address, SIZE, resource)
    gc.collect()
    assert resource.asked == []
    allocation = buffer.detach()
    with pytest.raises(OwnershipError):
        Buffer.from_handle(address, SIZE, resource)
    buffer = Buffer.adopt(allocation)
    for size in (0, 0):
        Buffer.from_handle(address, size, resource).detach().handed_over()
    assert buffer.close() is CloseResult.DONE
    assert [entry[:2] for entry in resource.asked] == [(address, SIZE)]
    again = resource.allocate(SIZE)
    assert again.close() is CloseResult.DONE


def test_a_resource_asked_for_the_check_may_own_again_what_it_freed():
    class Recycling(Unique):
        def give_back(self, ptr):
            """Keeps the memory for the next allocation."""

    resource = Recycling()
    address = resource.take(SIZE)
    for how in ENDINGS:
        end([Buffer.from_handle(address, SIZE, resource)], how)
    assert [entry[:2] for entry in resource.asked] == [(address, SIZE)] * len(ENDINGS)
    Plain.give_back(resource, address)


def test_an_address_may_be_owned_again_from_within_its_deallocate():
    """The entry goes before the free: the moment the memory is free, it may be somebody else's."""

    class Reusing(Unique):
        next_owner = None

        def deallocate(self, ptr, size, *, stream=None):
            self.asked.append((ptr, size, stream))
            if len(self.asked) == 1:
                self.next_owner = Buffer.from_handle(ptr, size, self)
            else:
                self.give_back(ptr)

    resource = Reusing()
    buffer = resource.allocate(SIZE)
    address = buffer.handle
    assert buffer.close() is CloseResult.DONE
    assert resource.next_owner.handle == address
    with pytest.raises(OwnershipError):
        Buffer.from_handle(address, SIZE, resource)
    assert resource.next_owner.close() is CloseResult.DONE
    assert given_back(address)


def test_of_racing_owners_one_wins(source):
    for _ in range(30):
        address = raw_memory(source.name, source.size)
        stream = source.device.create_stream()
        outcomes = race(
            *[lambda at=address, s=stream: Buffer.from_handle(at, source.size, source.resource, stream=s)] * 4
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, Buffer)]
        assert len(won) == 1, outcomes
        assert sum(isinstance(outcome, OwnershipError) for outcome in outcomes) == 3
        assert won.pop().close() is CloseResult.DONE
        assert given_back(address)
        stream.close()
