# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside the operations of graphs fails in turn, once and for good.

What is called, how often and in which order is found by running the operation once, so the tests follow the
implementation.
"""

import gc

import pytest

from captures import capture, end_capture
from cuda.bindings import driver
from cuda.core import CloseResult, CUDAError, CUDAWarning, DeviceMemoryResource, Ownership
from cuda.core._memory._queue import drain
from cuda.core.graph import GraphBuilder
from graph_tools import SIZE, graph_memory_in_use, launch, round_trip, scratch, soon, status
from memory_kinds import pattern
from python_resources import Plain
from support import attempt, calls_in_order, check, read, still_allocated, warnings_seen, write

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
EXCHANGE = "cuThreadExchangeStreamCaptureMode"
# What undoes a step that has had its effect. A refused destruction is told of, and tried again with the next one.
UNDOING = {"cuCtxPopCurrent", "cuEventDestroy", "cuStreamDestroy"}


@pytest.fixture(autouse=True)
def the_mode_of_the_thread(device):
    """Where giving the capture mode back is what fails, the thread keeps the one it was lent."""
    yield
    check(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))


class Scene:
    """Something to be done, once: what it stands on, the operation, and what must hold."""

    launches = ()  # names of the driver's calls after which the operation has succeeded, whatever follows
    asked_only = ()  # names of calls whose answer is a wish: without it another way is taken

    def __init__(self, device, stream):
        self.device, self.stream = device, stream
        self.resource = Plain()
        self.source, self.target = (self.resource.allocate(SIZE) for _ in range(2))
        write(self.source.handle, pattern(SIZE))
        self.builder = stream.create_graph_builder()
        self.graph = self.memory = None
        self.prepare()

    def prepare(self):
        self.builder.begin_building()

    def operate(self):
        raise NotImplementedError

    def refused(self):
        """What must hold after the operation was refused; the operation is then made again."""

    def finish(self):
        """Go on to the end, which must be a good one."""

    def close(self):
        self.finish()
        for one in (self.graph, self.builder):
            if one is not None:
                one.close()
        self.graph = None
        if self.memory is not None:
            self.memory.close()
            self.memory = None
        assert status(self.stream) == "NONE"
        for buffer in (self.source, self.target):
            assert soon(lambda buffer=buffer: buffer.loans == 0)
            buffer.close()
        assert soon(lambda: graph_memory_in_use() == 0)

    def run_to_the_end(self):
        """End the capture, launch, and look at the bytes."""
        if self.builder.is_building:
            self.builder.end_building()
        if self.graph is None:
            self.graph = self.builder.complete()
        for seed in (1, 2):
            write(self.source.handle, pattern(SIZE, seed))
            launch(self.graph, self.stream)
            assert read(self.target.handle, SIZE) == pattern(SIZE, seed)
            if self.memory is not None:
                self.memory.close()


class Begin(Scene):
    def prepare(self):
        pass

    def operate(self):
        self.builder.begin_building("global")

    def refused(self):
        assert not self.builder.is_building
        assert status(self.stream) == "NONE"

    def finish(self):
        round_trip(self.builder, self.source, self.target)
        self.run_to_the_end()


class End(Scene):
    def prepare(self):
        super().prepare()
        round_trip(self.builder, self.source, self.target)

    def operate(self):
        self.builder.end_building()

    def refused(self):
        assert self.builder.is_building

    finish = Scene.run_to_the_end


class Split(Scene):
    asked_only = ("cuCtxGetId",)  # before a stream or an event is destroyed

    def prepare(self):
        super().prepare()
        self.first = scratch(self.builder)
        self.first.copy_from(self.source, stream=self.builder)
        self.builders = ()

    def operate(self):
        self.builders = self.builder.split(4)

    def refused(self):
        assert self.builder.is_building

    def finish(self):
        for index, one in enumerate(self.builders[1:]):
            part = self.first[index * 1024 : (index + 1) * 1024]
            part.copy_to(part, stream=one)
            part.close()
        GraphBuilder.join(*self.builders)
        self.target.copy_from(self.first, stream=self.builder)
        self.first.close()
        self.run_to_the_end()


class Join(Scene):
    asked_only = ("cuCtxGetId",)  # before a stream or an event is destroyed

    def prepare(self):
        super().prepare()
        self.builders = self.builder.split(3)
        round_trip(self.builders[1], self.source, self.target)

    def operate(self):
        GraphBuilder.join(*self.builders)

    def refused(self):
        assert [one.is_closed for one in self.builders] == [False] * 3
        assert self.builder.is_building

    finish = Scene.run_to_the_end


class Complete(Scene):
    def prepare(self):
        super().prepare()
        round_trip(self.builder, self.source, self.target)
        self.builder.end_building()

    def operate(self):
        self.graph = self.builder.complete({"upload_stream": self.stream})

    def refused(self):
        assert self.graph is None

    finish = Scene.run_to_the_end


class Completed(Complete):
    def prepare(self):
        super().prepare()
        self.graph = self.builder.complete()

    def refused(self):
        assert not self.graph.is_closed


class Upload(Completed):
    def operate(self):
        self.graph.upload(self.stream)


class Launch(Completed):
    launches = ("cuGraphLaunch",)

    def prepare(self):
        Scene.prepare(self)
        round_trip(self.builder, self.source, self.target, close=False)  # freed behind each launch
        self.builder.end_building()
        self.graph = self.builder.complete()

    def operate(self):
        self.graph.launch(self.stream)


class Update(Completed):
    def prepare(self):
        Scene.prepare(self)
        self.target.copy_from(self.source, stream=self.builder)
        self.builder.end_building()
        self.graph = self.builder.complete()

    def operate(self):
        self.graph.update(self.builder)


class CloseGraph(Completed):
    """With memory that a buffer owns, and memory that nobody owns and that the driver's own launch has left."""

    asked_only = ("cuCtxGetCurrent", "cuStreamIsCapturing")

    def prepare(self):
        Scene.prepare(self)
        self.memory, left = scratch(self.builder), scratch(self.builder)
        self.memory.copy_from(self.source, stream=self.builder)
        self.builder.end_building()
        self.graph = self.builder.complete()
        left.close()
        check(driver.cuGraphLaunch(int(self.graph.handle), int(self.stream.handle)))
        self.stream.sync()

    def operate(self):
        self.graph.close()

    def refused(self):
        assert not self.graph.is_closed

    def finish(self):
        assert self.graph.is_closed
        self.graph = None
        assert read(self.memory.handle, SIZE) == pattern(SIZE)


