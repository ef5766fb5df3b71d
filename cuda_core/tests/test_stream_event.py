# SPDX-License-Identifier: Apache-2.0
"""Streams and events, as far as memory needs them: their handles, their order, their ends."""

import gc

import pytest

from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Event,
    EventOptions,
    Stream,
    StreamOptions,
)
from support import check, read

BYTES = 1 << 20


@pytest.fixture
def memory(device):
    address = int(check(driver.cuMemAlloc(BYTES)))
    yield address
    check(driver.cuMemFree(address))


@pytest.fixture
def stream(device):
    stream = device.create_stream()
    yield stream
    stream.close()


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
        with pytest.raises(TypeError):
            stream.wait(wrong)
    with pytest.raises(TypeError):
        stream.record(7)
