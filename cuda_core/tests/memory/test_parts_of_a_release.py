# SPDX-License-Identifier: Apache-2.0
"""What an author's ``deallocate`` releases does about streams what the release does that has asked for it."""

import gc
import threading

import pytest

from buffer_kinds import SOURCES
from captures import capture, capturing, end_capture
from cuda.core import Buffer, CloseResult, CUDAError, CUDAWarning, MemoryResource, Ownership
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from cuda.core.adaptors import LimitAdaptor, MemoryResourceAdaptor, StatisticsAdaptor
from held_work import Gate
from support import GRANULE, calls_in_order, still_allocated, warnings_seen

BUILT_IN = {name: kind for name, kind in SOURCES.items() if kind.built_in}
WAITS = [name for name, kind in BUILT_IN.items() if not kind.frees_in_order]


class Adapted:
    """A source whose buffers are freed by a ``deallocate`` that closes a buffer of a built-in resource."""

    def __init__(self, device, kind):
        self.source = BUILT_IN[kind](device)
        self.resource = self.wrap(self.source.resource)

    def wrap(self, inner):
        return MemoryResourceAdaptor(inner)

    def allocate(self, stream):
        return self.source.allocate(resource=self.resource, stream=stream)


class TwiceAdapted(Adapted):
    def wrap(self, inner):
        return StatisticsAdaptor(LimitAdaptor(inner, 1 << 40))


class Subclassed(Adapted):
    """A subclass of the built-in resource that hands the free on to it."""

    def wrap(self, inner):
        class Handing(type(inner)):
            def deallocate(self, ptr, size, *, stream=None):
                super().deallocate(ptr, size, stream=stream)

        return Handing(*self.source.arguments)


class ByFunction(Adapted):
    """No resource: a function that was given to ``from_handle`` closes the inner buffer."""

    def allocate(self, stream):
        inner = self.source.allocate(stream=stream)
        return Buffer.from_handle(
            inner.handle, inner.size, stream=stream, deallocate=lambda ptr, size, stream: inner.close(stream)
        )


