# SPDX-License-Identifier: Apache-2.0
"""Resources around resources: each layer hears of every free once, the outer one first."""

import ctypes
import gc

import pytest

from buffer_kinds import BUILT_IN, ENDINGS, FREES, WITH_RESOURCE, end
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    MemoryResource,
    Ownership,
)
from cuda.core.adaptors import MemoryResourceAdaptor
from python_resources import Plain
from support import fill, given_back, holds, in_context, race, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


class Wrapper(MemoryResource):
    """What both ways of wrapping share: a log of what this layer was asked, and the inner resource's answers."""

    def __init__(self, inner, log):
        self.inner = inner
        self.log = log

    @property
    def is_device_accessible(self):
        return self.inner.is_device_accessible

    @property
    def is_host_accessible(self):
        return self.inner.is_host_accessible

    @property
    def device_id(self):
        return self.inner.device_id


class Detaching(Wrapper):
    """Takes the memory out of the inner buffer and owns it; frees through the inner resource."""

    def allocate(self, size, *, stream=None):
        allocation = self.inner.allocate(size, stream=stream or LEGACY_DEFAULT_STREAM).detach()
        address, size = allocation.handle, allocation.size
        allocation.handed_over()
        return Buffer.from_handle(address, size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.log.append((self, ptr, size))
        self.inner.deallocate(ptr, size, stream=stream)


class KeepingAllocations(Wrapper):
    """Like `Detaching`, but keeps the allocation until the inner resource has freed it."""

    def __init__(self, inner, log):
        super().__init__(inner, log)
        self.allocations = {}

    def allocate(self, size, *, stream=None):
        allocation = self.inner.allocate(size, stream=stream or LEGACY_DEFAULT_STREAM).detach()
        self.allocations[allocation.handle] = allocation
        return Buffer.from_handle(allocation.handle, allocation.size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.log.append((self, ptr, size))
        # The entry goes before the free: the moment the address is free, it may be another thread's.
        allocation = self.allocations.pop(ptr)
        try:
            self.inner.deallocate(ptr, size, stream=stream)
        except BaseException:
            self.allocations[ptr] = allocation
            raise
        if allocation.ownership is Ownership.OWNED:
            allocation.handed_over()  # a resource written in Python has freed an address and knows of no allocation


class KeepingBuffers(Wrapper):
    """Keeps the inner buffer and closes it."""

    def __init__(self, inner, log):
        super().__init__(inner, log)
        self.buffers = {}

    def allocate(self, size, *, stream=None):
        buffer = self.inner.allocate(size, stream=stream or LEGACY_DEFAULT_STREAM)
        self.buffers[buffer.handle] = buffer
        return Buffer.from_handle(buffer.handle, buffer.size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.log.append((self, ptr, size))
        buffer = self.buffers.pop(ptr)  # before the free, as above
        try:
            buffer.close(stream)
        except BaseException:
            self.buffers[ptr] = buffer
            raise


WRAPPERS = [Detaching, KeepingAllocations, KeepingBuffers]


@pytest.fixture(params=WITH_RESOURCE.values(), ids=WITH_RESOURCE)
def source(request, device):
    return request.param(device)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_layer_is_asked_once(source, wrapper, how):
    log = []
    outer = wrapper(source.resource, log)
    box = [outer.allocate(source.size)]
    address = box[0].handle
    assert box[0].memory_resource is outer
    assert box[0].size == source.size
    fill(address, source.size, seed=1)
    assert holds(address, source.size, seed=1)
    end(box, how)
    assert log == [(outer, address, source.size)]
    assert source.frees() in (None, 1)
    assert given_back(address)


@pytest.mark.parametrize("middle", WRAPPERS)
@pytest.mark.parametrize("outermost", WRAPPERS)
@pytest.mark.parametrize("how", ["close", "drop"])
def test_layers_on_layers_hear_of_a_free_from_the_outside_in(source, outermost, middle, how):
    log = []
    second = middle(source.resource, log)
    first = outermost(second, log)
    box = [first.allocate(source.size) for _ in range(1)]
    address = box[0].handle
    end(box, how)
    assert log == [(first, address, source.size), (second, address, source.size)]
    assert source.frees() in (None, 1)
    assert given_back(address)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_stream_goes_through_all_layers(device, wrapper):
    stream, inner = device.create_stream(), Plain()
    outer = wrapper(wrapper(inner, []), [])
    outer.allocate(4096, stream=stream).close()
    assert int(inner.asked[0][2].handle) == int(stream.handle)
    inner.asked.clear()
    stream.close()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_many_buffers_of_a_wrapper_in_any_order(source, wrapper):
    outer = wrapper(source.resource, [])
    buffers = [outer.allocate(source.size) for _ in range(20)]
    addresses = [buffer.handle for buffer in buffers]
    assert len(set(addresses)) == 20
    for index in (*range(0, 20, 3), *range(1, 20, 3), *range(2, 20, 3)):
        assert buffers[index].close() is CloseResult.DONE
        assert given_back(addresses[index])
        assert sum(map(still_allocated, addresses)) == sum(not buffer.is_closed for buffer in buffers)
    assert len(outer.log) == 20


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_and_its_buffers_collected_together(source, wrapper):
    log = []
    outer = wrapper(source.resource, log)
    outer.own_buffers = [outer.allocate(source.size) for _ in range(3)]
    addresses = sorted(buffer.handle for buffer in outer.own_buffers)
    with warnings_seen() as seen:
        del outer
        gc.collect()
    assert seen == []
    assert sorted(entry[1] for entry in log) == addresses
    assert all(map(given_back, addresses))
    log.clear()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", BUILT_IN)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_free_that_fails_below_is_tried_again_from_above(device, driver_watch, wrapper, kind):
    source = WITH_RESOURCE[kind](device)
    free = FREES[kind] if kind != "virtual" else "cuMemAddressFree"
    outer = wrapper(source.resource, [])
    buffer = outer.allocate(source.size)
    address = buffer.handle
    with driver_watch.fail(free):
        with pytest.raises(CUDAError, match=free):
            buffer.close()
    assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
    assert buffer.close() is CloseResult.DONE
    assert len(outer.log) == 2
    assert given_back(address)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_layer_that_refuses_stops_the_free(wrapper):
    class Refuses(wrapper):
        refusals = 1

        def deallocate(self, ptr, size, *, stream=None):
            if self.refusals:
                self.refusals -= 1
                raise LookupError("not now")
            super().deallocate(ptr, size, stream=stream)

    inner = Plain()
    outer = Refuses(inner, [])
    buffer = outer.allocate(4096)
    address = buffer.handle
    with pytest.raises(LookupError):
        buffer.close()
    assert inner.asked == []
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert [entry[:2] for entry in inner.asked] == [(address, 4096)]


def test_an_inner_buffer_that_was_closed_by_mistake_is_no_double_free():
    """The wrapper keeps a buffer that somebody closes behind its back: the outer close frees nothing twice."""
    inner = Plain()
    outer = KeepingBuffers(inner, [])
    buffer = outer.allocate(4096)
    outer.buffers[buffer.handle].close()
    assert buffer.close() is CloseResult.DONE
    assert len(inner.asked) == 1


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_detached_buffer_of_a_wrapper_is_adopted_and_freed_through_it(source, wrapper):
    outer = wrapper(source.resource, [])
    allocation = outer.allocate(source.size).detach()
    address = allocation.handle
    assert allocation.memory_resource is outer
    adopted = Buffer.adopt(allocation)
    assert outer.log == []
    assert adopted.close() is CloseResult.DONE
    assert [entry[1:] for entry in outer.log] == [(address, source.size)]
    assert given_back(address)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_loans_hold_a_wrapped_buffer(source, wrapper):
    outer = wrapper(source.resource, [])
    buffer = outer.allocate(source.size)
    address, loan = buffer.handle, buffer[8:16]
    assert buffer.close() is CloseResult.LENT
    assert outer.log == []
    assert still_allocated(address)
    loan.close()
    assert [entry[1:] for entry in outer.log] == [(address, source.size)]
    assert given_back(address)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_threads_share_a_wrapper(source, wrapper):
    outer = wrapper(source.resource, [])
    stream = source.device.create_stream()

    def work():
        addresses = []
        for _ in range(20):
            buffer = outer.allocate(source.size, stream=stream)
            addresses.append(buffer.handle)
            assert buffer.close() is CloseResult.DONE
        return addresses

    outcomes = race(*[in_context(work)] * 4)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(outer.log) == 80
    assert all(given_back(address) for outcome in outcomes for address in outcome)
    if source.frees() is not None:
        source.resource.asked.clear()
    stream.close()


def test_a_wrapper_dropped_with_an_open_buffer_is_reported_when_its_layer_raises():
    class Raises(Detaching):
        def deallocate(self, ptr, size, *, stream=None):
            raise LookupError("never")

    inner = Plain()
    buffer = Raises(inner, []).allocate(4096)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert inner.asked == []
    inner.give_back(address)


class HostMemory(MemoryResource):
    """Memory of Python's own, of which no driver knows."""

    is_device_accessible, is_host_accessible, device_id = False, True, -1

    def __init__(self):
        self.blocks = {}
        self.streams = []

    def allocate(self, size, *, stream=None):
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return Buffer.from_handle(ctypes.addressof(block), size, mr=self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.streams.append(stream)
        del self.blocks[ptr]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_memory_without_a_stream_is_freed_through_a_wrapper_where_no_context_is_current(how):
    inner = HostMemory()
    outer = MemoryResourceAdaptor(inner)

    def work():
        box = [outer.allocate(512)]
        end(box, how)
        return "done"

    with warnings_seen() as seen:
        assert race(work) == ["done"]
    assert (seen, inner.blocks) == ([], {})
    assert inner.streams == [LEGACY_DEFAULT_STREAM]


def test_a_default_stream_is_still_refused_there_for_memory_that_has_one(device):
    buffer = Plain().allocate(512)
    (error,) = race(lambda: buffer.close(LEGACY_DEFAULT_STREAM))
    assert isinstance(error, RuntimeError)
    assert "no CUDA context is current" in str(error)
    assert buffer.close() is CloseResult.DONE
