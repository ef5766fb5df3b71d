# SPDX-License-Identifier: Apache-2.0
"""Failures of buffers reported in the field, a test each, named by the id of its case."""

import gc
import weakref

import pytest

from buffer_kinds import SOURCES, free_raw
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAWarning,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from python_resources import Plain
from support import GRANULE, check, fill, given_back, holds, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


class Owner:
    """Something that can be seen to die."""


# --- buf-01 ------------------------------------------------------------------------------------------------------


def test_buf_01_a_buffer_is_let_go_with_its_whole_recipe(source, quiet):
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=1)
    allocation = buffer.detach()
    del buffer
    gc.collect()
    assert holds(address, source.size, seed=1)
    assert not source.frees()
    adopted = Buffer.adopt(allocation)
    with pytest.raises(OwnershipError):
        Buffer.adopt(allocation)
    assert (adopted.handle, adopted.size) == (address, source.size)
    assert adopted.memory_resource is source.resource
    assert adopted.close() is CloseResult.DONE
    assert source.frees() in (None, 1)
    assert given_back(address)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_buf_01_the_free_has_the_size_stream_and_resource_of_the_allocation(device, how):
    """Adopted in surroundings that have nothing to do with it: other resources, another stream."""
    resource, other = Plain(), Plain()
    stream, other_stream = device.create_stream(), device.create_stream()
    buffer = resource.allocate(1000, stream=stream)
    address = buffer.handle
    allocation = buffer.detach()
    with other.allocate(1000, stream=other_stream), _SynchronousMemoryResource(0).allocate(1000):
        adopted = Buffer.adopt(allocation)
    other.asked.clear()
    if how == "close":
        adopted.close()
    del adopted
    gc.collect()
    ((ptr, size, ordered_by),) = resource.asked
    assert (ptr, size, int(ordered_by.handle)) == (address, 1000, int(stream.handle))
    assert other.asked == []
    del ordered_by
    resource.asked.clear()
    stream.close()
    other_stream.close()


@pytest.mark.two_devices
@pytest.mark.parametrize("kind", SOURCES)
def test_buf_01_adopting_while_another_device_is_current(devices, kind):
    source = SOURCES[kind](devices[0])
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=2)
    allocation = buffer.detach()
    devices[1].set_current()
    adopted = Buffer.adopt(allocation)
    if source.has_device:
        assert adopted.device_id == 0
    assert adopted.close() is CloseResult.DONE
    devices[0].set_current()
    assert given_back(address)


# --- buf-02 ------------------------------------------------------------------------------------------------------


def test_buf_02_a_leaked_pointer_is_reported_once(source):
    allocation = source.allocate().detach()
    address = allocation.handle
    fill(address, source.size, seed=3)
    with warnings_seen() as seen:
        del allocation
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert f"{address:x}" in str(seen[0].message).lower()
    assert holds(address, source.size, seed=3)
    assert not source.frees()
    free_raw(source.name, address, source.size)


def test_buf_02_a_declared_hand_over_is_no_leak(source, quiet):
    allocation = source.allocate().detach()
    address = allocation.handle
    allocation.handed_over()
    with warnings_seen() as seen:
        del allocation
        gc.collect()
    assert seen == []
    assert still_allocated(address)
    free_raw(source.name, address, source.size)


# --- buf-03 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "drop"])
def test_buf_03_a_free_function_and_an_owner_work_together(how):
    owner, calls = Owner(), []
    alive = weakref.ref(owner)
    address = int(check(driver.cuMemAlloc(4096)))

    def free(ptr, size, stream):
        calls.append((ptr, size, alive() is not None))
        check(driver.cuMemFree(ptr))

    buffer = Buffer.from_handle(address, 4096, owner=owner, deallocate=free)
    del owner
    gc.collect()
    assert alive() is not None, "not before"
    if how == "close":
        buffer.close()
        assert alive() is None, "right after"
    del buffer
    gc.collect()
    assert calls == [(address, 4096, True)]
    assert alive() is None


def test_buf_03_a_resource_and_an_owner_exclude_each_other():
    resource = Plain()
    address = resource.take(4096)
    for more in ({}, {"deallocate": lambda ptr, size, stream: None}):
        with pytest.raises(ValueError):
            Buffer.from_handle(address, 4096, resource, Owner(), **more)
    with pytest.raises(ValueError):
        Buffer.from_handle(address, 4096, resource, deallocate=lambda ptr, size, stream: None)
    assert resource.asked == []
    Buffer.from_handle(address, 4096, resource).close()
    assert len(resource.asked) == 1


