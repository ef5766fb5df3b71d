# SPDX-License-Identifier: Apache-2.0
"""Streams and events, as far as memory needs them: their handles, their order, their ends."""

import ctypes
import gc
import re
import threading
import time

import pytest

from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    CUDAError,
    Event,
    EventOptions,
    Stream,
    StreamOptions,
)
from held_work import Gate, Waiting
from support import check, read

BYTES = 1 << 20


@pytest.fixture
def memory(device):
    address = int(check(driver.cuMemAlloc(BYTES)))
    yield address
    check(driver.cuMemFree(address))


def test_streams_are_not_made_directly():
    for kind in (Stream, Event):
        with pytest.raises(RuntimeError):
            kind()


@pytest.mark.parametrize("nonblocking", [True, False])
def test_options_of_a_stream(device, nonblocking):
    stream = device.create_stream(options=StreamOptions(nonblocking=nonblocking))
    assert stream.is_nonblocking is nonblocking
    flags = int(check(driver.cuStreamGetFlags(int(stream.handle))))
    assert bool(flags & 1) is nonblocking
    assert stream.device == device
    assert int(stream.context.handle) == int(device.context.handle)
    stream.close()


def test_a_priority_that_no_driver_has_is_refused(device):
    with pytest.raises(OverflowError, match=str(2**40)):
        device.create_stream(options=StreamOptions(priority=2**40))


def test_a_priority_beyond_the_range_is_refused(device):
    with pytest.raises(ValueError):
        device.create_stream(options=StreamOptions(priority=1_000))


def test_closing_a_stream_destroys_it(device, driver_watch):
    live = driver_watch.live()
    stream = device.create_stream()
    assert not stream.is_closed
    stream.close()
    assert stream.is_closed
    assert driver_watch.live() == live
    stream.close()
    for use in (stream.sync, stream.record, stream.__cuda_stream__):
        with pytest.raises(RuntimeError):
            use()


def test_dropping_a_stream_destroys_it(device, driver_watch):
    live = driver_watch.live()
    stream = device.create_stream()
    del stream
    gc.collect()
    assert driver_watch.live() == live


def test_a_foreign_stream_is_never_destroyed(device):
    handle = check(driver.cuStreamCreate(1))
    wrapped = Stream.from_handle(int(handle))
    assert int(wrapped.handle) == int(handle)
    assert wrapped.__cuda_stream__() == (0, int(handle))
    wrapped.sync()
    wrapped.close()
    del wrapped
    gc.collect()
    check(driver.cuStreamSynchronize(handle))
    check(driver.cuStreamDestroy(handle))


def test_equality_is_by_the_drivers_stream(stream):
    again = Stream.from_handle(int(stream.handle))
    assert again == stream
    assert hash(again) == hash(stream)
    assert stream != LEGACY_DEFAULT_STREAM
    again.close()


def test_the_default_streams_are_tokens(device):
    assert int(LEGACY_DEFAULT_STREAM.handle) == 1
    assert int(PER_THREAD_DEFAULT_STREAM.handle) == 2
    assert int(device.default_stream.handle) in (1, 2)
    for token in (LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM):
        token.close()
        token.sync()
        assert not token.is_closed


def test_sync_waits_for_the_work_of_the_stream(stream, memory):
    check(driver.cuMemsetD8Async(memory, 0x5A, BYTES, int(stream.handle)))
    stream.sync()
    assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    assert read(memory, BYTES) == b"\x5a" * BYTES


@pytest.mark.parametrize("what", ["event", "stream"])
def test_waiting_orders_one_stream_behind_another(device, memory, driver_watch, what):
    first, second = device.create_stream(), device.create_stream()
    hold = driver_watch.sim.hold() if driver_watch.sim else None
    if hold:
        hold.__enter__()
    for value in range(16):
        check(driver.cuMemsetD8Async(memory, value, BYTES, int(first.handle)))
    if what == "event":
        event = first.record()
        second.wait(event)
        event.close()
    else:
        second.wait(first)
    check(driver.cuMemsetD8Async(memory, 0xEE, BYTES, int(second.handle)))
    second.sync()
    assert read(memory, BYTES) == b"\xee" * BYTES
    if hold:
        hold.__exit__(None, None, None)
    first.close()
    second.close()


