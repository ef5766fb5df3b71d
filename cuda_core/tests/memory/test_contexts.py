# SPDX-License-Identifier: Apache-2.0
"""Threads without a current context, with another device's, with one of their own: releases work and change nothing."""

import gc

import pytest

from buffer_kinds import SOURCES
from context_places import PLACES, at
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Buffer, CloseResult
from cuda.core._memory._queue import drain
from support import GRANULE, blocked, check, child_output, free_memory, race, still_allocated, warnings_seen


@pytest.fixture(params=PLACES)
def place(request, device):
    with at(request.param, device) as place:
        yield place


@pytest.fixture(params=["default", "created", "legacy", "per thread"])
def stream(request, device):
    if request.param == "created":
        stream = device.create_stream()
        yield stream
        stream.close()
    else:
        yield {
            "default": None,
            "legacy": LEGACY_DEFAULT_STREAM,
            "per thread": PER_THREAD_DEFAULT_STREAM,
        }[request.param]


@pytest.mark.parametrize("how", ["close", "with", "drop", "no wait", "last loan"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_release_anywhere(device, place, stream, kind, how):
    source = SOURCES[kind](device)
    box = [source.allocate(stream=stream)]
    address = box[0].handle
    if how == "last loan":
        part = [box[0][0:16]]
        assert box.pop().close() is CloseResult.LENT
        box = part

    def release():
        if how == "close":
            assert box.pop().close() is CloseResult.DONE
        elif how == "no wait":
            assert box.pop().close(wait=False) is CloseResult.DONE
        elif how == "with":
            with box.pop():
                pass
        else:
            box.clear()
            gc.collect()

    with warnings_seen() as seen:
        place.run(release)
    assert seen == []
    if how in ("drop", "last loan"):
        assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)
    assert source.frees() in (None, 1)


def test_a_grow_anywhere(device, place, stream, resource):
    free = free_memory()
    buffer = resource.allocate(GRANULE, stream=stream)
    with blocked(buffer):
        buffer = place.run(lambda: resource.modify_allocation(buffer, 2 * GRANULE))
    buffer = place.run(lambda: resource.modify_allocation(buffer, 4 * GRANULE))
    assert buffer.close() is CloseResult.DONE
    assert free_memory() == free


@pytest.mark.parametrize("kind", SOURCES)
def test_a_transfer_anywhere(device, place, stream, kind):
    buffer = SOURCES[kind](device).allocate(stream=stream)
    address = buffer.handle
    allocation = place.run(buffer.detach)
    buffer = place.run(lambda: Buffer.adopt(allocation))
    assert buffer.handle == address
    assert place.run(buffer.close) is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_memory_allocated_anywhere_is_the_devices(device, place, kind):
    """The resource says where memory comes from, not the thread."""
    source = SOURCES[kind](device)
    free = free_memory()
    buffer = place.run(lambda: source.allocate(2 * GRANULE))
    assert buffer.device_id == 0
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert int(check(driver.cuPointerGetAttributes(1, [attribute], buffer.handle))[0]) == 0
    check(driver.cuMemsetD8(buffer.handle, 1, buffer.size))
    assert place.run(buffer.close) is CloseResult.DONE
    assert free_memory() == free


@pytest.mark.parametrize("kind", SOURCES)
def test_what_can_be_seen_anywhere(device, place, kind):
    buffer = SOURCES[kind](device).allocate()
    here = (buffer.handle, buffer.size, buffer.is_device_accessible, repr(buffer), hash(buffer))
    there = place.run(
        lambda: (buffer.handle, buffer.size, buffer.is_device_accessible, repr(buffer), hash(buffer))
    )
    assert here == there
    buffer.close()


@pytest.mark.parametrize("how", ["close", "drop", "no wait"])
def test_a_stream_of_a_context_of_ones_own(device, resource, how):
    """A buffer ordered by a stream of another context of the same device, released where that is not current."""
    from cuda.core import Stream

    free = free_memory()
    own = check(driver.cuCtxCreate(None, 0, 0))
    handle = check(driver.cuStreamCreate(1))
    buffer = resource.allocate(GRANULE, stream=Stream.from_handle(int(handle)))
    device.set_current()
    before = int(check(driver.cuCtxGetCurrent()))
    if how == "close":
        assert buffer.close() is CloseResult.DONE
    elif how == "no wait":
        assert buffer.close(wait=False) is CloseResult.DONE
    del buffer
    gc.collect()
    assert int(check(driver.cuCtxGetCurrent())) == before
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    check(driver.cuCtxDestroy(own))
    device.set_current()
    assert free_memory() >= free


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_stream_whose_context_was_destroyed(device, resource, how):
    """Nothing runs in a destroyed context: the memory, which is not the context's, goes back."""
    from cuda.core import CUDAError, Stream

    own = check(driver.cuCtxCreate(None, 0, 0))
    handle = check(driver.cuStreamCreate(1))
    buffer = resource.allocate(GRANULE, stream=Stream.from_handle(int(handle)))
    address = buffer.handle
    check(driver.cuCtxDestroy(own))
    device.set_current()
    with warnings_seen():
        if how == "close":
            try:
                buffer.close()
            except CUDAError:
                pass  # that the order is gone may be told
            assert buffer.is_closed
        del buffer
        gc.collect()
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)