# --- buf-04 ------------------------------------------------------------------------------------------------------


def test_buf_04_a_view_never_frees(source, resource):
    class Memory:
        """The owner: it keeps the buffer whose memory it lends."""

        def __init__(self):
            self.buffer = source.allocate()

    memory = Memory()
    alive, address = weakref.ref(memory), memory.buffer.handle
    fill(address, source.size, seed=4)
    views = [Buffer.from_handle(address, source.size, owner=memory) for _ in range(4)]
    for view in views:
        assert view.ownership is Ownership.BORROWED
        with pytest.raises(OwnershipError):
            view.detach()
        with pytest.raises(OwnershipError):
            resource.modify_allocation(view, 4 * GRANULE)
    for view in views[:2]:
        assert view.close() is CloseResult.DONE
        assert view.owner is None
    del view, views[:3]
    gc.collect()
    assert holds(address, source.size, seed=4)
    assert not source.frees()
    del memory
    assert alive() is not None
    assert views[0].close() is CloseResult.DONE
    assert alive() is None, "at close, without a collection"
    gc.collect()
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_buf_04_a_lent_view_drops_its_owner_with_the_last_loan(source):
    memory = source.allocate()
    owner = Owner()
    alive = weakref.ref(owner)
    view = Buffer.from_handle(memory.handle, memory.size, owner=owner)
    first, second = view[:8], view[8:16]
    del owner
    assert view.close() is CloseResult.LENT
    assert (view.ownership, view.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
    first.close()
    assert alive() is not None
    second.close()
    del first, second
    assert alive() is None
    assert still_allocated(memory.handle)
    memory.close()


# --- buf-05 ------------------------------------------------------------------------------------------------------

# What the design leaves readable in every state.
READABLE = {
    "handle": 0,
    "size": 0,
    "memory_resource": None,
    "owner": None,
    "is_closed": True,
    "ownership": ...,
    "transferred_to": ...,
    "loans": 0,
}
MAKERS = {"from_handle", "adopt", "from_ipc_descriptor"}
ALWAYS = {"close"}
ARGUMENTS = {  # positional ones; below, those by keyword
    "set_deallocation_stream": lambda stream, resource: (stream,),
    "record_stream": lambda stream, resource: (stream,),
    "move_to": lambda stream, resource: (resource,),
    "copy_from": lambda stream, resource: (Buffer.from_handle(0, 0),),
    "fill": lambda stream, resource: (0,),
}
KEYWORDS = dict.fromkeys(("copy_to", "copy_from", "fill"), ("stream",))
PUBLIC = sorted(name for name in dir(Buffer) if not name.startswith("_"))
OPERATORS = {
    "with": lambda buffer: buffer.__enter__(),
    "slice": lambda buffer: buffer[:1],
    "memoryview": memoryview,
    "bytes": bytes,
}


@pytest.fixture(params=["closed", "detached", "grown", "moved"])
def ended(request, resource):
    """A buffer that no longer stands for its memory, and the words that say where it went."""
    buffer, taken = resource.allocate(GRANULE), None
    if request.param == "closed":
        buffer.close()
    elif request.param == "detached":
        taken = Buffer.adopt(buffer.detach())
    elif request.param == "grown":
        taken = resource.modify_allocation(buffer, 2 * GRANULE)
    else:
        taken = buffer.move_to(VirtualMemoryResource(0))
    words = {
        "closed": "RELEASED",
        "detached": "TRANSFERRED.*DETACHED",
        "grown": "TRANSFERRED.*GROWN",
        "moved": "TRANSFERRED.*MOVED",
    }
    yield buffer, words[request.param]
    if taken is not None:
        taken.close()


@pytest.mark.parametrize("name", PUBLIC)
def test_buf_05_every_public_name_of_a_closed_buffer(ended, device, resource, driver_watch, name):
    buffer, words = ended
    stream, before = device.create_stream(), hash(buffer)
    with driver_watch.no_call():
        if name in READABLE:
            value = getattr(buffer, name)
            assert READABLE[name] is ... or value == READABLE[name]
        elif name in ALWAYS:
            assert buffer.close() is CloseResult.NOTHING
        elif name not in MAKERS:
            with pytest.raises(OwnershipError, match=rf"^Buffer has been closed.*{words}"):
                value = getattr(buffer, name)
                if callable(value):
                    keywords = dict.fromkeys(KEYWORDS.get(name, ()), stream)
                    value(*ARGUMENTS.get(name, lambda stream, resource: ())(stream, resource), **keywords)
        assert words.split(".*")[-1] in repr(buffer)
        assert hash(buffer) == before
    assert buffer == buffer
    stream.close()


@pytest.mark.parametrize("name", OPERATORS)
def test_buf_05_every_operator_of_a_closed_buffer(ended, driver_watch, name):
    buffer, words = ended
    with driver_watch.no_call():
        with pytest.raises((OwnershipError, BufferError, TypeError)) as info:
            OPERATORS[name](buffer)
    if name != "bytes":
        error = info.value.__cause__ if isinstance(info.value, BufferError) else info.value
        assert isinstance(error, OwnershipError)
        assert str(error).startswith("Buffer has been closed")
        assert words.split(".*")[-1] in str(error)


# --- buf-06 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream", ["closed", 7, "stream", object()], ids=["closed", "number", "text", "object"]
)
@pytest.mark.parametrize("with_resource", [False, True], ids=["function", "resource"])
def test_buf_06_a_call_that_raises_has_taken_nothing(device, stream, with_resource):
    resource = Plain()
    address = resource.take(4096)
    how = {"mr": resource} if with_resource else {"deallocate": lambda p, n, s: resource.deallocate(p, n)}
    if stream == "closed":
        stream = device.create_stream()
        stream.close()
    with pytest.raises((TypeError, RuntimeError)):
        Buffer.from_handle(address, 4096, stream=stream, **how)
    gc.collect()
    assert resource.asked == []
    assert still_allocated(address)
    assert Buffer.from_handle(address, 4096, **how).close() is CloseResult.DONE
    assert [entry[:2] for entry in resource.asked] == [(address, 4096)]
    assert given_back(address)


