# SPDX-License-Identifier: Apache-2.0
"""Signals reach whoever waits for the queue: what a handler raises comes out, and nothing is lost."""

import contextlib
import signal
import time

import pytest

from buffer_kinds import SOURCES
from cuda.core import CloseResult, CUDAError, Ownership, VirtualMemoryResource
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from held_work import Gate
from support import GRANULE, free_memory, run_child

LIMIT = 1024


class Alarm(BaseException):
    """What the handler raises; no error of the package."""


@contextlib.contextmanager
def alarm(seconds=0.2):
    """Send this process one signal, whose handler raises."""

    def ring(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def queued():
    return _counters.live().get("queued", 0)


@pytest.fixture
def full(device, stream):
    """A queue that is full behind a gate."""
    resource = SOURCES["virtual"](device).resource
    buffers = [resource.allocate(GRANULE, stream=stream) for _ in range(LIMIT)]
    with Gate(stream) as gate:
        for buffer in buffers:
            assert buffer.close(wait=False) is CloseResult.QUEUED
        assert queued() == LIMIT
        yield gate
        gate.open()
        assert drain(30)


def test_a_close_that_waits_for_room(device, stream, full):
    last = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
    with alarm(), pytest.raises(Alarm):
        last.close(wait=False)
    assert not full.is_open
    assert last.ownership is Ownership.OWNED
    assert queued() == LIMIT
    full.open()
    assert last.close(wait=False) in (CloseResult.QUEUED, CloseResult.DONE)


def test_a_grow_that_waits_for_room(device, stream, full):
    resource = VirtualMemoryResource(device, {"wait_on_close": False})
    buffer = resource.allocate(GRANULE, stream=stream)
    with alarm(), pytest.raises(Alarm):
        resource.modify_allocation(buffer, 2 * GRANULE)
    assert not full.is_open
    assert buffer.ownership is Ownership.OWNED
    assert buffer.size == GRANULE
    full.open()
    resource.modify_allocation(buffer, 2 * GRANULE).close()


@pytest.mark.parametrize("timeout", [None, 15])
def test_draining(device, stream, timeout):
    buffer = SOURCES["pinned"](device).allocate(stream=stream)
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        with alarm(), pytest.raises(Alarm):
            drain(timeout)
        assert not gate.is_open
        assert queued() == 1
        gate.open()
        assert drain(20)


def test_the_timeout_of_draining_is_kept(device, stream):
    buffer = SOURCES["pinned"](device).allocate(stream=stream)
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        begun = time.monotonic()
        assert drain(0.3) is False
        assert time.monotonic() - begun >= 0.3
        gate.open()
        assert drain(20)


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["virtual", "device"])
def test_an_allocation_that_waits_for_memory(device, stream, kind):
    source = SOURCES[kind](device)
    size = free_memory() * 3 // 4 // GRANULE * GRANULE
    buffer = source.allocate(size, stream=stream)
    with Gate(stream) as gate:
        assert buffer.close(wait=False) is CloseResult.QUEUED
        with alarm(), pytest.raises(Alarm):
            try:
                source.allocate(size)
            except CUDAError:  # the exception is raised behind the allocation, which has failed
                time.sleep(1)
        assert not gate.is_open
        assert queued() == 1
        gate.open()
        assert drain(20)
    again = source.allocate(size)
    again.close()


def test_ctrl_c_ends_a_program_that_waits_for_room():
    done = run_child(
        """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background of a shell ignores it
from held_work import Gate
from support import GRANULE
from cuda.core import Device, VirtualMemoryResource
device = Device(0)
device.set_current()
stream = device.create_stream()
resource = VirtualMemoryResource(device)
buffers = [resource.allocate(GRANULE, stream=stream) for _ in range(1025)]
gate = Gate(stream)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for buffer in buffers:
        buffer.close(wait=False)
except KeyboardInterrupt:
    print("interrupted", gate.is_open, buffer is buffers[-1], buffer.ownership.name, flush=True)
gate.open()
buffer.close()
print(buffer.ownership.name, flush=True)
"""
    )
    assert done.stdout.splitlines() == ["interrupted False True OWNED", "RELEASED"], done
