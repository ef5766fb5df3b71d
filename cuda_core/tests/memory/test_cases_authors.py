# SPDX-License-Identifier: Apache-2.0
"""Failures that authors of memory resources reported, a test each, named by the id of its case."""

import ctypes
import gc
import threading
import time

import pytest

from buffer_kinds import ENDINGS, end
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAWarning,
    MemoryResource,
    Ownership,
    Stream,
    VirtualMemoryResource,
)
from python_resources import (
    ClosesWhatItFrees,
    KeywordSignature,
    Plain,
    PositionalSignature,
    Refusing,
    WideSignature,
)
from support import GRANULE, check, fill, given_back, holds, in_context, race, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


# --- auth-01 -----------------------------------------------------------------------------------------------------


class HostMemory(MemoryResource):
    """Memory that Python itself owns; no driver has a part in it."""

    is_device_accessible = False
    is_host_accessible = True
    device_id = -1

    def __init__(self):
        self.blocks = {}
        self.freed = []

    def allocate(self, size, *, stream=None):
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return Buffer.from_handle(ctypes.addressof(block), size, mr=self)

    def deallocate(self, ptr, size, *, stream=None):
        self.freed.append((ptr, size))
        del self.blocks[ptr]


@pytest.mark.parametrize("how", ENDINGS)
def test_auth_01_a_resource_given_to_from_handle_is_asked_to_free(how, quiet):
    resource = HostMemory()
    box = [resource.allocate(100)]
    address = box[0].handle
    with memoryview(box[0]) as view:
        view[:5] = b"bytes"
    assert resource.blocks[address].raw[:5] == b"bytes"
    del view
    end(box, how)
    assert resource.freed == [(address, 100)]
    assert resource.blocks == {}


# --- auth-02 -----------------------------------------------------------------------------------------------------


def test_auth_02_a_deallocate_that_raises_stops_the_close():
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with pytest.raises(LookupError, match="not now"):
        buffer.close()
    assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.parametrize("how", ["drop", "cycle"])
def test_auth_02_a_deallocate_that_raises_in_a_collection_is_reported_once(how):
    resource = Refusing(refusals=1)
    box = [resource.allocate(512)]
    address = box[0].handle
    with warnings_seen() as seen:
        end(box, how)
        gc.collect()
    (warning,) = seen
    assert warning.category is CUDAWarning
    assert "not now" in str(warning.message)
    assert f"{address:x}" in str(warning.message).lower()
    assert resource.asked == ["refused"]
    resource.give_back(address)


# --- auth-03 -----------------------------------------------------------------------------------------------------


def test_auth_03_a_deallocate_comes_back_into_the_library(device):
    """It closes the buffer that it is freeing, and allocates and closes another; in several threads at once."""
    virtual = VirtualMemoryResource(device)
    resource = ClosesWhatItFrees(virtual)
    stream = device.create_stream()

    def work():
        for _ in range(20):
            assert resource.allocate(512, stream=stream).close() is CloseResult.DONE
        return "done"

    assert race(*[in_context(work)] * 3) == ["done"] * 3
    assert len(resource.asked) == 60
    assert resource.inner.count(CloseResult.NOTHING) == 60
    assert resource.held == {}
    resource.asked.clear()
    stream.close()


# --- auth-04 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["the device", "the resource"])
def test_auth_04_each_buffer_is_freed_by_the_resource_that_made_it(device, through):
    """The allocator in use changes while buffers live."""
    resources = [Plain() for _ in range(3)]
    before = device.memory_resource
    buffers = []
    for index in range(12):
        device.memory_resource = resources[index % 3]
        allocate = device.allocate if through == "the device" else resources[index % 3].allocate
        buffers.append(allocate(256 + index, stream=device.default_stream))
    device.memory_resource = before
    made_by = [(buffer.memory_resource, buffer.handle, buffer.size) for buffer in buffers]
    resources.reverse()
    for index, how in enumerate(ENDINGS * 3):
        box = [buffers[0]]
        del buffers[0]
        end(box, how)
        maker, address, size = made_by[index]
        assert maker.asked.pop()[:2] == (address, size)
    assert all(resource.asked == [] for resource in resources)
    assert all(resource.held == {} for resource in resources)


# --- auth-05 -----------------------------------------------------------------------------------------------------


class WrittenForTheRelease(MemoryResource):
    """As such plug-ins are written: it synchronises the stream it gets, without looking whether there is one."""

    def __init__(self, device):
        self._device = device
        self.freed = 0

    def allocate(self, size, stream=None) -> Buffer:
        return Buffer.from_handle(ptr=check(driver.cuMemAlloc(size)), size=size, mr=self)

    def deallocate(self, ptr, size, stream=None):
        stream.sync()
        check(driver.cuMemFree(ptr))
        self.freed += 1

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._device.device_id


