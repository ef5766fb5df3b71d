# SPDX-License-Identifier: Apache-2.0
"""``memory_report``: what is live, by resource and device, at every moment and in every state."""

import ctypes
import gc
import json
import os
import re
import threading

import pytest

from buffer_kinds import SOURCES
from cuda.core import (
    Allocation,
    Buffer,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedBuffer,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
    memory_report,
)
from cuda.core._memory import _counters, _inventory
from cuda.core._memory._queue import drain
from cuda.core._memory._text_table import bytes_text
from held_work import Gate
from python_resources import Plain, Refusing
from report_tools import begin_report, report
from support import GRANULE, blocked, child_output, in_context, race


@pytest.fixture(params=sorted(SOURCES))
def source(request, device):
    return SOURCES[request.param](device)


@pytest.fixture(autouse=True)
def begin_here():
    begin_report()


def live():
    """Return every live allocation of the report, by its number."""
    return {one.serial: one for resource in report().resources for one in resource.allocations}


def number_of(thing):
    return int(repr(thing).split("#")[1].split()[0])


def test_an_allocation_is_there_until_it_is_closed(source):
    buffer = source.allocate()
    (resource,) = report().resources
    (one,) = resource.allocations
    assert (one.serial, one.address, one.size) == (number_of(buffer), buffer.handle, buffer.size)
    assert (one.state, one.loans, one.busy, one.failed, one.age) == ("OWNED", 0, False, False, 0)
    if source.resource is not None:
        assert resource.resource == type(source.resource).__name__
        assert resource.resource_id == id(source.resource)
        assert resource.device_id == (0 if source.has_device else -1)
    buffer.close()
    assert report().count == 0


def test_a_dropped_buffer_leaves_it(source):
    source.allocate()
    gc.collect()
    drain(20)
    assert report().count == 0


def test_resources_are_told_apart_and_the_largest_comes_first(device):
    first, second = (VirtualMemoryResource(device) for _ in range(2))
    pinned = LegacyPinnedMemoryResource()
    buffers = [
        first.allocate(GRANULE),
        second.allocate(GRANULE),
        second.allocate(2 * GRANULE),
        pinned.allocate(4096),
    ]
    seen = report()
    assert [(one.resource_id, len(one.allocations), one.size) for one in seen.resources] == [
        (id(second), 2, 3 * GRANULE),
        (id(first), 1, GRANULE),
        (id(pinned), 1, 4096),
    ]
    assert (seen.count, seen.size) == (4, 4 * GRANULE + 4096)
    assert [one.serial for one in seen.resources[0].allocations] == [number_of(b) for b in buffers[1:3]]
    for buffer in buffers:
        buffer.close()


def test_the_age_counts_what_was_made_since(device):
    resource = LegacyPinnedMemoryResource()
    old = resource.allocate(64)
    for _ in range(5):
        resource.allocate(64).close()
    young = resource.allocate(64)
    ages = {number: one.age for number, one in live().items()}
    assert ages == {number_of(old): 6, number_of(young): 0}
    text = str(memory_report())  # where a bare "age" would read as seconds
    assert re.search(r"^ +buffer +state +loans +size +address +made since$", text, re.M)
    assert re.search(rf"^ +#{number_of(old)} .* 6$", text, re.M)
    old.close()
    young.close()


def test_loans_and_what_they_hold(device):
    buffer = LegacyPinnedMemoryResource().allocate(4096)
    view = memoryview(buffer)
    number = number_of(buffer)
    assert (live()[number].state, live()[number].loans) == ("OWNED", 1)
    buffer.close()
    assert (live()[number].state, live()[number].loans) == ("LENT", 1)
    view.release()
    assert live() == {}


def test_loans_on_a_range_whose_buffer_is_closed(resource):
    buffer = resource.allocate(GRANULE)
    part = buffer[:4096]
    number = number_of(buffer)
    buffer.close()
    del buffer
    gc.collect()
    assert [(one.serial, one.state, one.loans, one.size) for one in live().values()] == [
        (number, "LENT", 1, GRANULE)
    ]
    part.close()
    assert live() == {}


def test_a_detached_allocation(source):
    buffer = source.allocate()
    allocation = buffer.detach()
    assert isinstance(allocation, Allocation)
    assert [(one.serial, one.state, one.size) for one in live().values()] == [
        (number_of(allocation), "DETACHED", allocation.size)
    ]
    again = Buffer.adopt(allocation)
    assert [(one.serial, one.state) for one in live().values()] == [(number_of(again), "OWNED")]
    again.close()


