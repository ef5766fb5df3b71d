# SPDX-License-Identifier: Apache-2.0
"""Captures that begin while another thread uses the stream: they stay whole, and no memory is lost over them."""

import gc
import re
import threading
import time

import pytest

from buffer_kinds import SOURCES
from captures import capture, end_capture
from cuda.bindings import driver
from cuda.core import (
    PER_THREAD_DEFAULT_STREAM,
    CloseResult,
    CUDAError,
    Ownership,
    StreamOptions,
)
from cuda.core._memory._queue import drain
from held_work import Gate
from python_resources import Plain
from support import attempt, check, child_output, race, warnings_seen

pytestmark = pytest.mark.usefixtures("device")

BUILT_IN = {name: kind for name, kind in SOURCES.items() if kind.built_in}
SECONDS = 0.15  # without the lock most of these fail at once
CAPTURED = re.compile("being captured")


class Capturing:
    """A thread that begins captures of a stream and ends them, again and again, until it is told to stop."""

    def __init__(self, device, stream, mode, put=lambda builder: None):
        self.device, self.stream, self.mode, self.put = device, stream, mode, put
        self.broken, self.whole = [], 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.device.set_current()
        while not self._stop.is_set():
            builder = self.stream.create_graph_builder()
            try:
                builder.begin_building(self.mode)
                self.put(builder)
                builder.end_building()
                self.whole += 1
            except Exception as error:
                self.broken.append(str(error))
            builder.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the thread that captures hangs"


def goes_on(until, capturing, released):
    """Whether a race lasts: until then, and longer where a busy machine has given one side no turn."""
    now = time.monotonic()
    return now < until or (now < until + 20 and min(capturing.whole, released) <= 10)