@pytest.mark.two_devices
def test_plain_memory_of_two_devices(devices, device):
    buffers = [SOURCES["device"](each).allocate() for each in devices[:2]]
    assert [buffer.device_id for buffer in buffers] == [0, 1]
    for buffer in buffers:
        assert race(buffer.close) == [CloseResult.DONE]


# A real driver may crash where the handle of a destroyed stream is used: whoever wraps one keeps it alive.
@pytest.mark.sim_only
@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("how", ["close", "no wait", "drop"])
@pytest.mark.parametrize("kind", ["virtual", "pinned", "device"])
def test_a_foreign_stream_that_was_destroyed_before_the_buffer(device, kind, how):
    """Its owner had to keep it. Still the memory is not lost, and a collection does not complain."""
    from cuda.core import CUDAError, Stream

    handle = check(driver.cuStreamCreate(1))
    buffer = SOURCES[kind](device).allocate(stream=Stream.from_handle(int(handle)))
    address = buffer.handle
    check(driver.cuStreamDestroy(handle))
    with warnings_seen() as seen:
        if how != "drop":
            try:
                buffer.close(wait=how == "close")
            except CUDAError:
                pass
            assert buffer.is_closed
        del buffer
        gc.collect()
    assert seen == []
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)


RESET = """
import gc, sys, time, warnings
from support import GRANULE, check, driver, watching_driver
from buffer_kinds import SOURCES
from cuda.core import Buffer, CUDAError, CUDAWarning, Device
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
stream = device.create_stream()
made = {kind: SOURCES[kind](device).allocate(stream=stream) for kind in ("virtual", "pinned", "device")}
dropped = [SOURCES[kind](device).allocate(stream=stream) for kind in ("virtual", "pinned", "device") * 3]
lent = SOURCES["device"](device).allocate()
part = lent[0:8]
lent.close()
check(driver.cuDevicePrimaryCtxReset(0))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for kind, buffer in made.items():
        try:
            buffer.close()
        except CUDAError as error:
            print(kind, "raises")
        print(kind, buffer.ownership.name, buffer.close().name)
    part.close()
    dropped.clear()
    gc.collect()
    drain(20)
    time.sleep(0.05)  # a report of the queue is a pending call
print([w.category.__name__ for w in seen])
sim = watching_driver()
# A real driver may crash where a stream of a context that is gone is named.
print({call.name for call in sim.refused() if call.name.startswith("cuStream")} if sim else set())
counts = _counters.live()
print({name: counts.get(name, 0) for name in ("buffers", "reservations", "queued")})
"""


def test_a_primary_context_that_was_reset():
    """What the context owned is lost, reported once; virtual memory, which it does not own, goes back."""
    output = child_output(RESET).splitlines()
    for kind in ("virtual", "pinned", "device"):
        assert f"{kind} RELEASED NOTHING" in output
    assert "pinned raises" in output
    assert "device raises" in output
    assert output[-3:] == ["['CUDAWarning']", "set()", "{'buffers': 0, 'reservations': 0, 'queued': 0}"]