@pytest.mark.parametrize("how", ENDINGS)
def test_auth_05_a_subclass_written_for_the_release_runs_unchanged(device, how, quiet):
    resource = WrittenForTheRelease(device)
    box = [resource.allocate(4096)]
    address = box[0].handle
    assert isinstance(address, int)
    fill(address, 4096, seed=1)
    assert holds(address, 4096, seed=1)
    end(box, how)
    assert resource.freed == 1
    assert given_back(address)


@pytest.mark.parametrize("where", ["same thread", "another thread"])
def test_auth_05_the_stream_is_live_wherever_the_release_happens(device, where):
    resource = Plain()
    buffer = resource.allocate(512)
    if where == "same thread":
        buffer.close()
    else:
        assert race(buffer.close) == [CloseResult.DONE]
    stream = resource.asked[0][2]
    assert isinstance(stream, Stream)
    assert not stream.is_closed
    stream.sync()


# --- auth-06 -----------------------------------------------------------------------------------------------------


class SlowInner(Plain):
    """Takes its time after it has freed: in that time the address may be given out again."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def take(self, size):
        with self.lock:
            return super().take(size)

    def deallocate(self, ptr, size, *, stream=None):
        with self.lock:
            super().deallocate(ptr, size)
        time.sleep(0.001)


class Tracking(MemoryResource):
    """Knows which of its addresses are open, and how large they are; notices when it is wrong."""

    is_device_accessible = True
    is_host_accessible = False
    device_id = 0

    def __init__(self, inner):
        self.inner = inner
        self.lock = threading.Lock()
        self.open = {}
        self.order = []

    def allocate(self, size, *, stream=None):
        allocation = self.inner.allocate(size, stream=stream).detach()
        address = allocation.handle
        allocation.handed_over()
        with self.lock:
            assert address not in self.open, "given out twice, or not forgotten in time"
            self.open[address] = size
        return Buffer.from_handle(address, size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        with self.lock:
            assert self.open.pop(ptr) == size
            self.order.append("outer")
        self.inner.deallocate(ptr, size, stream=stream)
        self.order.append("inner")


@pytest.mark.parametrize("inner", [SlowInner, lambda: VirtualMemoryResource(0)], ids=["python", "virtual"])
def test_auth_06_a_tracking_wrapper_is_never_wrong(device, inner):
    resource = Tracking(inner())
    stream = device.create_stream()
    size = GRANULE

    def work():
        for number in range(15):
            buffer = resource.allocate(size, stream=stream)
            if number % 2:
                assert buffer.close() is CloseResult.DONE
            del buffer
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4
    gc.collect()
    assert resource.open == {}
    assert resource.order.count("outer") == resource.order.count("inner") == 60
    if isinstance(resource.inner, SlowInner):
        assert resource.inner.held == {}
        resource.inner.asked.clear()
    stream.close()


def test_auth_06_the_outer_layer_is_asked_first():
    inner = Plain()
    resource = Tracking(inner)
    resource.allocate(4096).close()
    assert resource.order == ["outer", "inner"]
    assert len(inner.asked) == 1


# --- auth-07 -----------------------------------------------------------------------------------------------------


class Counting(Plain):
    """Counts the references of one address, and hands out a second owner of it."""

    def __init__(self):
        super().__init__()
        self.references = {}

    def allocate(self, size, *, stream=None):
        buffer = super().allocate(size, stream=stream)
        self.references[buffer.handle] = 1
        return buffer

    def shadow(self, buffer):
        self.references[buffer.handle] += 1
        return Buffer.from_handle(buffer.handle, buffer.size, mr=self)

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size))
        self.references[ptr] -= 1
        if self.references[ptr] == 0:
            self.give_back(ptr)


@pytest.mark.parametrize("first", ["original", "shadow"])
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("other_how", ENDINGS)
def test_auth_07_a_second_owner_of_a_counting_resource(first, how, other_how, quiet):
    resource = Counting()
    boxes = [[resource.allocate(512)]]
    boxes.append([resource.shadow(boxes[0][0])])
    address = boxes[0][0].handle
    assert [box[0].ownership for box in boxes] == [Ownership.OWNED] * 2
    if first == "shadow":
        boxes.reverse()
    end(boxes[0], how)
    assert (resource.asked, resource.held) == ([(address, 512)], {address: 512})
    end(boxes[1], other_how)
    assert (resource.asked, resource.held) == ([(address, 512)] * 2, {})


# --- auth-08 -----------------------------------------------------------------------------------------------------


class Collective(Plain):
    """Every process has to take part in a free, so it must not come from the collector."""

    def __init__(self):
        super().__init__()
        self.expected = set()
        self.logged = []

    def free(self, buffer):
        self.expected.add(buffer.handle)
        buffer.close()


class Raising(Collective):
    def deallocate(self, ptr, size, *, stream=None):
        if ptr not in self.expected:
            self.logged.append(ptr)
            raise RuntimeError("free it explicitly, in all processes")
        super().deallocate(ptr, size, stream=stream)


class Logging(Collective):
    def deallocate(self, ptr, size, *, stream=None):
        if ptr not in self.expected:
            self.logged.append(ptr)
            return
        super().deallocate(ptr, size, stream=stream)


@pytest.mark.parametrize("how", ["drop", "cycle"])
@pytest.mark.parametrize(("kind", "reports"), [(Raising, 1), (Logging, 0)])
def test_auth_08_a_resource_that_must_not_free_from_the_collector(kind, reports, how):
    resource = kind()
    box = [resource.allocate(512)]
    address = box[0].handle
    with warnings_seen() as seen:
        end(box, how)
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning] * reports
    assert resource.logged == [address], "asked once, never again"
    assert still_allocated(address)
    resource.give_back(address)


@pytest.mark.parametrize("kind", [Raising, Logging])
def test_auth_08_freed_explicitly_first(kind, quiet):
    resource = kind()
    buffer = resource.allocate(512)
    with warnings_seen() as seen:
        resource.free(buffer)
        assert buffer.ownership is Ownership.RELEASED
        del buffer
        gc.collect()
    assert seen == []
    assert resource.logged == []
    assert resource.held == {}


# --- auth-09 -----------------------------------------------------------------------------------------------------


class KeepsItsBuffers(MemoryResource):
    """Never calls the base class's initialiser, keeps its buffers, and looks at itself when it frees."""

    is_device_accessible = True
    is_host_accessible = False
    device_id = 0

    def __init__(self, log):
        self.log = log
        self.buffers = {}
        self.sizes = {}

    def allocate(self, size, stream=None):
        address = int(check(driver.cuMemAlloc(size)))
        self.sizes[address] = size
        self.buffers[address] = Buffer.from_handle(address, size, self)
        return self.buffers[address]

    def deallocate(self, ptr, size, stream=None):
        assert self.sizes[ptr] == size
        self.log.append((ptr, size, sorted(vars(self))))
        check(driver.cuMemFree(ptr))


