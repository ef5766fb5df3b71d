# SPDX-License-Identifier: Apache-2.0
"""The queue: releases that wait behind a stream without anybody waiting for them."""

import gc
import sys
import time
import weakref

import pytest

from buffer_kinds import SOURCES, WAITING, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, Ownership, OwnershipError
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from held_work import Gate, Waiting, sleep_with_gil
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    check,
    child_output,
    free_memory,
    race,
    still_allocated,
    warnings_seen,
)


def queued():
    return _counters.live().get("queued", 0)


@pytest.fixture(params=WAITING)
def source(request, device):
    return SOURCES[request.param](device)


def capture(stream):
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(int(stream.handle), mode))


def end_capture(stream):
    graph = check(driver.cuStreamEndCapture(int(stream.handle)))
    assert int(graph) != 0
    check(driver.cuGraphDestroy(graph))


# --- close(wait=False) --------------------------------------------------------------------------------------------


def test_a_close_that_does_not_wait(source, stream):
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        assert buffer.ownership is Ownership.RELEASED
        assert (buffer.handle, buffer.size, buffer.is_closed, buffer.memory_resource) == (0, 0, True, None)
        assert buffer.close() is CloseResult.NOTHING
        assert buffer.close(wait=False) is CloseResult.NOTHING
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            buffer.detach()
        assert queued() == 1
        assert still_allocated(address)
        assert drain(0.05) is False
        assert still_allocated(address)
        assert not gate.is_open
        gate.open()
        assert drain(20) is True
        assert queued() == 0
        assert not still_allocated(address)


def test_without_work_in_flight_nothing_is_queued(source, stream):
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    stream.sync()
    assert buffer.close(wait=False) is CloseResult.DONE
    assert not still_allocated(address)
    assert queued() == 0
    assert drain() is True
    assert drain(0) is True


def test_waiting_is_the_default(source, stream):
    buffer = source.allocate(stream=stream)
    with Gate(stream) as gate:
        closing = Waiting(buffer.close)
        assert closing.waits()
        assert queued() == 0
        gate.open()
        assert closing.result() is CloseResult.DONE


@pytest.mark.parametrize("given", [True, False], ids=["given", "recorded"])
def test_the_release_waits_for_the_right_stream(device, source, stream, given):
    other = device.create_stream()
    buffer = source.allocate(stream=other if given else stream)
    address = buffer.handle
    with Gate(stream) as gate:
        assert buffer.close(stream if given else None, wait=False) is CloseResult.QUEUED
        other.sync()
        assert drain(0.05) is False
        assert still_allocated(address)
        gate.open()
        assert drain(20)
    assert not still_allocated(address)
    other.close()


def test_all_recorded_streams_are_waited_for(device, source, stream):
    other = device.create_stream()
    buffer = source.allocate(stream=stream)
    buffer.record_stream(other)
    address = buffer.handle
    with Gate(stream) as first, Gate(other) as second:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        first.open()
        assert drain(0.1) is False
        assert still_allocated(address)
        second.open()
        assert drain(20)
        assert not still_allocated(address)
    other.close()


def test_what_is_behind_one_stream_holds_up_no_other(device, resource, stream):
    """Virtual memory: the frees of plain memory wait for the whole device, in the driver."""
    other = device.create_stream()
    late, early = resource.allocate(GRANULE, stream=stream), resource.allocate(GRANULE, stream=other)
    addresses = late.handle, early.handle
    with Gate(other) as first, Gate(stream) as second:
        assert late.close(wait=False) is CloseResult.QUEUED
        assert early.close(wait=False) is CloseResult.QUEUED
        first.open()
        until = time.monotonic() + 10
        while queued() == 2 and time.monotonic() < until:
            time.sleep(0.005)
        assert queued() == 1
        assert [still_allocated(address) for address in addresses] == [True, False]
        second.open()
        assert drain(20)
    other.close()


def test_a_stream_may_be_closed_with_a_release_queued_behind_it(device, source):
    stream = device.create_stream()
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        stream.close()
        del buffer
        gc.collect()
        gate.open()
        assert drain(20)
    assert not still_allocated(address)