RESET_POOLS = """
import gc, warnings
from support import check, driver
from buffer_kinds import SOURCES
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Device
from cuda.core._memory._queue import drain
import cuda_driver_sim as sim
device = Device(0)
device.set_current()
streams = [device.create_stream(), LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM]
sources = [SOURCES[kind](device) for kind in ("pool", "pinned pool", "managed pool")]
closed, dropped, lent = (
    [source.allocate(stream=stream) for source in sources for stream in streams] for _ in range(3)
)
parts = [buffer[0:8] for buffer in lent]
check(driver.cuDevicePrimaryCtxReset(0))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print({buffer.close().name for buffer in closed} <= {"DONE", "QUEUED"})
    print({buffer.close().name for buffer in lent})
    parts.clear()
    dropped.clear()
    gc.collect()
    print(drain(20), sim.live().get("pool_allocation", 0))
print([str(w.message) for w in seen])
device.set_current()
for kind in SOURCES:
    if kind != "device":
        SOURCES[kind](device).allocate(stream=LEGACY_DEFAULT_STREAM).close()
device.create_stream().close()
print("goes on")
"""


@pytest.mark.sim_only
def test_pool_memory_outlives_a_reset_of_the_current_context():
    """It is not the context's, and goes back; and the device can be used again."""
    assert child_output(RESET_POOLS).splitlines() == ["True", "{'LENT'}", "True 0", "[]", "goes on"]


RESET_ELSEWHERE = """
import gc, sys, threading, warnings
from support import check, driver, watching_driver
from buffer_kinds import SOURCES
from cuda.core import CUDAError, CUDAWarning, Device
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
stream = device.create_stream()
made = {kind: SOURCES[kind](device).allocate(stream=stream) for kind in ("pinned", "device")}
check(driver.cuDevicePrimaryCtxReset(0))
if sys.argv[1] == "activated again":
    assert int(check(driver.cuDevicePrimaryCtxRetain(0))) == int(device.context.handle)
    news = [check(driver.cuMemAlloc(4096)) for _ in range(8)]
def close():
    for kind, buffer in made.items():
        try:
            buffer.close()
            print(kind, "closes")
        except CUDAError:
            print(kind, buffer.ownership.name, buffer.close().name)
if sys.argv[2] == "here":
    close()
else:
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
event = device.create_event() if sys.argv[1] == "activated again" else None
stream.close()
del event
for new in news if sys.argv[1] == "activated again" else ():
    check(driver.cuMemFree(new))
sim = watching_driver()
print({call.name for call in sim.refused()} - {"cuCtxGetId"} if sim else set())
"""


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("then", ["gone", "activated again"])
def test_the_close_of_lost_memory_and_its_stream(then, where):
    """Without a current context the driver says of the address that it is invalid, and not why.

    Where the primary context was activated again, with another number at the old address, the address may be that of
    new memory: nothing that is old is named any more.
    """
    assert child_output(RESET_ELSEWHERE, then, where).splitlines() == [
        "pinned RELEASED NOTHING",
        "device RELEASED NOTHING",
        "set()",
    ]


EVENTS = """
import sys
from support import check, driver, watching_driver
from cuda.core import Device
device = Device(0)
device.set_current()
events = [device.create_event() for _ in range(3)]
check(driver.cuDevicePrimaryCtxReset(0))
events.pop().close()
check(driver.cuDevicePrimaryCtxRetain(0))
events.pop().close()
events.clear()
sim = watching_driver()
print({call.name for call in sim.refused()} - {"cuCtxGetId"} if sim else set())
"""


def test_events_of_a_context_that_was_reset_are_not_named_by_their_end():
    assert child_output(EVENTS) == "set()\n"


@pytest.mark.sim_only
@pytest.mark.watched
@pytest.mark.two_devices
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("how", ["close", "drop"])
def test_memory_outlives_the_context_of_a_stream_that_only_orders_it(device, devices, driver_watch, how):
    devices[1].set_current()
    stream = devices[1].create_stream()
    device.set_current()
    buffer = SOURCES["pinned"](device).allocate(stream=stream)
    address, fault = buffer.handle, "CUDA_ERROR_ILLEGAL_ADDRESS"
    with driver_watch.fail("cuStreamQuery", result=fault, sticky=True), warnings_seen() as seen:
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        gc.collect()
        assert drain(20)
    assert seen == []
    assert not still_allocated(address)
    stream.close()
