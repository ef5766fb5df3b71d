# SPDX-License-Identifier: Apache-2.0
"""Many buffers are dropped while something is in the way: each costs the same, however many wait already."""

import gc
import time

import pytest

from buffer_kinds import SOURCES
from captures import capture, end_capture
from cuda.core import LegacyPinnedMemoryResource
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from held_work import Gate
from support import still_allocated

pytestmark = pytest.mark.watched


def queued():
    return _counters.live().get("queued", 0)


def calls_to_drop(driver_watch, buffers):
    """Return how many calls of the driver are made, by any thread, while buffers are dropped one by one."""
    before = sum(driver_watch.sim.calls().values())
    while buffers:
        buffers.pop()
    made = sum(driver_watch.sim.calls().values()) - before
    return made


@pytest.mark.parametrize("kind", ["pinned", "device"])
def test_behind_one_stream_that_is_captured(device, stream, driver_watch, kind):
    """The calls for each are bounded; they grew with what was waiting before."""
    source = SOURCES[kind](device)
    number = 600
    buffers = [source.allocate(4096, stream=stream) for _ in range(number)]
    capture(stream, "RELAXED")
    made = calls_to_drop(driver_watch, buffers)
    assert queued() == number
    end_capture(stream)
    assert drain(30)
    assert made < 60 * number  # that was 2,000,000, with 600


@pytest.mark.alone
def test_behind_as_many_streams_as_buffers(device, driver_watch):
    number = 400
    resource = LegacyPinnedMemoryResource()
    streams = [device.create_stream() for _ in range(number)]
    buffers = [resource.allocate(4096, stream=each) for each in streams]
    for each in streams:
        capture(each, "RELAXED")
    begun = time.monotonic()
    made = calls_to_drop(driver_watch, buffers)
    milliseconds = (time.monotonic() - begun) * 1000
    assert queued() == number
    for each in streams:
        end_capture(each)
    assert drain(30)
    # Those that wait are asked again and again meanwhile: soon at first, then every two milliseconds, also while new
    # ones come. Each question is three calls.
    assert made < number * (60 + 2 * milliseconds)
    for each in streams:
        each.close()


def test_what_waits_behind_a_capture_holds_up_no_other(device, stream, driver_watch):
    """With 500 blocked ones, one that can be returned is back when its collection returns."""
    other = device.create_stream()
    resource = LegacyPinnedMemoryResource()
    blocked = [resource.allocate(4096, stream=stream) for _ in range(500)]
    free = [resource.allocate(4096, stream=other) for _ in range(20)]
    capture(stream, "RELAXED")
    blocked.clear()
    assert queued() == 500
    while free:
        address = free[-1].handle
        free.pop()
        assert not still_allocated(address)
    assert queued() == 500
    end_capture(stream)
    assert drain(30)
    other.close()


@pytest.mark.alone
def test_with_an_idle_device_the_memory_is_back_when_the_collection_returns(device, stream):
    resource = LegacyPinnedMemoryResource()
    for _ in range(100):
        buffer = resource.allocate(4096, stream=stream)
        address = buffer.handle
        del buffer
        assert not still_allocated(address)


@pytest.mark.alone
def test_behind_work_that_goes_on_the_moment_is_given_once(device, stream):
    """And again when something has come back: 20 ms for each would be two seconds here."""
    resource = LegacyPinnedMemoryResource()
    buffers = [resource.allocate(4096, stream=stream) for _ in range(100)]
    addresses = [buffer.handle for buffer in buffers]
    with Gate(stream) as gate:
        begun = time.monotonic()
        buffers.clear()
        gc.collect()
        passed = time.monotonic() - begun
        assert not gate.is_open
        assert queued() == len(addresses)
        gate.open()
        assert drain(20)
    assert not any(map(still_allocated, addresses))
    assert passed < 1
    test_with_an_idle_device_the_memory_is_back_when_the_collection_returns(device, stream)


def test_each_stream_of_several_has_its_turn(device, driver_watch):
    """Groups that can be returned go, one after the other, while others stay."""
    resource = LegacyPinnedMemoryResource()
    streams = [device.create_stream() for _ in range(6)]
    buffers = {each: [resource.allocate(4096, stream=each) for _ in range(30)] for each in streams}
    for each in streams:
        capture(each, "RELAXED")
    for held in buffers.values():
        held.clear()
    for left, each in zip(range(5, -1, -1), streams, strict=True):
        end_capture(each)
        until = time.monotonic() + 20
        while queued() > 30 * left and time.monotonic() < until:
            time.sleep(0.001)
        assert queued() == 30 * left
    for each in streams:
        each.close()
