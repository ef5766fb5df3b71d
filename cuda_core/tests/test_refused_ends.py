# SPDX-License-Identifier: Apache-2.0
"""What becomes of a stream or an event that the driver will not destroy: a close raises, all else is told of once."""

import gc
import threading
import time

import pytest

from cuda.bindings import driver
from cuda.core import (
    CloseResult,
    CUDAError,
    CUDAWarning,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    Stream,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from graph_tools import soon
from held_work import Gate
from support import GRANULE, check, run_child, warnings_seen

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]
UNKNOWN = "CUDA_ERROR_UNKNOWN"


def pending_calls():
    """Let the main thread make what is pending: reports of places where no Python may run."""
    for _ in range(100):
        pass


def kinds(seen):
    return [(one.category, "could not be destroyed" in str(one.message)) for one in seen]


TOLD_ONCE = [(CUDAWarning, True)]


def count(driver_watch, kind):
    return driver_watch.live().get(kind, 0)


def test_a_refused_close_of_a_stream_can_be_made_again(device, driver_watch):
    before = count(driver_watch, "stream")
    stream = device.create_stream()
    handle = int(stream.handle)
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN), warnings_seen() as seen:
        with pytest.raises(CUDAError, match=r"UNKNOWN.*cuStreamDestroy"):
            stream.close()
    assert seen == []
    assert not stream.is_closed
    assert int(stream.handle) == handle
    stream.sync()
    stream.record().close()
    assert count(driver_watch, "stream") == before + 1
    stream.close()
    assert stream.is_closed
    stream.close()
    assert count(driver_watch, "stream") == before


@pytest.mark.sim_only  # a real driver may crash on a handle that is none any more
def test_a_stream_that_other_code_has_destroyed_is_closed_in_silence(device, driver_watch):
    stream = device.create_stream()
    check(driver.cuStreamDestroy(stream.handle))
    with warnings_seen() as seen:
        stream.close()
    assert seen == []
    assert stream.is_closed


def test_a_stream_whose_context_has_faulted_is_closed_by_the_close_that_raises(device, driver_watch):
    stream = device.create_stream()
    handle = stream.handle
    with driver_watch.fail("cuStreamDestroy", result="CUDA_ERROR_ILLEGAL_ADDRESS"):
        with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
            stream.close()
    assert stream.is_closed
    check(driver.cuStreamDestroy(handle))


@pytest.mark.parametrize("retry", ["make a stream", "close a stream", "make an event", "close an event"])
@pytest.mark.parametrize("what", ["stream", "event"])
def test_what_is_dropped_and_refused_is_told_of_once_and_tried_again(device, driver_watch, what, retry):
    other, mark = device.create_stream(), device.create_event()
    before, counted = count(driver_watch, what), _counters.live()[f"{what}_handles"]
    dropped = [device.create_stream() if what == "stream" else device.create_event()]
    name = "cuStreamDestroy" if what == "stream" else "cuEventDestroy"
    with driver_watch.fail(name, result=UNKNOWN), warnings_seen() as seen:
        dropped.clear()
        gc.collect()
        pending_calls()
    assert kinds(seen) == TOLD_ONCE
    assert f"{what} at 0x" in str(seen[0].message)
    assert name in str(seen[0].message)
    assert count(driver_watch, what) == before + 1
    assert _counters.live()[f"{what}_handles"] == counted + 1  # nothing is lost
    with warnings_seen() as seen:
        made = {
            "make a stream": device.create_stream,
            "close a stream": other.close,
            "make an event": device.create_event,
            "close an event": mark.close,
        }[retry]()
        pending_calls()
    assert seen == []
    if made is not None:
        made.close()
    other.close()
    mark.close()
    del made, other, mark
    assert count(driver_watch, what) <= before
    assert _counters.live().get(f"{what}_handles", 0) <= counted


def test_warnings_that_are_errors_lose_nothing(driver_watch):
    done = run_child(
        """
import gc, sys, warnings
warnings.simplefilter("error")
from support import watching_driver
from cuda.core import Device
device = Device(0)
device.set_current()
sim = watching_driver()
with sim.fail("cuStreamDestroy", result="CUDA_ERROR_UNKNOWN"):
    stream = device.create_stream()
    del stream
    gc.collect()
    for _ in range(100):
        pass
print(sim.live()["stream"])
device.create_event().close()
print(sim.live().get("stream", 0))
"""
    )
    assert done.stdout.split() == ["1", "0"], done
    assert "could not be destroyed" in done.stderr