def test_an_event_tells_when_the_work_before_it_is_done(device, stream, memory):
    event = device.create_event()
    check(driver.cuMemsetD8Async(memory, 1, BYTES, int(stream.handle)))
    assert stream.record(event) is event
    event.sync()
    assert event.is_done is True
    event.close()
    assert event.is_closed


def test_time_between_two_events(device, stream, memory):
    options = EventOptions(timing_enabled=True)
    before, after = device.create_event(options), device.create_event(options)
    stream.record(before)
    check(driver.cuMemsetD8Async(memory, 1, BYTES, int(stream.handle)))
    stream.record(after)
    after.sync()
    assert after - before >= 0
    for event in (before, after):
        event.close()


def test_time_is_refused_where_it_was_not_asked_for(device, stream):
    before, after = device.create_event(), device.create_event()
    stream.record(before)
    stream.record(after)
    after.sync()
    with pytest.raises(RuntimeError):
        after - before
    for event in (before, after):
        event.close()


def test_events_are_destroyed_by_a_close_or_a_drop(device, driver_watch):
    live = driver_watch.live()
    closed, dropped = device.create_event(), device.create_event()
    closed.close()
    closed.close()
    del dropped
    gc.collect()
    assert driver_watch.live() == live
    with pytest.raises(RuntimeError):
        closed.sync()


def test_wrong_objects_are_refused(stream):
    for wrong in (None, 7, "stream"):
        with pytest.raises(ValueError, match=re.escape(repr(wrong))):
            stream.wait(wrong)
    with pytest.raises(TypeError):
        stream.record(7)