def test_a_grow_leaves_one(device, resource):
    buffer = resource.allocate(GRANULE)
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
    (one,) = live().values()
    assert (one.serial, one.address, one.size) == (number_of(grown), grown.handle, 2 * GRANULE)
    grown.close()
    with pytest.raises(RuntimeError, match=f"GROWN into buffer #{number_of(grown)} "):
        buffer.fill(0, stream=device.default_stream)


def test_a_paused_buffer_has_addresses_and_no_memory(device):
    resource = VirtualMemoryResource(0, {"growth": "geometric"})
    small = resource.allocate(8 * GRANULE)
    buffer = resource.modify_allocation(small, 9 * GRANULE)
    (one,) = live().values()
    assert (one.size, one.mapped_size, one.paused) == (9 * GRANULE, 12 * GRANULE, False)
    assert f"{bytes_text(9 * GRANULE)} in 1 allocation, {bytes_text(12 * GRANULE)} mapped" in str(
        memory_report()
    )
    resource.pause(buffer)
    (one,) = live().values()
    assert (one.state, one.size, one.mapped_size, one.paused) == ("OWNED", 9 * GRANULE, 0, True)
    report = memory_report()
    assert [each.mapped_size for each in report.resources] == [0]
    assert f"{bytes_text(9 * GRANULE)} in 1 allocation, 0 B mapped" in str(report)
    assert "OWNED paused" in str(report)
    assert report.to_dict()["resources"][0]["allocations"][0]["paused"] is True
    resource.resume(buffer)
    (one,) = live().values()
    assert (one.mapped_size, one.paused) == (12 * GRANULE, False)
    buffer.close()
    assert not live()


def test_borrowed_memory_is_not_there(device):
    held_elsewhere = ctypes.create_string_buffer(64)
    view = Buffer.from_handle(ctypes.addressof(held_elsewhere), 64, owner=held_elsewhere)
    assert report().count == 0
    view.close()


def test_memory_that_a_function_frees(device):
    pinned = LegacyPinnedMemoryResource()
    inner = pinned.allocate(64)

    def give_back(ptr, size, stream):
        inner.close()

    outer = Buffer.from_handle(inner.handle, 64, deallocate=give_back)
    names = {one.resource: one.device_id for one in report().resources}
    assert names[f"function {give_back.__qualname__}"] is None
    outer.close()
    assert report().count == 0


def test_a_release_that_failed(device):
    buffer = Refusing(1).allocate(64)
    with pytest.raises(Exception, match="not now"):
        buffer.close()
    assert live()[number_of(buffer)].failed
    buffer.close()
    assert live() == {}


class Watching(Plain):
    """Looks at the report while it is asked to free."""

    seen = ()

    def deallocate(self, ptr, size, *, stream=None):
        self.seen = tuple(live().values())
        super().deallocate(ptr, size, stream=stream)


def test_a_release_that_is_under_way(device):
    resource = Watching()
    buffer = resource.allocate(64)
    number = number_of(buffer)
    buffer.close()
    assert [(one.serial, one.busy) for one in resource.seen] == [(number, True)]


def test_queued_releases(device, stream):
    buffer = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
    number, address = number_of(buffer), buffer.handle
    with Gate(stream):
        assert buffer.close(wait=False).name == "QUEUED"
        seen = report()
        assert seen.resources == ()
        (one,) = seen.queued
        assert (one.serial, one.address, one.size, one.state) == (number, address, GRANULE, "WAITING")
        assert (one.resource, one.place) == ("VirtualMemoryResource", "device 0")
        assert (seen.count, seen.size) == (1, GRANULE)
        assert "WAITING" in str(seen)
    assert drain(20)
    assert report().count == 0


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_release_that_the_queue_was_refused(device, stream, driver_watch):
    buffer = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
    part = buffer[:64]
    number = number_of(buffer)
    buffer.close()
    with (
        driver_watch.fail("cuMemUnmap", result="CUDA_ERROR_UNKNOWN"),
        pytest.warns(match="could not be returned"),
    ):
        part.close()
    assert [(one.serial, one.state) for one in report().queued] == [(number, "REFUSED")]
    VirtualMemoryResource(device).allocate(GRANULE).close()  # what was refused is tried again
    drain(20)
    assert report().count == 0