@pytest.mark.parametrize("how", ["close", "queue", "collection"])
def test_a_stream_whose_last_holder_is_a_buffer(device, driver_watch, how):
    """The release has succeeded; the stream is told of and kept."""
    resource = VirtualMemoryResource(device) if how == "queue" else LegacyPinnedMemoryResource()
    before, stream = count(driver_watch, "stream"), device.create_stream()
    buffers = [resource.allocate(GRANULE, stream=stream)]
    if how == "queue":
        with (
            Gate(stream) as gate,
            driver_watch.fail("cuStreamDestroy", result=UNKNOWN),
            warnings_seen() as seen,
        ):
            assert buffers.pop().close(wait=False) is CloseResult.QUEUED
            stream.close()
            assert stream.is_closed
            gate.open()
            assert drain(20)
            pending_calls()
    else:
        stream.close()
        assert stream.is_closed
        with driver_watch.fail("cuStreamDestroy", result=UNKNOWN), warnings_seen() as seen:
            if how == "close":
                assert buffers[0].close() is CloseResult.DONE
            buffers.clear()
            gc.collect()
            assert drain(20)
            pending_calls()
    assert kinds(seen) == TOLD_ONCE
    assert count(driver_watch, "stream") == before + 1
    device.create_stream().close()
    assert count(driver_watch, "stream") == before


def test_an_event_that_is_closed_while_another_thread_waits_for_it(device, stream, driver_watch):
    before = count(driver_watch, "event")
    with Gate(stream) as gate:
        event = stream.record()
        waiter = threading.Thread(target=event.sync)
        waiter.start()
        time.sleep(0.05)  # into the driver's wait
        with driver_watch.fail("cuEventDestroy", result=UNKNOWN) as failure, warnings_seen() as seen:
            event.close()
            assert event.is_closed
            gate.open()
            waiter.join(20)
            pending_calls()
    assert failure.fired == 1
    assert kinds(seen) == TOLD_ONCE
    device.create_event().close()
    assert count(driver_watch, "event") == before


def test_an_event_whose_context_has_faulted_is_closed_by_the_close_that_raises(device, driver_watch):
    counted, event = _counters.live().get("event_handles", 0), device.create_event()
    handle = event.handle
    with driver_watch.fail("cuEventDestroy", result="CUDA_ERROR_ILLEGAL_ADDRESS"):
        with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
            event.close()
    assert event.is_closed
    assert _counters.live().get("event_handles", 0) == counted
    check(driver.cuEventDestroy(handle))


def test_what_is_refused_for_good_costs_each_caller_one_call(device, driver_watch):
    before, many = count(driver_watch, "stream"), 50
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN, sticky=True), warnings_seen() as seen:
        streams = [device.create_stream() for _ in range(many)]
        streams.clear()
        gc.collect()
        pending_calls()
        events = []
        made = driver_watch.calls_of(lambda: events.append(device.create_event()))
    assert kinds(seen) == TOLD_ONCE * many
    assert made["cuStreamDestroy"] == 1
    with warnings_seen() as seen:
        events.pop().close()  # and now all of them go
    assert seen == []
    assert count(driver_watch, "stream") == before


def test_a_kept_stream_is_not_named_once_its_context_is_gone(driver_watch):
    done = run_child(
        """
import gc, warnings
from support import check, driver, watching_driver
from cuda.core import Device
from cuda.core._memory import _counters
device = Device(0)
device.set_current()
sim = watching_driver()
stream, event = device.create_stream(), device.create_event()
with sim.fail("cuStreamDestroy", result="CUDA_ERROR_UNKNOWN"), sim.fail("cuEventDestroy", result="CUDA_ERROR_UNKNOWN"):
    with warnings.catch_warnings(record=True):
        del stream, event
        gc.collect()
        for _ in range(100):
            pass
check(driver.cuDevicePrimaryCtxReset(0))
sim.reset()
device = Device(0)
device.set_current()
device.create_stream().close()
print(sim.calls().get("cuStreamDestroy"), sim.calls().get("cuEventDestroy"), _counters.live())
"""
    )
    assert done.stdout.split("{")[0].split() == ["1", "None"], done
    assert "handles" not in done.stdout.replace("'stream_handles': 0", "").replace(
        "'event_handles': 0", ""
    ), done