def test_a_grown_buffer_is_queued_as_a_whole(resource, stream):
    free = free_memory()
    buffer = resource.allocate(GRANULE, stream=stream)
    for granules in (2, 3):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
    address = buffer.handle
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        assert free_memory() == free - 3 * GRANULE
        gate.open()
        assert drain(20)
    assert free_memory() == free
    assert address_free(address, 3 * GRANULE)


@pytest.mark.parametrize("kind", ["python", "function"])
def test_an_author_is_asked_at_once(device, stream, kind):
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=stream)
    assert buffer.close(wait=False) is CloseResult.DONE
    assert source.frees() == 1
    assert queued() == 0


def test_a_borrowed_buffer_is_done_at_once(stream):
    owner = type("Owner", (), {})()
    gone = weakref.ref(owner)
    buffer = Buffer.from_handle(4096, 16, owner=owner)
    del owner
    with Gate(stream):
        assert buffer.close(wait=False) is CloseResult.DONE
        assert gone() is None


def test_a_lent_buffer_is_lent(source, stream):
    """The last loan then ends without waiting, too."""
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    part = buffer[0:16]
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.LENT
        assert queued() == 0
        part.close()
        assert queued() == 1
        assert still_allocated(address)
        gate.open()
        assert drain(20)
    assert not still_allocated(address)


def test_an_explicit_close_on_a_capturing_stream_is_refused(source, stream):
    buffer = source.allocate(stream=stream)
    capture(stream)
    outcome, error = attempt(lambda: buffer.close(wait=False))
    end_capture(stream)
    assert drain(20)
    assert outcome is None
    assert isinstance(error, CUDAError)
    assert "captur" in str(error)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


def test_empty_buffers_are_done_at_once(source, stream):
    buffer = source.allocate(0, stream=stream)
    with Gate(stream):
        assert buffer.close(wait=False) is CloseResult.DONE


def test_wrong_streams_are_refused_before_anything_happens(source):
    buffer = source.allocate()
    with pytest.raises(TypeError):
        buffer.close(7, wait=False)
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


# --- collections --------------------------------------------------------------------------------------------------


def test_a_collection_queues_what_has_work_in_flight(source, stream):
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    with Gate(stream) as gate:
        with warnings_seen() as seen:
            del buffer
        assert seen == []
        assert queued() == 1
        assert still_allocated(address)
        assert not gate.is_open
        gate.open()
        assert drain(20)
    assert not still_allocated(address)


def test_a_collection_during_a_capture_is_queued_until_its_end(source, stream):
    buffer = source.allocate(stream=stream)
    address = buffer.handle
    capture(stream)
    with warnings_seen() as seen:
        del buffer
    assert seen == []
    assert drain(0.1) is False
    assert still_allocated(address)
    status = check(driver.cuStreamIsCapturing(int(stream.handle)))
    assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    end_capture(stream)
    assert drain(20)
    assert not still_allocated(address)


@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_a_collection_never_waits_for_a_stream_that_is_not_the_buffers(device, kind, stream):
    """The free of plain and pinned memory waits, in the driver, for the whole device. Not in the collecting thread."""
    mine = device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=mine)
    mine.sync()
    with Gate(stream) as gate:
        if kind == "python":  # its own deallocate frees, and may wait
            gate.open()
        del buffer
        gc.collect()
        assert gate.is_open == (kind == "python")
    assert drain(20)
    mine.close()


def test_a_cycle_of_queued_buffers(source, stream):
    buffers = [source.allocate(stream=stream) for _ in range(20)]
    addresses = [buffer.handle for buffer in buffers]
    buffers.append(buffers)
    with Gate(stream) as gate:
        del buffers
        gc.collect()
        assert queued() == 20
        gate.open()
        assert drain(20)
    assert not any(still_allocated(address) for address in addresses)


# --- the reaper ---------------------------------------------------------------------------------------------------