class Detaching(MemoryResource):
    """Keeps no inner buffers, and frees by the ``deallocate`` of the resource inside, by address."""

    is_device_accessible, is_host_accessible, device_id = True, False, 0

    def __init__(self, inner):
        self.inner = inner

    def allocate(self, size, *, stream=None):
        allocation = self.inner.allocate(size, stream=stream).detach()
        address, size = allocation.handle, allocation.size
        allocation.handed_over()
        return Buffer.from_handle(address, size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.inner.deallocate(ptr, size, stream=stream)


class ByAddress(Adapted):
    def wrap(self, inner):
        return Detaching(inner)


class KeepingAllocations(Detaching):
    """The same, of memory that an ``Allocation`` has."""

    def __init__(self, inner):
        super().__init__(inner)
        self.allocations = {}

    def allocate(self, size, *, stream=None):
        allocation = self.inner.allocate(size, stream=stream).detach()
        self.allocations[allocation.handle] = allocation
        return Buffer.from_handle(allocation.handle, allocation.size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        allocation = self.allocations.pop(ptr)
        try:
            self.inner.deallocate(ptr, size, stream=stream)
        except BaseException:
            self.allocations[ptr] = allocation
            raise


class ByAllocation(Adapted):
    def wrap(self, inner):
        return KeepingAllocations(inner)


WAYS = [Adapted, TwiceAdapted, Subclassed, ByFunction, ByAddress, ByAllocation]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request):
    return request.param


def queued():
    return _counters.live().get("queued", 0)


def drop(buffer, how):
    """Let the only reference go that a list has."""
    if how == "last loan":
        part = buffer[0][0:16]
        assert buffer.pop().close() is CloseResult.LENT
        part.close()
    elif how == "cycle":
        buffer.append(buffer)
        buffer = None
        gc.collect()
    else:
        buffer.pop()


@pytest.mark.parametrize("how", ["drop", "cycle", "last loan"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_dropped_behind_a_capture_it_is_returned_when_that_is_over(device, way, kind, how):
    """It stayed allocated: the collection asks once, and the inner buffer was refused."""
    source = way(device, kind)
    stream = device.create_stream()
    box = [source.allocate(stream)]
    with warnings_seen() as seen:
        with capturing(stream):
            drop(box, how)
            del box
            gc.collect()
        assert drain(20)
    assert [str(one.message) for one in seen] == []
    stream.close()  # and nothing is left: the end of each test looks


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["drop", "cycle", "last loan"])
@pytest.mark.parametrize("kind", WAITS)
def test_a_collection_waits_for_no_work(device, way, kind, how, stream):
    source = way(device, kind)
    box = [source.allocate(stream)]
    address = box[0].handle
    with Gate(stream) as gate:
        drop(box, how)
        del box
        gc.collect()
        assert not gate.is_open
        assert queued() == 1
        assert still_allocated(address)
        gate.open()
        assert drain(20)
    assert not still_allocated(address)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_close_that_does_not_wait_queues_what_would_wait(device, way, kind, stream):
    source = way(device, kind)
    buffer = source.allocate(stream)
    with Gate(stream) as gate:
        expected = CloseResult.QUEUED if kind in WAITS else CloseResult.DONE
        assert buffer.close(wait=False) is expected
        assert buffer.ownership is Ownership.RELEASED
        assert queued() == (kind in WAITS)
        gate.open()
        assert drain(20)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_close_waits_as_before(device, way, kind, stream):
    source = way(device, kind)
    for _ in range(3):
        buffer = source.allocate(stream)
        address = buffer.handle
        assert buffer.close() is CloseResult.DONE
        assert queued() == 0
        if kind in WAITS:
            assert not still_allocated(address)


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_close_in_a_capture_is_refused_and_can_be_made_again(device, way, kind, wait):
    source = way(device, kind)
    stream = device.create_stream()
    buffer = source.allocate(stream)
    capture(stream)
    with pytest.raises(CUDAError, match="being captured"):
        buffer.close(wait=wait)
    assert buffer.ownership is Ownership.OWNED
    end_capture(stream)
    assert buffer.close() is CloseResult.DONE
    stream.close()


class FailsFirst(MemoryResourceAdaptor):
    failing = True

    def deallocate(self, ptr, size, *, stream=None):
        if self.failing:
            raise LookupError("not now")
        super().deallocate(ptr, size, stream=stream)


@pytest.mark.parametrize("kind", WAITS)
def test_behind_a_collection_whose_deallocate_raised_a_close_waits_again(device, kind, stream):
    source = BUILT_IN[kind](device)
    mr = FailsFirst(source.resource)
    box = [source.allocate(resource=mr, stream=stream)]
    address, size = box[0].handle, box[0].size
    with warnings_seen() as seen:
        box.clear()
    assert [one.category for one in seen] == [CUDAWarning]
    mr.failing = False
    buffer = source.allocate(resource=mr, stream=stream)
    assert buffer.close() is CloseResult.DONE
    assert queued() == 0
    mr.deallocate(address, size, stream=stream)
    assert not still_allocated(address)


class DropsAnother(MemoryResourceAdaptor):
    """Lets the collector run in the middle, and find a buffer that is nobody's."""

    other = None

    def deallocate(self, ptr, size, *, stream=None):
        self.other = None
        gc.collect()
        super().deallocate(ptr, size, stream=stream)


@pytest.mark.sim_only
@pytest.mark.parametrize("adapted", [True, False])
def test_a_collection_in_the_middle_of_a_close_is_no_part_of_it(device, adapted, stream):
    """It waits for nothing, and the close waits, and says that all of its own is done."""
    source = BUILT_IN["virtual"](device)  # the free of any other would wait for the whole device
    busy = device.create_stream()
    mr = DropsAnother(source.resource)
    buffer = source.allocate(resource=mr, stream=stream)
    another = MemoryResourceAdaptor(source.resource) if adapted else source.resource
    mr.other = source.allocate(resource=another, stream=busy)
    address = buffer.handle
    with Gate(busy) as gate:
        assert buffer.close() is CloseResult.DONE
        assert not gate.is_open
        assert not still_allocated(address)
        assert queued() == 1
        gate.open()
        assert drain(20)
    busy.close()


@pytest.mark.sim_only
def test_a_last_loan_that_ends_in_the_middle_of_a_close_is_no_part_of_it(device, stream):
    """What held it was closed before, by somebody else."""
    source = BUILT_IN["virtual"](device)
    busy = device.create_stream()
    mr = DropsAnother(source.resource)
    buffer = source.allocate(resource=mr, stream=stream)
    another = source.allocate(stream=busy)
    mr.other = another[0:16]
    assert another.close() is CloseResult.LENT
    with Gate(busy) as gate:
        assert buffer.close() is CloseResult.DONE
        assert not gate.is_open
        assert queued() == 1
        gate.open()
        assert drain(20)
    busy.close()


@pytest.mark.sim_only
def test_addresses_that_a_grow_has_kept_are_a_part(device, stream):
    resource = BUILT_IN["virtual"](device).resource
    old = resource.allocate(GRANULE, stream=stream)
    behind = resource.allocate(GRANULE, stream=stream)  # so that the grow has to move
    new = resource.modify_allocation(old, 64 * GRANULE, keep_old=True)
    assert new.handle != old.handle
    outer = Buffer.from_handle(
        new.handle, new.size, stream=stream, deallocate=lambda ptr, size, stream: old.close(stream)
    )
    with Gate(stream) as gate:
        assert outer.close(wait=False) is CloseResult.QUEUED
        assert queued() == 1
        gate.open()
        assert drain(20)
    new.close()
    behind.close()


FREES = {"virtual": "cuMemUnmap", "pinned": "cuMemFreeHost", "device": "cuMemFree"}


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", FREES)
def test_what_the_driver_refuses_is_told_and_tried_again(device, driver_watch, way, kind, stream):
    """Of the whole nobody is left who could ask once more: the part is with the queue."""
    source = way(device, kind)
    box = [source.allocate(stream)]
    with warnings_seen() as seen:
        with driver_watch.fail(FREES[kind], result="CUDA_ERROR_UNKNOWN"):
            box.clear()
            drain(20)
        assert BUILT_IN[kind](device).allocate(stream=stream).close() is CloseResult.DONE
        for _ in range(200):
            if drain(20) and not _counters.live().get("stuck", 0):
                break
        gc.collect()
    assert [one.category for one in seen] == [CUDAWarning]
    assert "stays allocated until a later attempt succeeds" in str(seen[0].message)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["pinned", "device"])
def test_what_is_not_told_whether_its_context_is_there_is_left_to_the_queue(
    device, driver_watch, way, kind, stream
):
    """It stayed allocated: the question was refused, and a collection asks once."""
    source = way(device, kind)

    def end(box):
        box.clear()
        drain(20)

    _, calls = calls_in_order(driver_watch, lambda: end([source.allocate(stream)]))
    times = [nth for name, nth in calls if name == "cuCtxGetId"]
    assert times
    for nth in times:
        box = [source.allocate(stream)]
        address = box[0].handle
        with warnings_seen() as seen:
            with driver_watch.fail("cuCtxGetId", nth=nth, result="CUDA_ERROR_UNKNOWN"):
                end(box)
        assert [str(one.message) for one in seen] == []
        assert not still_allocated(address)


@pytest.mark.sim_only
def test_releases_that_end_in_another_order_than_they_began_in_leave_nothing_behind(device, stream):
    """The code of an author lets another greenlet go on in the middle of a free, as a lock does that cooperates."""
    import greenlet  # a machine with a GPU need not have it

    source = BUILT_IN["virtual"](device)

    def switching(inner):
        def free(ptr, size, stream):
            greenlet.getcurrent().parent.switch()
            inner.close(stream)

        return Buffer.from_handle(inner.handle, inner.size, stream=stream, deallocate=free)

    buffers = [switching(source.allocate(stream=stream)) for _ in range(3)]
    closing = [greenlet.greenlet(lambda one=one: one.close(wait=False)) for one in buffers]
    for _ in range(2):
        for one in closing:
            one.switch()
    assert all(one.dead for one in closing)
    assert drain(20)
    buffer = source.allocate(stream=stream)
    with Gate(stream) as gate:
        waiting = threading.Timer(0.1, gate.open)
        waiting.start()
        assert buffer.close() is CloseResult.DONE
        assert gate.is_open
        waiting.join()


class Sloppy(MemoryResource):
    """Frees by letting the inner buffer go, and by closing without a wait."""

    is_device_accessible, is_host_accessible, device_id = True, False, 0

    def __init__(self, inner, how):
        self.inner, self.how, self.buffers = inner, how, {}

    def allocate(self, size, *, stream=None):
        buffer = self.inner.allocate(size, stream=stream)
        self.buffers[buffer.handle] = buffer
        return Buffer.from_handle(buffer.handle, buffer.size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        buffer = self.buffers.pop(ptr)
        if self.how == "no wait":
            buffer.close(wait=False)


@pytest.mark.parametrize("how", ["drop", "no wait"])
@pytest.mark.parametrize("kind", WAITS)
def test_other_ways_to_let_the_inner_buffer_go(device, kind, how):
    source = BUILT_IN[kind](device)
    stream = device.create_stream()
    resource = Sloppy(source.resource, how)
    box = [source.allocate(resource=resource, stream=stream)]
    with warnings_seen() as seen:
        with capturing(stream):
            box.clear()
        assert drain(20)
    assert [str(one.message) for one in seen] == []
    stream.close()


@pytest.mark.sim_only
def test_a_collection_is_not_held_up_by_a_full_queue(device, stream):
    source = BUILT_IN["pinned"](device)
    resource = Sloppy(source.resource, "no wait")
    box = [resource.allocate(64, stream=stream)]
    buffers = [source.allocate(stream=stream) for _ in range(1024)]
    with Gate(stream) as gate:
        for buffer in buffers:
            assert buffer.close(wait=False) is CloseResult.QUEUED
        assert queued() == 1024
        box.clear()
        assert not gate.is_open
        assert queued() == 1025
        gate.open()
        assert drain(60)