# --- graph builders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["new", "building", "ended"])
def test_a_builder_whose_stream_is_refused_stays_open(device, driver_watch, stage):
    before, builder = driver_watch.live(), device.create_graph_builder()
    if stage != "new":
        builder.begin_building()
    if stage == "ended":
        builder.end_building()
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN) as failure:
        with pytest.raises(CUDAError, match="cuStreamDestroy"):
            builder.close()
    assert failure.fired == 1
    assert not builder.is_closed
    assert not builder.is_building
    builder.close()
    assert builder.is_closed
    assert driver_watch.live() == before


def test_a_closed_builder_has_let_go_of_its_stream(device, driver_watch):
    before = count(driver_watch, "stream")
    builder = device.create_graph_builder().begin_building().end_building()
    builder.close()
    assert count(driver_watch, "stream") == before


def test_a_dropped_builder_whose_stream_is_refused_is_told_of_once(device, driver_watch):
    before = driver_watch.live()
    box = [device.create_graph_builder().begin_building().end_building()]
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN), warnings_seen() as seen:
        box.clear()
        gc.collect()
        pending_calls()
    assert kinds(seen) == TOLD_ONCE
    device.create_graph_builder().begin_building().end_building().close()
    gc.collect()
    assert driver_watch.live() == before


def test_the_streams_of_branches_do_not_make_the_end_of_a_capture_fail(device, driver_watch):
    before, builder = driver_watch.live(), device.create_graph_builder().begin_building()
    builder = type(builder).join(*builder.split(2))
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN), warnings_seen() as seen:
        builder.end_building()
        pending_calls()
    assert kinds(seen) == TOLD_ONCE
    graph = builder.complete()
    graph.close()
    builder.close()
    assert driver_watch.live() == before


def test_a_split_succeeds_although_its_event_cannot_be_destroyed(device, driver_watch):
    before, builder = driver_watch.live(), device.create_graph_builder().begin_building()
    with driver_watch.fail("cuEventDestroy", result=UNKNOWN) as failure, warnings_seen() as seen:
        parts = builder.split(3)
        pending_calls()
    assert failure.fired == 1
    assert kinds(seen) == TOLD_ONCE
    builder = type(builder).join(*parts)
    builder.end_building().close()
    del parts
    gc.collect()
    assert driver_watch.live() == before


def test_a_branch_that_is_closed_twice_counts_once(device, driver_watch):
    builder = device.create_graph_builder().begin_building()
    _, left, right = builder.split(3)
    left.close()
    left.close()
    with pytest.raises(RuntimeError, match=r"1 GraphBuilder\(s\)"):
        builder.end_building()
    builder.close()
    right.close()


# --- what the package makes for itself ---------------------------------------------------------------------------


def test_an_event_behind_a_free_in_a_foreign_stream(device, driver_watch):
    """A pool that remembers its frees by events: the pool goes, the event is kept and told of."""
    before = driver_watch.live()
    raw = check(driver.cuStreamCreate(1))
    stream = Stream.from_handle(int(raw))
    resource = DeviceMemoryResource(device, {})
    buffer = resource.allocate(4096, stream=stream)
    with driver_watch.fail("cuEventDestroy", result=UNKNOWN) as failure, warnings_seen() as seen:
        buffer.close()
        stream.sync()
        resource.close()
        assert drain(20)
        pending_calls()
    assert failure.fired == 1
    assert kinds(seen) == TOLD_ONCE
    assert count(driver_watch, "memory_pool") == before.get("memory_pool", 0)
    del buffer, stream, resource
    device.create_event().close()
    check(driver.cuStreamDestroy(raw))
    assert driver_watch.live() == before


def test_an_event_that_orders_one_stream_behind_another(device, driver_watch):
    before, first, second = driver_watch.live(), device.create_stream(), device.create_stream()
    resource = DeviceMemoryResource(device)
    buffer = resource.allocate(4096, stream=first)
    buffer.record_stream(second)
    with driver_watch.fail("cuEventDestroy", result=UNKNOWN, sticky=True), warnings_seen() as seen:
        assert buffer.close() is CloseResult.DONE
        pending_calls()
        kept = count(driver_watch, "event") - before.get("event", 0)
    assert kept
    assert kinds(seen) == TOLD_ONCE * kept
    first.close()
    second.close()
    assert count(driver_watch, "event") == before.get("event", 0)