def captured(stream, use):
    """Run `use` while `stream` is being captured; tell whether the capture came through."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(stream, mode))
    try:
        use()
    finally:
        error, graph = driver.cuStreamEndCapture(stream)
    if error == driver.CUresult.CUDA_SUCCESS:
        check(driver.cuGraphDestroy(graph))
    return error == driver.CUresult.CUDA_SUCCESS


def test_a_question_about_a_captured_stream_leaves_the_capture_whole(device):
    handle = check(driver.cuStreamCreate(1))
    foreign, known = Stream.from_handle(int(handle)), Stream.from_handle(int(handle))
    assert known.is_nonblocking is True

    def ask():
        with pytest.raises(RuntimeError, match="while it is being captured"):
            foreign.is_nonblocking  # noqa: B018
        assert known.is_nonblocking is True
        assert foreign.priority == 0
        assert foreign.device == device
        assert foreign.context == device.context
        assert repr(foreign).startswith("<Stream handle=0x")

    assert captured(handle, ask)
    assert foreign.is_nonblocking is True
    check(driver.cuStreamDestroy(handle))


def test_a_stream_made_here_is_asked_nothing(device, driver_watch):
    stream = device.create_stream(options=StreamOptions(nonblocking=False))
    with driver_watch.no_call():
        assert stream.is_nonblocking is False
    stream.close()


class Foreign:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((1, 2), RuntimeError, "version 1; 0 is understood"),
        ((0,), RuntimeError, "a sequence with 2 elements.*got \\(0,\\)"),
        (3, RuntimeError, "a sequence with 2 elements.*got 3"),
        ((0, "2"), TypeError, "got str: '2'"),
        ((0, None), TypeError, "got NoneType: None"),
        ((0, -1), OverflowError, "got -1"),
        ((0, 2**64), OverflowError, "got 18446744073709551616"),
    ],
    ids=str,
)
def test_an_object_that_stands_for_a_stream_in_a_wrong_way_is_refused(device, stream, answer, error, text):
    for use in (device.create_stream, stream.wait):
        with pytest.raises(error, match=text):
            use(Foreign(answer))


@pytest.mark.parametrize("form", ["method", "attribute"])
def test_an_object_can_stand_for_a_stream(device, stream, form):
    handle = int(stream.handle)
    thing = Foreign((0, handle))
    if form == "attribute":
        thing.__cuda_stream__ = (0, handle)
    wrapped = device.create_stream(thing)
    assert wrapped == stream
    assert hash(wrapped) == hash(stream)
    wrapped.close()
    stream.wait(thing)
    stream.sync()


@pytest.mark.parametrize(
    "handle", ["2", b"2", 2.0, None, object()], ids=["str", "bytes", "float", "None", "object"]
)
def test_only_an_integer_is_the_handle_of_a_stream(handle):
    with pytest.raises(TypeError, match="the handle of a stream must be an integer"):
        Stream.from_handle(handle)


def test_a_handle_of_the_bindings_is_a_handle(stream):
    again = Stream.from_handle(stream.handle)
    assert again == stream
    again.close()


@pytest.mark.parametrize("priority", ["0", 0.0, object()], ids=["str", "float", "object"])
def test_a_priority_is_an_integer(device, driver_watch, priority):
    def create():
        with pytest.raises(TypeError, match="priority must be an integer or None"):
            device.create_stream(options=StreamOptions(priority=priority))

    assert not {name for name in driver_watch.calls_of(create) if "Stream" in name}


@pytest.mark.parametrize("options", [3, "fast"])
def test_options_of_a_wrong_type_are_named(device, stream, options):
    for use in (
        lambda: device.create_stream(options=options),
        lambda: device.create_event(options),
        lambda: stream.record(options=options),
    ):
        with pytest.raises(TypeError, match=repr(options)):
            use()


def test_a_closed_event_says_nothing_but_that(device):
    event = device.create_event(EventOptions(timing_enabled=True, blocking_sync=True))
    assert (event.is_timing_enabled, event.is_blocking_sync, event.is_ipc_enabled) == (True, True, False)
    assert event.device == device
    assert event.context == device.context
    event.close()
    for name in ("is_done", "context", "device", "is_timing_enabled", "is_blocking_sync", "is_ipc_enabled"):
        with pytest.raises(RuntimeError, match="Event has been closed"):
            getattr(event, name)
    assert "closed" in repr(event)
    assert event == event
    assert event.is_closed


@pytest.mark.parametrize("name", ["resources"])
def test_what_a_stream_lacks_in_this_build_says_so(stream, name):
    with pytest.raises(AttributeError, match=f"Stream.{name} is not in this build"):
        getattr(stream, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        stream.no_such_name  # noqa: B018


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("cuStreamQuery", lambda stream, event: stream.sync()),
        ("cuStreamIsCapturing", lambda stream, event: stream.sync()),
        ("cuEventRecord", lambda stream, event: stream.record()),
        ("cuEventRecord", lambda stream, event: stream.record(event)),
        ("cuEventRecord", lambda stream, event: stream.wait(stream)),
        ("cuStreamWaitEvent", lambda stream, event: stream.wait(stream)),
        ("cuStreamWaitEvent", lambda stream, event: stream.wait(event)),
        ("cuEventCreate", lambda stream, event: stream.record()),
        ("cuEventQuery", lambda stream, event: event.is_done),
        ("cuEventSynchronize", lambda stream, event: event.sync()),
        ("cuEventQuery", lambda stream, event: event.sync()),
        ("cuStreamGetPriority", lambda stream, event: Stream.from_handle(stream.handle).priority),
        ("cuStreamGetFlags", lambda stream, event: Stream.from_handle(stream.handle).is_nonblocking),
        ("cuStreamIsCapturing", lambda stream, event: Stream.from_handle(stream.handle).is_nonblocking),
        ("cuStreamGetCtx", lambda stream, event: Stream.from_handle(stream.handle).context),
    ],
)
def test_a_refused_call_of_a_stream_is_named_and_nothing_is_left(device, stream, driver_watch, function, use):
    event = device.create_event()
    stream.record(event)
    live = driver_watch.live()
    with driver_watch.fail(function, result="CUDA_ERROR_UNKNOWN") as failure:
        with pytest.raises(CUDAError, match=f"CUDA_ERROR_UNKNOWN.*{function}") as caught:
            use(stream, event)
    assert failure.fired == 1
    assert caught.value.function == function
    del caught
    assert driver_watch.live() == live
    use(stream, event)
    assert driver_watch.live() == live
    event.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("function", ["cuEventRecord", "cuEventSynchronize"])
def test_a_wait_for_work_that_is_refused_is_named_and_nothing_is_left(stream, driver_watch, function):
    live = driver_watch.live()
    with Gate(stream):
        during = driver_watch.live()
        with driver_watch.fail(function, result="CUDA_ERROR_UNKNOWN") as failure:
            with pytest.raises(CUDAError, match=f"CUDA_ERROR_UNKNOWN.*{function}"):
                stream.sync()
        assert failure.fired == 1
        assert driver_watch.live() == during
    stream.sync()
    assert driver_watch.live() == live


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_sync_without_memory_for_an_event_waits_all_the_same(stream, driver_watch):
    with Gate(stream) as gate:
        with driver_watch.fail("cuEventCreate", sticky=True) as failure:
            waiting = Waiting(stream.sync)
            assert waiting.waits()
            gate.open()
            assert waiting.result() is None
    assert failure.fired == 1


@pytest.mark.parametrize("joined", [False, True])
def test_a_sync_of_a_captured_stream_is_refused_and_the_capture_goes_on(device, stream, memory, joined):
    builder = stream.create_graph_builder().begin_building()
    other = device.create_stream()
    if joined:
        other.wait(stream)
    with pytest.raises(CUDAError, match=r"STREAM_CAPTURE_UNSUPPORTED.*cannot be waited for"):
        (other if joined else stream).sync()
    if joined:
        stream.wait(other)
    check(driver.cuMemsetD8Async(memory, 0x21, BYTES, int(stream.handle)))
    graph = builder.end_building().complete()
    builder.close()
    graph.launch(stream)
    stream.sync()
    assert read(memory, BYTES) == b"\x21" * BYTES
    graph.close()
    other.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_refused_close_of_an_event_can_be_made_again(device, driver_watch):
    event = device.create_event()
    with driver_watch.fail("cuEventDestroy", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError, match="cuEventDestroy"):
            event.close()
    assert not event.is_closed
    event.close()
    assert event.is_closed


@pytest.mark.watched
@pytest.mark.parametrize("what", ["stream", "event"])
def test_a_close_does_not_pull_away_what_another_thread_waits_for(device, driver_watch, what):
    """The waiting thread goes on with the handle that it has; the driver's object goes when it is done."""
    live = driver_watch.live()
    stream = device.create_stream()
    begun, go = threading.Event(), threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def stop(_):
        begun.set()
        go.wait(60)

    check(
        driver.cuLaunchHostFunc(stream.handle, driver.CUhostFn(ctypes.cast(stop, ctypes.c_void_p).value), 0)
    )
    event = stream.record()
    waited_for = stream if what == "stream" else event
    waiter = threading.Thread(target=waited_for.sync, daemon=True)
    waiter.start()
    assert begun.wait(60)
    time.sleep(0.05)  # into the driver's wait
    waited_for.close()
    waited_for.close()  # which must not forget the one that is in use
    assert waited_for.is_closed
    assert driver_watch.live()[what] == live.get(what, 0) + 1
    go.set()
    waiter.join(60)
    assert not waiter.is_alive()
    assert driver_watch.live().get(what, 0) == live.get(what, 0)
    stream.close()
    event.close()
    assert driver_watch.live() == live
