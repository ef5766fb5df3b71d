# SPDX-License-Identifier: Apache-2.0
"""No call for a stream is made beside one that begins or ends its capture, nor are two at once in one capture.

Nor is a stream asked or waited for beside a launch into it. A real driver does not keep such calls apart and may crash,
or answer a launch with UNKNOWN; the simulated one notes them, and every test fails where one was noted. Here all that a
program puts into a stream, or asks of it, is done by several threads while another captures, or launches.
"""

import contextlib
import itertools
import threading
import time

import pytest

from cuda.bindings import driver
from cuda.core import (
    CloseResult,
    CUDAError,
    DeviceMemoryResource,
    GraphMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    Stream,
    VirtualMemoryResource,
)
from cuda.core._memory._queue import drain
from cuda.core.utils import CopyOptions, copy_batch
from graph_tools import soon
from support import GRANULE, attempt, check, simulated

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.provokes_refusals]

SECONDS = 0.25
SIZE = 4096
REFUSALS = (CUDAError, RuntimeError, TypeError)  # what is never captured says so in one of these


class Place:
    """A stream that is captured again and again, and what is used in it."""

    def __init__(self, device):
        self.device = device
        self.stream, self.mine = device.create_stream(), device.create_stream()
        self.pool = DeviceMemoryResource(device, {})
        self.pinned = LegacyPinnedMemoryResource()
        self.managed = ManagedMemoryResource({})
        self.virtual = VirtualMemoryResource(device)
        self.graph_memory = GraphMemoryResource(device)
        self.there, self.elsewhere = (self.pool.allocate(SIZE, stream=self.mine) for _ in range(2))
        self.at_host = self.pinned.allocate(SIZE)
        self.everywhere = self.managed.allocate(SIZE, stream=self.mine)
        self.event = self.mine.record()
        builder = device.create_graph_builder().begin_building()
        self.there.fill(1, stream=builder)
        self.graph = builder.end_building().complete()
        builder.close()
        self.mine.sync()

    def close(self):
        self.graph.close()
        for one in (self.there, self.elsewhere, self.at_host, self.everywhere):
            # What graphs have held is let go of on a thread, and behind exports the streams must live until then.
            assert soon(lambda buffer=one: buffer.loans == 0)
            assert one.close(self.mine) is CloseResult.DONE
        for one in (self.pool, self.managed, self.stream, self.mine):
            one.close()

    def release(self, resource, size, **how):
        buffer = resource.allocate(size, stream=self.mine)
        buffer.record_stream(self.stream)
        while attempt(lambda: buffer.close(**how), REFUSALS)[1] is not None:  # a capture goes on
            time.sleep(0.0001)

    def take_in(self):
        joined = self.device.create_stream()
        with contextlib.suppress(*REFUSALS):
            joined.wait(self.stream)
        joined.close()

    def drop(self, resource, size):
        resource.allocate(size, stream=self.mine).record_stream(self.stream)


USES = {
    "record": lambda at: at.stream.record(),
    "record, and ask": lambda at: at.stream.record().is_done,
    "record, and wait for it": lambda at: at.stream.record().sync(),
    "take a stream into it": lambda at: at.take_in(),
    "wait for all work": lambda at: at.stream.sync(),
    "wait for an event": lambda at: at.stream.wait(at.event),
    "wait for a stream": lambda at: at.stream.wait(at.mine),
    "let another wait": lambda at: at.mine.wait(at.stream),
    "ask": lambda at: (Stream.from_handle(int(at.stream.handle)).is_nonblocking, at.stream.priority),
    "fill": lambda at: at.there.fill(2, stream=at.stream),
    "copy": lambda at: at.there.copy_to(at.elsewhere, stream=at.stream),
    "copy from the host": lambda at: at.there.copy_from(at.at_host, stream=at.stream),
    "copy with options": lambda at: at.there.copy_to(at.elsewhere, stream=at.stream, options=CopyOptions()),
    "batch": lambda at: copy_batch(at.stream, [at.there], [at.elsewhere]),
    "allocate": lambda at: at.pool.allocate(SIZE, stream=at.stream).close(at.mine),
    "allocate for the graph": lambda at: at.graph_memory.allocate(SIZE, stream=at.stream).close(),
    "release to a pool": lambda at: at.release(at.pool, SIZE),
    "release virtual memory": lambda at: at.release(at.virtual, GRANULE),
    "release without waiting": lambda at: at.release(at.pinned, SIZE, wait=False),
    "drop": lambda at: at.drop(at.pinned, SIZE),
    "drop what is of a pool": lambda at: at.drop(at.pool, SIZE),
    "export": lambda at: at.there.__dlpack__(stream=int(at.stream.handle)),
    "export a copy": lambda at: at.there.__dlpack__(stream=int(at.stream.handle), copy=True),
    "prefetch": lambda at: at.everywhere.prefetch(at.device, stream=at.stream),
    "launch": lambda at: at.graph.launch(at.stream),
    "upload": lambda at: at.graph.upload(at.stream),
}
# What is outside of a capture, or not joined at its end, breaks it, and so does a question about what has not run.
BREAKS_IT = (
    "record, and ask",
    "record, and wait for it",
    "take a stream into it",
    "wait for an event",
    "wait for a stream",
)