class CloseBuilder(Completed):
    def operate(self):
        self.builder.close()

    def refused(self):
        assert not self.builder.is_closed

    def finish(self):
        assert self.builder.is_closed
        launch(self.graph, self.stream)


class CloseWhileBuilding(Scene):
    def prepare(self):
        super().prepare()
        self.target.copy_from(self.source, stream=self.builder)

    operate = CloseBuilder.operate
    refused = CloseBuilder.refused


class Allocate(Scene):
    def operate(self):
        self.between = scratch(self.builder)

    def refused(self):
        assert self.builder.is_building

    def finish(self):
        self.between.copy_from(self.source, stream=self.builder)
        self.target.copy_from(self.between, stream=self.builder)
        self.between.close()
        self.run_to_the_end()


class Free(Scene):
    """In the capture, on the builder's own stream."""

    def prepare(self):
        super().prepare()
        self.between = round_trip(self.builder, self.source, self.target, close=False)

    def operate(self):
        assert self.between.close() is CloseResult.DONE

    def refused(self):
        assert self.between.ownership is Ownership.OWNED
        assert self.builder.is_building

    def finish(self):
        assert self.between.ownership is Ownership.RELEASED
        self.run_to_the_end()


class FreeOnABranch(Free):
    """In the capture, on a branch that is joined already."""

    def prepare(self):
        Scene.prepare(self)
        first, second = self.builder.split(2)
        self.between = round_trip(second, self.source, self.target, close=False)
        GraphBuilder.join(first, second)


class FreeBehindSeveral(Free):
    """In the capture, behind several streams."""

    def prepare(self):
        Scene.prepare(self)
        first, second = self.builder.split(2)
        self.between = round_trip(self.builder, self.source, self.target, close=False)
        self.between.record_stream(second)
        self.branches = (first, second)

    def finish(self):
        GraphBuilder.join(*self.branches)
        super().finish()


class FreeOutside(Completed):
    """Behind a launch on another stream than the buffer's."""

    asked_only = ("cuCtxGetId",)  # before the stream of the free is destroyed

    def prepare(self):
        Scene.prepare(self)
        self.between = round_trip(self.builder, self.source, self.target, close=False)
        self.address = self.between.handle
        self.builder.end_building()
        self.graph = self.builder.complete()
        self.other = self.device.create_stream()
        self.graph.launch(self.other)

    def operate(self):
        assert self.between.close() is CloseResult.DONE

    def refused(self):
        assert self.between.ownership is Ownership.OWNED

    def finish(self):
        self.other.close()
        assert not still_allocated(self.address)
        self.run_to_the_end()


SCENES = [
    Begin,
    End,
    Split,
    Join,
    Complete,
    Upload,
    Launch,
    Update,
    CloseGraph,
    CloseBuilder,
    CloseWhileBuilding,
    Allocate,
    Free,
    FreeOnABranch,
    FreeBehindSeveral,
    FreeOutside,
]


def may_succeed(calls, at, launches):
    """Tell whether the operation may succeed although this call is refused."""
    name, n = calls[at]
    return (
        (name == EXCHANGE and n % 2 == 0)  # the mode is given back
        or any(call in launches for call, _ in calls[:at])
    )


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("kind", SCENES)
def test_every_call_of_an_operation_of_graphs_fails(driver_watch, device, stream, kind, sticky):
    scene = kind(device, stream)
    calls = calls_in_order(driver_watch, scene.operate)[1]
    scene.close()
    assert calls
    for at, (name, n) in enumerate(calls):
        if name == "cuCtxPopCurrent":
            continue
        scene = kind(device, stream)
        with (
            driver_watch.fail(name, nth=n, result="CUDA_ERROR_UNKNOWN", sticky=sticky) as failure,
            warnings_seen() as seen,
        ):
            _, error = attempt(scene.operate, CUDAError)
        assert failure.fired >= 1, (name, n)
        assert name in UNDOING or not seen, (name, n)
        if error is None:
            assert name in (*kind.asked_only, *UNDOING) or may_succeed(calls, at, kind.launches), (name, n)
        else:
            assert name in str(error), (name, n)
            del error
            scene.refused()
            scene.operate()
        scene.close()