@pytest.mark.parametrize("kept", [0, 2], ids=["all dropped", "two closed before"])
def test_auth_09_a_resource_and_its_buffers_dropped_together(kept, quiet):
    log = []
    resource = KeepsItsBuffers(log)
    expected = []
    for size in (256, 512, 1024, 2048):
        buffer = resource.allocate(size)
        expected.append((buffer.handle, size))
        del buffer
    for address, _ in expected[:kept]:
        assert resource.buffers[address].close() is CloseResult.DONE
    with warnings_seen() as seen:
        del resource
        gc.collect()
    assert seen == []
    assert sorted(entry[:2] for entry in log) == sorted(expected)
    assert all(entry[2] == ["buffers", "log", "sizes"] for entry in log)
    assert all(given_back(address) for address, _ in expected)


# --- auth-10 -----------------------------------------------------------------------------------------------------


class StreamByPosition(Plain):
    """``allocate`` takes its stream by position."""

    def allocate(self, size, stream):
        return super().allocate(size, stream=stream)

    def deallocate(self, ptr, size, stream, *, manual=False):
        assert manual is False
        super().deallocate(ptr, size, stream=stream)


class TakesAnything(Plain):
    """Notes how it is called."""

    def deallocate(self, *arguments, **keywords):
        assert [type(argument) for argument in arguments] == [int, int]
        assert list(keywords) == ["stream"]
        super().deallocate(*arguments, **keywords)


@pytest.mark.parametrize(
    "kind", [StreamByPosition, WideSignature, PositionalSignature, KeywordSignature, TakesAnything]
)
@pytest.mark.parametrize("how", ENDINGS)
def test_auth_10_every_signature_is_called_alike(device, kind, how, quiet):
    resource, stream = kind(), device.create_stream()
    box = [
        resource.allocate(512, stream) if kind is StreamByPosition else resource.allocate(512, stream=stream)
    ]
    address = box[0].handle
    end(box, how)
    ((ptr, size, handed),) = resource.asked
    assert (ptr, size, int(handed.handle)) == (address, 512, int(stream.handle))
    assert isinstance(handed, Stream)
    del handed
    resource.asked.clear()
    stream.close()