def let_go(how, box, reason=CAPTURED):
    """End the buffer in the box. A close may be refused because of a capture, and is made again then."""
    if how == "drop":
        del box[0]
        return
    while True:
        _, error = attempt(box[0].close if how == "close" else lambda: box[0].close(wait=False), CUDAError)
        if error is None:
            del box[0]
            return
        assert reason.search(str(error)), error
        assert box[0].ownership is Ownership.OWNED


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("how", ["close", "close without waiting", "drop"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_capture_that_begins_beside_releases_stays_whole(device, kind, how, mode):
    source = BUILT_IN[kind](device)
    captured, mine = device.create_stream(), device.create_stream()
    until = time.monotonic() + SECONDS
    released = 0
    with warnings_seen() as seen, Capturing(device, captured, mode) as capturing:
        while goes_on(until, capturing, released):
            box = [source.allocate(stream=mine)]
            box[0].record_stream(captured)
            let_go(how, box)
            released += 1
            if released % 32 == 0:
                drain(0.1)  # what is dropped waits for the end of a capture, and there is nearly always one
    assert drain(20)
    assert capturing.broken == []
    assert min(capturing.whole, released) > 10
    assert [str(each.message) for each in seen] == []
    captured.close()
    mine.close()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("kind", ["virtual", "pinned", "device"])
def test_a_capture_that_begins_while_a_close_waits_stays_whole(device, kind, mode):
    stream = device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=stream)
    results = []
    with Gate(stream) as gate:
        closing = threading.Thread(target=lambda: results.append(buffer.close()), daemon=True)
        closing.start()
        time.sleep(0.1)  # it is in the driver by now, or the test shows less
        builder = stream.create_graph_builder().begin_building(mode)
        assert results == []
        gate.open_with_gil()
        closing.join(30)
        assert results == [CloseResult.DONE]
        assert builder.is_building
        builder.end_building().close()
    stream.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_wait_that_is_refused_for_a_capture_that_is_none_ends(device, driver_watch):
    """It is begun anew where a capture came and went, and not for ever."""
    stream = device.create_stream()
    buffer = SOURCES["virtual"](device).allocate(stream=stream)
    refusal = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    with Gate(stream) as gate:
        with driver_watch.fail("cuEventRecord", result=refusal, sticky=True):
            with pytest.raises(CUDAError, match=f"{refusal}.*cuEventRecord"):
                buffer.close()
        assert buffer.ownership is Ownership.OWNED
        gate.open()
    assert buffer.close() is CloseResult.DONE
    stream.close()


class CapturingElsewhere(Capturing):
    """The same through the driver, as another library would: nothing here can keep it waiting."""

    def _run(self):
        self.device.set_current()
        mode = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{self.mode.upper()}")
        while not self._stop.is_set():
            check(driver.cuStreamBeginCapture(int(self.stream.handle), mode))
            result, graph = driver.cuStreamEndCapture(int(self.stream.handle))
            if graph is not None and int(graph):
                check(driver.cuGraphDestroy(graph))
            if result == driver.CUresult.CUDA_SUCCESS:
                self.whole += 1
            else:
                self.broken.append(result.name)


@pytest.mark.sim_only  # a real driver does not synchronise the graph of a capture, and crashes
@pytest.mark.provokes_refusals
@pytest.mark.provokes_overlaps
@pytest.mark.parametrize("how", ["close", "close without waiting"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_capture_that_begins_elsewhere_beside_releases_loses_no_memory(device, driver_watch, kind, how):
    """A close that is refused over it can be made again.

    The refusal says that it is a capture's doing unless that is over by the time of the second question. The capture
    itself may be broken by it, not by the free of a pool: that is asked for behind events which are of no capture only.
    """
    source = BUILT_IN[kind](device)
    captured, mine = device.create_stream(), device.create_stream()
    others = [
        device.create_stream() for _ in range(8)
    ]  # the more, the longer between the question and the use
    until = time.monotonic() + SECONDS
    released = 0
    frees = driver_watch.calls().get("cuMemFreeAsync", 0)
    with warnings_seen() as seen, CapturingElsewhere(device, captured, "relaxed") as capturing:
        while goes_on(until, capturing, released):
            box = [source.allocate(stream=mine)]
            for one in (*others, captured):
                box[0].record_stream(one)
            let_go(how, box, re.compile("captur|INVALID_VALUE"))
            released += 1
    assert drain(20)
    assert min(capturing.whole, released) > 10
    if "pool" in kind:
        assert capturing.broken == []
        assert driver_watch.calls()["cuMemFreeAsync"] - frees == released
    assert [str(each.message) for each in seen] == []
    for one in (*others, captured, mine):
        one.close()


@pytest.mark.parametrize("how", ["close", "close without waiting", "drop"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_python_resource_is_not_asked_behind_several_streams_of_which_one_is_captured(device, how, which):
    """One would have to wait for the other, which breaks the capture, or takes the other stream into it."""
    streams = [device.create_stream() for _ in range(2)]
    resource = Plain()
    box = [resource.allocate(64, stream=streams[0])]
    address = box[0].handle
    box[0].record_stream(streams[1])
    capture(streams[which])
    with warnings_seen() as seen:
        if how == "drop":
            del box[0]
        else:
            with pytest.raises(CUDAError, match=r"being captured, and the release has several"):
                box[0].close(wait=how == "close")
            assert box[0].ownership is Ownership.OWNED
    assert len(seen) == (how == "drop")
    assert resource.asked == []
    for index, one in enumerate(streams):
        status = check(driver.cuStreamIsCapturing(int(one.handle)))
        assert bool(status) == (index == which)
    end_capture(streams[which])
    if how == "drop":
        resource.deallocate(address, 64)
    else:
        assert box[0].close() is CloseResult.DONE
    for one in streams:
        one.close()


def test_the_per_thread_stream_of_another_thread_is_its_own(device):
    """Waited for beside a capture, it must not be taken for the legacy stream, which waits for the captured one."""
    captured = device.create_stream(options=StreamOptions(nonblocking=False))
    builder = captured.create_graph_builder().begin_building()

    def wait():
        device.set_current()
        PER_THREAD_DEFAULT_STREAM.sync()
        return True

    assert race(wait) == [True]
    assert builder.is_building
    builder.end_building().close()
    captured.close()


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("what", ["fill", "copy", "copy from the host"])
def test_what_is_put_into_a_stream_while_a_capture_begins_is_there_for_its_graph(device, what):
    """It comes before the capture, or the graph keeps its memory: no graph uses what a buffer had."""
    stream = device.create_stream()
    source = SOURCES["device" if what == "copy" else "pinned"](device)
    lasting = SOURCES["device"](device).allocate(stream=device.default_stream)
    graphs = []
    stop = threading.Event()

    def build():
        device.set_current()
        while not stop.is_set() and len(graphs) < 500:
            builder = stream.create_graph_builder().begin_building()
            builder.end_building()
            graphs.append(builder.complete())
            builder.close()

    def put(buffer):
        if what == "fill":
            buffer.fill(1, stream=stream)
        else:
            buffer.copy_to(lasting, stream=stream)

    building = threading.Thread(target=build, daemon=True)
    building.start()
    buffers = 0
    while building.is_alive() and buffers < 3000:
        buffer = source.allocate(stream=device.default_stream)
        attempt(lambda one=buffer: put(one), CUDAError)  # refused where a capture ends
        buffers += 1
        attempt(buffer.close, CUDAError)
        del buffer
    stop.set()
    building.join(60)
    for graph in graphs:
        graph.launch(stream)  # memory that is gone would be a fault here
    stream.sync()
    for graph in graphs:
        graph.close()
    lasting.close()
    stream.close()
    gc.collect()
    assert drain(20)


COPIES = """
import threading, time
from cuda.core import CUDAError, Device
from buffer_kinds import SOURCES
from support import attempt, watching_driver
device = Device(0)
device.set_current()
streams = [device.create_stream() for _ in range(2)]
source = SOURCES["pinned"](device)
until = time.monotonic() + 1.5
made = []
def capture(stream):
    device.set_current()
    while time.monotonic() < until:
        builder = stream.create_graph_builder().begin_building("relaxed").end_building()
        graph = builder.complete()
        graph.launch(stream)
        builder.close()
        graph.close()
def copy():
    device.set_current()
    mine = device.create_stream()
    there = SOURCES["device"](device).allocate(stream=mine)
    while time.monotonic() < until:
        for stream in streams:
            here = source.allocate(stream=mine)
            here.record_stream(stream)
            attempt(lambda: here.copy_to(there, stream=stream), CUDAError)
            attempt(lambda: here.close(wait=False), CUDAError)
            made.append(here)
threads = [threading.Thread(target=capture, args=(stream,)) for stream in streams]
threads += [threading.Thread(target=copy) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for stream in streams:
    stream.sync()
for here in made:
    here.close()
watching = watching_driver()
print(len(made) > 20, list(watching.overlaps()) if watching else [])
"""


def test_a_copy_from_pinned_memory_is_in_no_graph_that_does_not_keep_it():
    """A fault of the device otherwise, where that graph is launched."""
    assert child_output(COPIES) == "True []\n"


def test_frees_in_many_streams_of_one_pool_beside_captures_end(device):
    """A pool remembers a few streams and puts events into the others: under the lock that would wait for itself."""
    resource = SOURCES["pool"](device).resource
    captured = device.create_stream()
    streams = [device.create_stream() for _ in range(9)]
    until = time.monotonic() + SECONDS
    released = 0
    with Capturing(device, captured, "relaxed") as capturing:
        while goes_on(until, capturing, released):
            resource.allocate(64, stream=streams[released % len(streams)]).close()
            released += 1
    assert capturing.broken == []
    for one in (captured, *streams):
        one.close()