# --- what is dropped ---------------------------------------------------------------------------------------------


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("name", ["cuGraphExecDestroy", EXCHANGE])
def test_a_dropped_graph_that_is_refused_is_told_of_once_and_tried_again(
    driver_watch, device, stream, name, sticky
):
    builder = stream.create_graph_builder().begin_building()
    buffer = Plain().allocate(SIZE)
    buffer.fill(1, stream=builder)
    builder.end_building()
    box = [builder.complete()]
    with warnings_seen() as seen:
        with driver_watch.fail(name, result="CUDA_ERROR_UNKNOWN", sticky=sticky):
            box.clear()
            gc.collect()
    assert [one.category for one in seen] == [CUDAWarning]
    assert "could not be destroyed" in str(seen[0].message)
    assert driver_watch.live()["graph_exec"] == 1
    with warnings_seen() as seen:
        builder.complete().close()
    assert seen == []
    assert "graph_exec" not in driver_watch.live()
    builder.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()


def test_a_dropped_builder_whose_graph_is_refused_is_told_of(driver_watch, device):
    box = [device.create_graph_builder().begin_building().end_building()]
    with warnings_seen() as seen:
        with driver_watch.fail("cuGraphDestroy", result="CUDA_ERROR_UNKNOWN") as failure:
            box.clear()
            gc.collect()
    assert failure.fired == 1
    assert [one.category for one in seen] == [CUDAWarning]
    assert "could not be destroyed" in str(seen[0].message)
    device.create_graph_builder().begin_building().end_building().close()
    assert "graph" not in driver_watch.live()  # it was tried again


DROPS = {"in the capture": Free, "in the capture, on a branch": FreeOnABranch, "behind a launch": FreeOutside}


@pytest.mark.provokes_overlaps  # the test itself asks how the capture goes, and the reaper may ask at that moment
@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("kind", DROPS.values(), ids=DROPS)
def test_every_call_of_a_dropped_buffer_fails(driver_watch, device, stream, kind, sticky):
    """It is freed, or left to the graph, or told of once; never twice, and no capture is broken."""
    scene = kind(device, stream)
    calls = calls_in_order(driver_watch, scene.operate)[1]
    scene.close()
    for name, n in calls:
        if name in UNDOING:
            continue
        scene = kind(device, stream)
        address = scene.between.handle
        with warnings_seen() as seen:
            with driver_watch.fail(name, nth=n, result="CUDA_ERROR_UNKNOWN", sticky=sticky):
                scene.between = None
                gc.collect()
        assert [one.category for one in seen] in ([], [CUDAWarning]), (name, n)
        assert status(stream) in ("ACTIVE", "NONE")
        if scene.builder.is_building:
            scene.builder.end_building()
        drain(20)
        told = list(seen)
        if scene.graph is None:
            scene.graph = scene.builder.complete()
            launch(scene.graph, stream)
        if told:
            check(driver.cuMemFreeAsync(address, int(stream.handle)))  # as was said, it stays allocated
            stream.sync()
        assert not still_allocated(address), (name, n)
        if kind is FreeOutside:
            scene.other.close()
        scene.finish = lambda: None
        scene.close()


def test_a_builder_whose_end_was_refused_ends_no_capture_of_another(device, driver_watch):
    """Whether the first is over could not be asked, so it takes itself for building; another has its stream by then."""
    stream, branch = device.create_stream(), device.create_stream()
    buffer = DeviceMemoryResource(device).allocate(SIZE, stream=device.default_stream)
    first = stream.create_graph_builder().begin_building()
    branch.wait(stream)
    buffer.fill(1, stream=branch)  # and is not joined: the end is refused, and the capture over
    with (
        driver_watch.fail("cuStreamGetCaptureInfo", nth=2, result="CUDA_ERROR_UNKNOWN"),
        driver_watch.fail("cuStreamIsCapturing", result="CUDA_ERROR_UNKNOWN"),
        pytest.raises(CUDAError, match="UNJOINED"),
    ):
        first.end_building()
    assert "building" in repr(first)
    second = stream.create_graph_builder().begin_building()
    first.close()
    assert second.is_building
    second.end_building().close()
    buffer.close()
    for one in (branch, stream):
        one.close()


def test_an_end_is_not_put_into_the_capture_of_another(device):
    """Other code has ended a builder's capture, and begun one of its own."""
    stream = device.create_stream()
    builder = stream.create_graph_builder().begin_building()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    capture(stream)
    with pytest.raises(CUDAError, match="ILLEGAL_STATE"):
        builder.end_building()
    builder.close()
    assert status(stream) == "ACTIVE"
    end_capture(stream)
    stream.close()