@pytest.mark.provokes_refusals
def test_the_reaper_needs_no_gil(source, stream):
    """While this thread holds the GIL and lets no other Python run, the memory goes back."""
    import ctypes

    buffer = source.allocate(stream=stream)
    address = buffer.handle
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        live = ctypes.PyDLL("libcuda.so.1").cuPointerGetAttribute  # called with the GIL held
        kind = ctypes.c_uint(77)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            gate.open_with_gil()
            for _ in range(100):
                sleep_with_gil(0.02)
                result = live(ctypes.byref(kind), 2, ctypes.c_ulonglong(address))
                if result != 0:
                    break
        finally:
            sys.setswitchinterval(interval)
        assert result != 0, "the memory is still there"
    assert drain(20)


def test_the_queue_is_bounded(device, resource, stream):
    """An explicit close beyond the bound waits; what is dropped is queued all the same."""
    buffers = [resource.allocate(GRANULE, stream=stream) for _ in range(1026)]
    dropped = buffers.pop()
    last = buffers.pop()
    with Gate(stream) as gate:
        for buffer in buffers:
            assert buffer.close(wait=False) is CloseResult.QUEUED
        assert queued() == 1024
        closing = Waiting(lambda: last.close(wait=False))
        assert closing.waits(0.2)
        assert last.ownership is Ownership.OWNED
        del dropped
        gc.collect()
        assert not gate.is_open
        gate.open()
        assert closing.result() in (CloseResult.QUEUED, CloseResult.DONE)
        assert drain(30)
    assert queued() == 0