def test_a_wait_for_a_stream_tries_again_what_was_refused(device, driver_watch):
    later, earlier = device.create_stream(), device.create_stream()
    before = count(driver_watch, "event")
    with warnings_seen() as seen:
        for _ in range(5):
            with driver_watch.fail("cuEventDestroy", result=UNKNOWN):
                later.wait(earlier)
            later.wait(earlier)
        pending_calls()
    assert count(driver_watch, "event") == before
    assert set(kinds(seen)) <= set(TOLD_ONCE)
    later.close()
    earlier.close()


def test_the_main_thread_goes_on_however_much_others_are_refused(device, driver_watch):
    """It tells of a few at a time, and finds the next without a look at all that it has told of."""
    later, earlier = device.create_stream(), device.create_stream()
    before = count(driver_watch, "event")
    stop = threading.Event()

    def be_refused():
        device.set_current()
        while not stop.is_set():
            later.wait(earlier)

    thread = threading.Thread(target=be_refused, daemon=True)
    with warnings_seen() as seen:
        with driver_watch.fail("cuEventDestroy", result=UNKNOWN, sticky=True):
            thread.start()
            start = time.monotonic()
            time.sleep(0.5)
            took = time.monotonic() - start
            stop.set()
            thread.join(30)
            assert not thread.is_alive()
        later.record().close()  # all of them
        pending_calls()
    assert took < 5
    assert len(seen) > 16
    assert set(kinds(seen)) == set(TOLD_ONCE)
    assert count(driver_watch, "event") == before
    later.close()
    earlier.close()


def test_loans_to_a_graph_end_although_the_user_object_was_refused_twice(device, stream, driver_watch):
    """The graph would not take it and the driver would not take it back: the loans end with the next attempt."""
    buffer = DeviceMemoryResource(device).allocate(4096, stream=stream)
    builder = device.create_graph_builder().begin_building()
    with driver_watch.fail("cuGraphRetainUserObject", result=UNKNOWN) as refused:
        with driver_watch.fail("cuUserObjectRelease", result=UNKNOWN) as kept, warnings_seen() as seen:
            with pytest.raises(CUDAError, match="cuGraphRetainUserObject"):
                buffer.fill(0, stream=builder)
            pending_calls()
    assert refused.fired == kept.fired == 1
    assert kinds(seen) == TOLD_ONCE
    assert buffer.loans
    device.create_event().close()
    assert soon(lambda: buffer.loans == 0)
    builder.close()
    buffer.close()


@pytest.mark.sim_only  # a descriptor is sent to nobody
def test_a_reference_of_an_export_is_given_up_with_the_next(device, driver_watch):
    options = VirtualMemoryResourceOptions(handle_type="posix_fd")
    resource = VirtualMemoryResource(device, options)
    buffer = resource.allocate(GRANULE)
    with driver_watch.fail("cuMemRelease", result=UNKNOWN) as failure, warnings_seen() as seen:
        descriptor = buffer.ipc_descriptor
    assert failure.fired == 1
    assert [one.category for one in seen] == [CUDAWarning]
    assert "cuMemRelease" in str(seen[0].message)
    descriptor.close()
    buffer.close()
    assert count(driver_watch, "physical_allocation") == 1  # told of, and counted
    other = resource.allocate(GRANULE)
    other.ipc_descriptor.close()
    other.close()
    assert count(driver_watch, "physical_allocation") == 0


@pytest.mark.sim_only
def test_a_kept_stream_that_other_code_destroys_is_tried_once(device, driver_watch):
    """By then the address may be a stranger's stream."""
    live = dict(_counters.live())
    stream = device.create_stream()
    handle = int(stream.handle)
    with driver_watch.fail("cuStreamDestroy", result=UNKNOWN), warnings_seen():
        del stream
        pending_calls()
    check(driver.cuStreamDestroy(handle))
    refused = len(driver_watch.refused())
    for _ in range(5):
        device.create_event().close()
    assert len(driver_watch.refused()) == refused + 1
    assert dict(_counters.live()) == live