@contextlib.contextmanager
def slow_calls():
    """Keep the simulated driver at work, so that calls of other threads take long, and meet."""
    if not simulated():
        yield
        return
    size = 4 << 20
    stream, pointer = check(driver.cuStreamCreate(1)), check(driver.cuMemAlloc(size))
    over = threading.Event()

    def work():
        while not over.is_set():
            check(driver.cuMemsetD8Async(pointer, 1, size, stream))
            time.sleep(0.0002)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        check(driver.cuMemFree(pointer))
        check(driver.cuStreamDestroy(stream))


def capture_until(place, over, whole):
    """Capture the stream again and again, for nothing and for a while, and give no graph away."""
    place.device.set_current()
    for pause in itertools.cycle((0, 0.002)):
        if over.is_set():
            return
        builder = place.stream.create_graph_builder()
        _, broken = attempt(lambda one=builder: one.begin_building("relaxed"), REFUSALS)
        time.sleep(pause)
        _, refused = attempt(builder.end_building, REFUSALS)
        if broken is None and refused is None:
            whole.append(None)
        builder.close()


def use_until(place, over, use, done):
    place.device.set_current()
    while not over.is_set():
        done.append(attempt(lambda: use(place), REFUSALS)[1])
        time.sleep(0)  # else a thread that is refused in Python keeps the others from their turn


@pytest.mark.parametrize("name", USES)
def test_no_two_threads_are_in_one_capture(device, name):
    place = Place(device)
    over, whole, done, others = threading.Event(), [], [], []
    threads = [threading.Thread(target=capture_until, args=(place, over, whole), daemon=True)]
    for use, kept in ((USES[name], done), (USES[name], done), (USES["fill"], others)):
        threads.append(threading.Thread(target=use_until, args=(place, over, use, kept), daemon=True))
    with slow_calls():
        for thread in threads:
            thread.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or (
            min(len(done), len(others)) < 20 and time.monotonic() < until + 20
        ):
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
    assert None in others  # a fill is refused only where another use has broken the capture
    assert whole or name in BREAKS_IT
    assert drain(20)
    place.stream.sync()
    place.close()


@pytest.mark.parametrize("name", USES)
def test_no_thread_asks_for_the_work_of_a_stream_beside_a_launch(device, name):
    place = Place(device)
    over, launches, done, waits = threading.Event(), [], [], []
    uses = (
        (USES["launch"], launches),
        (USES["launch"], launches),
        (USES[name], done),
        (USES["release without waiting"], waits),
        (USES["wait for all work"], waits),
    )
    threads = [
        threading.Thread(target=use_until, args=(place, over, use, kept), daemon=True) for use, kept in uses
    ]
    with slow_calls():
        for thread in threads:
            thread.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or (
            min(len(launches), len(done), len(waits)) < 20 and time.monotonic() < until + 20
        ):
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
    assert set(launches) == {None}
    assert set(waits) == {None}
    assert drain(20)
    place.stream.sync()
    place.close()