def test_many_threads_queue_and_drain(device, resource, driver_watch):
    live = driver_watch.live()

    def work():
        device.set_current()
        stream = device.create_stream()
        for _ in range(30):
            buffer = resource.allocate(GRANULE, stream=stream)
            check(driver.cuMemsetD32Async(buffer.handle, 1, GRANULE // 4, int(stream.handle)))
            buffer.close(wait=False)
            drain(0)
        stream.close()

    assert race(*[work] * 6) == [None] * 6
    assert drain(20)
    assert driver_watch.live() == live


def test_a_stream_that_python_keeps_alive_is_let_go(device, resource):
    """More than fit into one round of pending calls; each was kept by an object that is gone at the end."""

    class Foreign:
        def __init__(self):
            self.handle = check(driver.cuStreamCreate(1))

        def __cuda_stream__(self):
            return (0, int(self.handle))

        def __del__(self):
            check(driver.cuStreamDestroy(self.handle))

    foreign = [Foreign() for _ in range(100)]
    gone = [weakref.ref(each) for each in foreign]
    gates = []
    for each in foreign:
        stream = device.create_stream(each)
        buffer = resource.allocate(GRANULE, stream=stream)
        gates.append(Gate(stream))
        assert buffer.close(wait=False) is CloseResult.QUEUED
    del foreign, each, stream, buffer
    for gate in gates:
        gate.__exit__(None, None, None)
    assert drain(20)
    for _ in range(200):
        if not any(ref() for ref in gone):
            break
        time.sleep(0.01)
        gc.collect()
    assert not any(ref() for ref in gone)


# --- memory pressure ----------------------------------------------------------------------------------------------


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_an_allocation_that_fails_drains_the_queue_and_tries_again(device, kind, stream):
    source = SOURCES[kind](device)
    free = free_memory()
    size = free * 3 // 4 // GRANULE * GRANULE
    buffer = source.allocate(size, stream=stream)
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED

        def allocate():
            device.set_current()
            return source.allocate(size)

        allocating = Waiting(allocate)
        assert allocating.waits(0.2)
        gate.open()
        again = allocating.result()
        assert isinstance(again, Buffer), repr(again)
        assert again.size == size
    assert again.close() is CloseResult.DONE


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_an_allocation_that_fails_with_an_empty_queue_fails(device, kind):
    source = SOURCES[kind](device)
    with pytest.raises(CUDAError, match="OUT_OF_MEMORY"):
        source.allocate(free_memory() + (1 << 30))


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_an_allocation_does_not_wait_for_a_capture(device, kind, stream):
    """The one release in the queue waits for a capture, which this very thread must end."""
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=stream)
    capture(stream)
    del buffer
    gc.collect()
    assert queued() == 1
    size = free_memory() + (1 << 30)

    def allocate():
        device.set_current()
        return source.allocate(size)

    allocating = Waiting(allocate)
    waited = allocating.waits(5)
    end_capture(stream)
    assert isinstance(allocating.result(), CUDAError)
    assert not waited
    assert drain(20)


@pytest.mark.provokes_refusals
def test_a_grow_that_fails_drains_the_queue_and_tries_again(device, resource, stream):
    free = free_memory()
    size = free * 5 // 8 // GRANULE * GRANULE
    large = resource.allocate(size, stream=stream)
    small = resource.allocate(GRANULE)
    with Gate(stream) as gate:
        assert large.close(wait=False) is CloseResult.QUEUED

        def grow():
            device.set_current()
            return resource.modify_allocation(small, size)

        growing = Waiting(grow)
        waited = growing.waits(0.2)
        gate.open()
        grown = growing.result()
        assert isinstance(grown, Buffer), repr(grown)
        assert waited
    grown.close()


# --- failures and the end -----------------------------------------------------------------------------------------

STUCK = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from held_work import Gate
from cuda.core import CUDAWarning, Device
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
stream = device.create_stream()
source = SOURCES[sys.argv[1]](device)
count = int(sys.argv[3])
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    buffers = [source.allocate(stream=stream) for _ in range(count)]
    addresses = {hex(buffer.handle) for buffer in buffers}
    with Gate(stream) as gate, sim.fail(sys.argv[2], sticky=True):
        print({buffer.close(wait=False).name for buffer in buffers})
        gate.open()
        print(drain(20))
    for _ in range(200):
        if len(seen) >= count:
            break
        time.sleep(0.01)
    time.sleep(0.1)
print(len(seen), {w.category for w in seen} == {CUDAWarning})
print(all(any(address in str(w.message) for w in seen) for address in addresses))
print(_counters.live().get("queued", 0), _counters.live().get("stuck", 0))
sim.reset()
source.allocate(stream=stream).close(wait=False)
print(drain(20), list(sim.refused()))
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize(
    ("kind", "name"), [("virtual", "cuMemUnmap"), ("device", "cuMemFree"), ("pinned", "cuMemFreeHost")]
)
def test_a_queued_release_that_fails_is_reported_once(kind, name, count):
    assert child_output(STUCK, kind, name, count).splitlines() == [
        "{'QUEUED'}",
        "True",
        f"{count} True",
        "True",
        f"0 {count}",
        "True []",
    ]


AT_EXIT = """
import sys, time
from buffer_kinds import SOURCES
from held_work import Gate
from cuda.core import Device
device = Device(0)
device.set_current()
stream = device.create_stream()
other = device.create_stream()
source = SOURCES[sys.argv[1]](device)
buffers = [source.allocate(stream=stream) for _ in range(10)]
idle = source.allocate(stream=other)
gate = Gate(stream)
gate._timer.cancel()
for buffer in buffers:
    print(buffer.close(wait=False).name)
if sys.argv[2] == "drop at exit":
    kept = [source.allocate(stream=stream) for _ in range(10)]
if sys.argv[2] == "daemon":
    import threading
    from cuda.core._memory._queue import drain
    threading.Thread(target=drain, daemon=True).start()
    time.sleep(0.05)
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["queued", "drop at exit", "daemon"])
@pytest.mark.parametrize("kind", WAITING)
def test_the_queue_is_abandoned_at_exit(kind, how):
    begun = time.monotonic()
    assert child_output(AT_EXIT, kind, how, timeout=30).splitlines() == ["QUEUED"] * 10
    assert time.monotonic() - begun < 15


REAPER_INSIDE_A_FREE = """
import time
from buffer_kinds import SOURCES
from held_work import Gate
from cuda.core import Device
device = Device(0)
device.set_current()
mine, stream = device.create_stream(), device.create_stream()
buffer = SOURCES["device"](device).allocate(stream=mine)
first, second = Gate(mine), Gate(stream)
second._timer.cancel()
print(buffer.close(wait=False).name)
first.open()
time.sleep(0.3)  # the reaper is now inside cuMemFree, which waits for all work of the device
"""


@pytest.mark.sim_only
def test_a_reaper_that_waits_in_the_driver_is_not_waited_for_at_exit():
    assert child_output(REAPER_INSIDE_A_FREE, timeout=15) == "QUEUED\n"