def test_the_table_and_the_json(device):
    resource = LegacyPinnedMemoryResource()
    buffers = [resource.allocate(64 * (number + 1)) for number in range(30)]
    seen = report()
    text = str(seen)
    lines = text.splitlines()
    assert lines[0] == f"{bytes_text(seen.size)} live in 30 allocations"
    assert f"#{number_of(buffers[-1])} " in lines[4]  # the largest
    assert "and 20 more" in text
    assert sum(line.lstrip().startswith("#") for line in seen.to_text().splitlines()) == 30
    whole = json.loads(seen.to_json())
    assert whole == json.loads(json.dumps(seen.to_dict()))
    assert (whole["count"], whole["size"]) == (30, seen.size)
    assert whole["resources"][0]["allocations"][0]["address"] == buffers[0].handle
    for buffer in buffers:
        buffer.close()
    assert str(report()) == "nothing is live"
    assert seen.count == 30  # of the moment at which it was made


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (100 * 1024 + 512, "100 KiB"),
        (15 << 20 | 1 << 19, "15.5 MiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_sizes_in_words(size, text):
    assert bytes_text(size) == text


def test_it_keeps_nothing_alive(device, stream):
    resource = DeviceMemoryResource(device, {})
    buffer = resource.allocate(64, stream=stream)
    seen = report()
    del buffer
    gc.collect()
    del resource
    gc.collect()
    drain(20)
    assert report().count == 0
    assert seen.count == 1
    assert "pools" not in _counters.live()


def test_no_driver_call_and_no_python_of_a_built_in(device, source, driver_watch):
    buffer = source.allocate()
    with driver_watch.no_call():
        report()
    buffer.close()


class WithoutDevice(Plain):
    @property
    def device_id(self):
        raise RuntimeError("no device")


class WithOddDevice(Plain):
    device_id = "left"


@pytest.mark.parametrize("kind", [WithoutDevice, WithOddDevice])
def test_a_resource_that_does_not_say_its_device(device, kind):
    buffer = kind().allocate(64)
    (resource,) = report().resources
    assert resource.device_id == -1
    buffer.close()


def test_a_buffer_is_one_object_of_at_most_160_bytes():
    header = 16  # of an object; without a GIL it is 16 bytes more
    for kind in (Buffer, Allocation, ManagedBuffer):
        assert kind.__basicsize__ - object.__basicsize__ + header <= 160


def test_every_number_is_seen_once_while_threads_allocate_and_close(device):
    """Looking against allocating, closing and handing over: what stays is seen every time, and nothing twice."""
    pinned = LegacyPinnedMemoryResource()
    kept = [pinned.allocate(64) for _ in range(20)]
    numbers = {number_of(buffer) for buffer in kept}
    stop, turns = threading.Event(), [0, 0, 0]

    def until_stopped(number, work, enough):
        try:
            while not stop.is_set() and not enough():
                work()
                turns[number] += 1
        finally:
            stop.set()

    def churn():
        buffer = pinned.allocate(64)
        Buffer.adopt(buffer.detach()).close()

    def look():
        seen = [facts[0] for facts in _inventory.live_allocations()]
        assert len(seen) == len(set(seen))
        assert numbers <= set(seen)

    outcomes = race(
        in_context(lambda: until_stopped(0, churn, lambda: False)),
        in_context(lambda: until_stopped(1, churn, lambda: False)),
        lambda: until_stopped(2, look, lambda: turns[2] >= 200 and min(turns) >= 20),
    )
    assert outcomes == [None, None, None]
    assert min(turns) >= 20
    for buffer in kept:
        buffer.close()
    assert report().count == 0


def test_a_finalizer_that_looks(device):
    """The report is made while a buffer is going: it is not seen with a reference that would end it twice."""
    seen = []

    class Looks:
        def __init__(self, buffer):
            self.buffer = buffer

        def __del__(self):
            seen.append(report().count)

    for _ in range(3):
        looks = Looks(LegacyPinnedMemoryResource().allocate(64))
        looks.buffer.__class__  # noqa: B018
        looks.me = looks
    del looks
    gc.collect()
    drain(20)
    assert len(seen) == 3
    assert report().count == 0


CHILD = """
import os, sys, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # newer Pythons warn of threads, and drivers have some
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource, memory_report
Device(0).set_current()
kept = LegacyPinnedMemoryResource().allocate(64)
assert memory_report().count == 1
read, write = os.pipe()
pid = os.fork()
if not pid:
    own = Buffer.from_handle(4096, 64, deallocate=lambda *given: None)
    counts = memory_report().count
    own.close()
    os.write(write, f"{counts} {memory_report().count}".encode())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(os.read(read, 100).decode(), memory_report().count)
kept.close()
print(memory_report().count)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_has_nothing_of_the_parents():
    code = CHILD.replace("deallocate=lambda *given: None", "owner=sys")  # the driver cannot be used there
    assert child_output(code).split() == ["0", "0", "1", "0"]


def test_a_reserve_does_not_count_as_memory(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=16 * GRANULE))
    buffer = resource.allocate(GRANULE)
    assert report().size == GRANULE
    buffer.close()
