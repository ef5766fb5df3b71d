# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a buffer in each state, and what its methods answer."""

import gc
import weakref

import pytest

from cuda.core import (
    Buffer,
    CloseResult,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from python_resources import Plain
from support import GRANULE, fill_granules, free_memory, granules_hold, holds

# Everything else that a buffer offers, as (name, use).
USES = {
    "mapped_size": lambda b: b.mapped_size,
    "capacity": lambda b: b.capacity,
    "device_id": lambda b: b.device_id,
    "is_device_accessible": lambda b: b.is_device_accessible,
    "is_host_accessible": lambda b: b.is_host_accessible,
    "is_managed": lambda b: b.is_managed,
    "is_mapped": lambda b: b.is_mapped,
}


class Owner:
    """Something that can be seen to die."""


@pytest.fixture
def closed(resource):
    buffer = resource.allocate(GRANULE)
    buffer.close()
    return buffer


@pytest.fixture
def grown(resource):
    """A buffer that gave its allocation to another by growing."""
    buffer = resource.allocate(GRANULE)
    result = resource.modify_allocation(buffer, 2 * GRANULE)
    yield buffer
    result.close()


@pytest.fixture
def borrowed(resource):
    with resource.allocate(GRANULE) as owner:
        yield Buffer.from_handle(owner.handle, owner.size, owner=owner)


@pytest.fixture
def owned(resource):
    with resource.allocate(GRANULE) as buffer:
        yield buffer


# --- names -------------------------------------------------------------------------------------------------------


def test_the_enumerations_have_the_members_of_the_design():
    assert {member.name for member in Ownership} == {"OWNED", "BORROWED", "TRANSFERRED", "RELEASED"}
    assert {member.name for member in TransferredTo} == {"GROWN", "DETACHED", "MOVED", "LOANS", "GRAPH"}
    assert {member.name for member in CloseResult} == {"DONE", "QUEUED", "LENT", "IN_PROGRESS", "NOTHING"}
    assert issubclass(OwnershipError, RuntimeError)


@pytest.mark.parametrize(
    "name",
    [
        "ownership",
        "transferred_to",
        "loans",
        "handle",
        "size",
        "memory_resource",
        "owner",
        "is_closed",
        *USES,
    ],
)
def test_nothing_readable_can_be_written(owned, name):
    with pytest.raises(AttributeError):
        setattr(owned, name, 0)


def test_there_is_no_clear(owned):
    """Forgetting and freeing are two things; no method does one and is taken for the other."""
    assert not hasattr(owned, "_clear")


# --- OWNED and BORROWED ------------------------------------------------------------------------------------------


def test_an_owned_buffer_reads(owned, resource):
    assert (owned.ownership, owned.transferred_to, owned.loans) == (Ownership.OWNED, None, 0)
    assert isinstance(owned.handle, int)
    assert owned.handle != 0
    assert (owned.size, owned.mapped_size, owned.capacity) == (GRANULE,) * 3
    assert owned.memory_resource is resource
    assert owned.owner is None
    assert (owned.is_closed, bool(owned)) == (False, True)
    assert owned.device_id == 0


def test_a_borrowed_buffer_reads(resource):
    memory, owner = resource.allocate(GRANULE), Owner()
    view = Buffer.from_handle(memory.handle, memory.size, owner=owner)
    assert (view.ownership, view.transferred_to, view.loans) == (Ownership.BORROWED, None, 0)
    assert (view.handle, view.size) == (memory.handle, memory.size)
    assert view.owner is owner
    assert view.memory_resource is None
    assert (view.is_closed, bool(view)) == (False, True)
    assert (view.device_id, view.is_device_accessible, view.is_host_accessible) == (0, True, False)
    view.close()
    memory.close()


def test_closing_a_borrowed_buffer_drops_its_owner_and_frees_nothing(owned, driver_watch):
    fill_granules(owned)
    free, owner = free_memory(), Owner()
    gone = weakref.ref(owner)
    view = Buffer.from_handle(owned.handle, owned.size, owner=owner)
    del owner
    assert gone() is not None
    with driver_watch.no_call():
        assert view.close() is CloseResult.DONE
    assert gone() is None, "without a collection"
    assert (view.ownership, view.transferred_to) == (Ownership.RELEASED, None)
    assert free_memory() == free
    assert granules_hold(owned, 1)
    assert view.close() is CloseResult.NOTHING


@pytest.mark.parametrize("with_owner", [True, False], ids=["owner", "no owner"])
def test_dropping_borrowed_buffers_frees_nothing(owned, driver_watch, with_owner):
    fill_granules(owned)
    owner = Owner() if with_owner else None
    gone = weakref.ref(owner) if owner else lambda: None
    views = [Buffer.from_handle(owned.handle, owned.size, owner=owner) for _ in range(3)]
    del owner
    with driver_watch.no_call():
        views.clear()
        gc.collect()
    assert gone() is None
    assert granules_hold(owned, 1)


def test_a_borrowed_buffer_outlives_what_it_names_nowhere(device):
    """No driver is asked about an address that nobody said anything about, until something about it is asked."""
    view = Buffer.from_handle(0xDEAD0000, 16)
    assert (view.ownership, view.handle, view.size) == (Ownership.BORROWED, 0xDEAD0000, 16)
    assert view.close() is CloseResult.DONE


def test_resource_and_owner_exclude_each_other(device):
    plain = Plain()
    address = plain.take(256)
    with pytest.raises(ValueError):
        Buffer.from_handle(address, 256, plain, Owner())
    gc.collect()
    assert plain.asked == [], "a call that raises has taken nothing"
    Buffer.from_handle(address, 256, plain).close()
    assert [entry[:2] for entry in plain.asked] == [(address, 256)]


def test_an_unusable_stream_takes_nothing(device):
    plain = Plain()
    address = plain.take(256)
    for stream in (object(), "stream", 7):
        with pytest.raises(TypeError):
            Buffer.from_handle(address, 256, plain, stream=stream)
    gc.collect()
    assert plain.asked == []
    Buffer.from_handle(address, 256, plain).close()
    assert [entry[:2] for entry in plain.asked] == [(address, 256)]


# --- TRANSFERRED and RELEASED ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["closed", "grown"])
def test_an_ended_buffer_reads_empty(request, driver_watch, which):
    buffer = request.getfixturevalue(which)
    with driver_watch.no_call():
        assert (buffer.handle, buffer.size, buffer.memory_resource, buffer.owner) == (0, 0, None, None)
        assert (buffer.is_closed, bool(buffer)) == (True, True)
        assert buffer.close() is CloseResult.NOTHING
        repr(buffer)
    if which == "closed":
        assert (buffer.ownership, buffer.transferred_to) == (Ownership.RELEASED, None)
    else:
        assert (buffer.ownership, buffer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(("which", "words"), [("closed", "RELEASED"), ("grown", "TRANSFERRED.*GROWN")])
def test_every_other_use_of_an_ended_buffer_is_refused(request, driver_watch, which, words, use):
    buffer = request.getfixturevalue(which)
    with driver_watch.no_call():
        with pytest.raises(OwnershipError, match=f"^Buffer has been closed.*{words}"):
            use(buffer)


@pytest.mark.parametrize("which", ["closed", "grown"])
def test_no_stream_can_be_set_on_an_ended_buffer(request, device, which):
    buffer = request.getfixturevalue(which)
    stream = device.create_stream()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
        buffer.set_deallocation_stream(stream)
    stream.close()


@pytest.mark.parametrize("which", ["closed", "grown"])
def test_an_ended_buffer_can_not_be_entered(request, which):
    buffer = request.getfixturevalue(which)
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
        with buffer:
            pass


# --- close and with ----------------------------------------------------------------------------------------------


def test_close_says_what_it_did(resource, driver_watch):
    buffer = resource.allocate(GRANULE)
    assert buffer.close() is CloseResult.DONE
    with driver_watch.no_call():
        assert buffer.close() is CloseResult.NOTHING
        assert buffer.close() is CloseResult.NOTHING


@pytest.mark.parametrize("kind", ["virtual", "python", "borrowed", "empty"])
def test_leaving_with_closes(resource, kind):
    plain = Plain()
    buffer = {
        "virtual": lambda: resource.allocate(GRANULE),
        "python": lambda: plain.allocate(256),
        "borrowed": lambda: Buffer.from_handle(4096, 16, owner=Owner()),
        "empty": lambda: resource.allocate(0),
    }[kind]()
    with buffer as entered:
        assert entered is buffer
        assert not buffer.is_closed
    assert buffer.ownership is Ownership.RELEASED
    assert buffer.close() is CloseResult.NOTHING


def test_leaving_with_returns_none_and_lets_exceptions_pass(resource):
    buffer = resource.allocate(GRANULE)
    assert buffer.__enter__() is buffer
    assert buffer.__exit__(None, None, None) is None
    with pytest.raises(KeyError, match="passes"):
        with resource.allocate(GRANULE) as buffer:
            raise KeyError("passes")
    assert buffer.ownership is Ownership.RELEASED


def test_closing_inside_with_is_harmless(resource):
    with resource.allocate(GRANULE) as buffer:
        assert buffer.close() is CloseResult.DONE
    assert buffer.ownership is Ownership.RELEASED


def test_growing_inside_with_leaves_the_result_open(resource):
    with resource.allocate(GRANULE) as buffer:
        fill_granules(buffer)
        result = resource.modify_allocation(buffer, 2 * GRANULE)
    assert buffer.ownership is Ownership.TRANSFERRED
    assert result.ownership is Ownership.OWNED
    assert holds(result.handle, GRANULE, seed=0)
    result.close()


# --- equality, hash, repr ----------------------------------------------------------------------------------------


def test_buffers_of_one_address_and_size_are_equal(owned):
    view = Buffer.from_handle(owned.handle, owned.size)
    assert view == owned
    assert hash(view) == hash(owned)
    assert Buffer.from_handle(owned.handle, owned.size - 1) != owned
    assert Buffer.from_handle(owned.handle + 1, owned.size) != owned
    for other in (owned.handle, None, "buffer", (owned.handle, owned.size)):
        assert owned != other
    view.close()


@pytest.mark.parametrize("how", ["close", "grow"])
def test_hash_stays_and_equality_becomes_identity_when_a_buffer_ends(resource, how):
    buffer = resource.allocate(GRANULE)
    view = Buffer.from_handle(buffer.handle, buffer.size)
    before, members = hash(buffer), {buffer: "value"}
    result = None
    if how == "close":
        buffer.close()
    else:
        result = resource.modify_allocation(buffer, 2 * GRANULE)
    assert hash(buffer) == before
    assert buffer == buffer
    assert buffer != view
    assert view != buffer
    assert members[buffer] == "value"
    other = resource.allocate(GRANULE)
    other_view = Buffer.from_handle(other.handle, other.size)
    other.close()
    assert buffer != other, "two ended buffers, both reading 0 and 0, are not equal"
    for open_buffer in (view, other_view, result):
        if open_buffer is not None:
            open_buffer.close()


@pytest.mark.parametrize("which", ["owned", "borrowed", "closed", "grown"])
def test_repr_tells_the_state(request, driver_watch, which):
    buffer = request.getfixturevalue(which)
    with driver_watch.no_call():
        text = repr(buffer)
    assert "Buffer" in text
    assert buffer.ownership.name in text
    if which in ("owned", "borrowed"):
        assert hex(buffer.handle)[2:] in text.lower()
        assert str(buffer.size) in text
    if which == "grown":
        assert "GROWN" in text


def test_repr_works_when_the_resource_does_not(device):
    class Broken(Plain):
        def __repr__(self):
            raise RuntimeError("no repr")

    broken = Broken()
    buffer = broken.allocate(256)
    assert "OWNED" in repr(buffer)
    buffer.close()
    assert "RELEASED" in repr(buffer)


def test_a_buffer_can_be_referred_to_weakly(resource):
    buffer = resource.allocate(GRANULE)
    reference = weakref.ref(buffer)
    del buffer
    assert reference() is None


def test_copying_an_owner_is_refused(owned):
    """Two objects for one responsibility would free twice."""
    import copy

    for operation in (copy.copy, copy.deepcopy):
        with pytest.raises((TypeError, RuntimeError)):
            operation(owned)