# --- buf-07 ------------------------------------------------------------------------------------------------------


def test_buf_07_an_empty_buffer_is_open_until_it_is_closed(source, quiet):
    if source.name == "python":
        source.resource = HandsOutNothing()
    buffer = source.allocate(0)
    assert (buffer.ownership, buffer.size, buffer.is_closed, bool(buffer)) == (
        Ownership.OWNED,
        0,
        False,
        True,
    )
    with buffer[:] as part:
        assert (part.size, buffer.loans) == (0, 1)
    if source.at_host:
        with memoryview(buffer) as view:
            assert view.nbytes == 0
    adopted = Buffer.adopt(buffer.detach())
    assert (adopted.ownership, adopted.size) == (Ownership.OWNED, 0)
    with adopted.array_view() if source.built_in else adopted[:]:
        assert adopted.close() is CloseResult.LENT
    assert adopted.is_closed
    second = source.allocate(0)
    assert second.close() is CloseResult.DONE
    assert second.ownership is Ownership.RELEASED


class HandsOutNothing(Plain):
    """The driver refuses to allocate nothing, so a resource written in Python says what that means."""

    def take(self, size):
        return super().take(size) if size else 0

    def give_back(self, ptr):
        if ptr:
            super().give_back(ptr)


@pytest.mark.parametrize(
    "make", [VirtualMemoryResource, _SynchronousMemoryResource], ids=["virtual", "device"]
)
def test_buf_07_nothing_is_allocated_without_the_driver(driver_watch, make):
    resource = make(0)
    with driver_watch.no_call():
        buffer = resource.allocate(0)
        taken = Buffer.adopt(buffer.detach())
        assert taken.close() is CloseResult.DONE
    with driver_watch.no_call():
        LegacyPinnedMemoryResource().allocate(0).close()


@pytest.mark.parametrize("adopted", [False, True], ids=["allocated", "adopted"])
def test_buf_07_an_empty_virtual_buffer_grows(resource, adopted, quiet):
    buffer = resource.allocate(0)
    if adopted:
        buffer = Buffer.adopt(buffer.detach())
    grown = resource.modify_allocation(buffer, GRANULE)
    assert (buffer.ownership, buffer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
    fill(grown.handle, GRANULE, seed=5)
    assert holds(grown.handle, GRANULE, seed=5)
    assert grown.close() is CloseResult.DONE


# --- buf-08 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["virtual", "pinned", "device"])
def test_buf_08_a_wrong_size_is_refused_and_changes_nothing(device, kind, quiet):
    source = SOURCES[kind](device)
    buffer = source.allocate()
    address = buffer.handle
    fill(address, source.size, seed=6)
    allocation = buffer.detach()
    for size in (source.size - 1, source.size // 2, source.size + 1, 2 * source.size):
        with pytest.raises(ValueError):
            source.resource.deallocate(address, size)
        assert allocation.ownership is Ownership.OWNED
    assert holds(address, source.size, seed=6)
    assert Buffer.adopt(allocation).close() is CloseResult.DONE
    assert given_back(address)
