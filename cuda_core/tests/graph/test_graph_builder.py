# SPDX-License-Identifier: Apache-2.0
"""Builders: what may be called when, what is refused, and that no wrong call reaches the driver or spoils a capture."""

import copy
import pickle
import threading
import weakref

import pytest

from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Buffer, CUDAError, Device, Stream
from cuda.core.graph import Graph, GraphBuilder
from graph_tools import MODES, SIZE, built, launch, soon, status
from python_resources import Plain
from support import check, read, write

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def buffer():
    made = Plain().allocate(SIZE)
    yield made
    assert soon(lambda: made.loans == 0)
    made.close()


# --- the way from nothing to a graph -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("owner", ["device", "stream"])
def test_what_is_put_into_a_builder_runs_when_it_is_launched(device, stream, buffer, mode, owner):
    builder = (device if owner == "device" else stream).create_graph_builder()
    assert (builder.is_building, builder.is_join_required, builder.is_closed) == (False, False, False)
    assert builder.begin_building(mode) is builder
    assert builder.is_building
    buffer.fill(7, stream=builder)
    assert builder.end_building() is builder
    assert not builder.is_building
    write(buffer.handle, bytes(SIZE))  # a driver may give memory again with what was in it
    graph = builder.complete()
    builder.close()
    launch(graph, stream)
    assert read(buffer.handle, SIZE) == b"\x07" * SIZE
    graph.close()
    assert builder.is_closed
    assert graph.is_closed
    assert not stream.is_closed


def test_a_builder_is_accepted_where_a_stream_is(device, builder, buffer):
    assert isinstance(builder.stream, Stream)
    assert builder.__cuda_stream__() == builder.stream.__cuda_stream__()
    wrapped = device.create_stream(builder)
    assert wrapped == builder.stream
    view = Buffer.from_handle(buffer.handle, SIZE, owner=buffer, stream=builder)
    view.set_deallocation_stream(builder)
    view.record_stream(builder)
    view.close()
    other = device.create_stream()
    other.wait(builder)  # so it is in the capture, too
    assert status(other) == "ACTIVE"
    builder.stream.wait(other)
    builder.end_building()
    other.close()


def test_the_stream_of_a_stream_s_builder_stays_the_program_s(stream):
    builder = stream.create_graph_builder()
    assert builder.stream is stream
    builder.begin_building().end_building()
    builder.close()
    stream.sync()


def test_a_builder_can_capture_the_per_thread_stream(buffer):
    builder = PER_THREAD_DEFAULT_STREAM.create_graph_builder().begin_building()
    buffer.fill(9, stream=builder)
    graph = builder.end_building().complete()
    builder.close()
    launch(graph, PER_THREAD_DEFAULT_STREAM)
    assert read(buffer.handle, 4) == b"\x09" * 4
    graph.close()


def test_several_graphs_come_from_one_builder(stream, builder, buffer):
    buffer.fill(3, stream=builder)
    builder.end_building()
    graphs = [builder.complete() for _ in range(3)]
    builder.close()
    for graph in graphs:
        launch(graph, stream, times=2)
        graph.close()


# --- states ------------------------------------------------------------------------------------------------------


CALLS = {
    "begin_building": lambda b: b.begin_building(),
    "end_building": lambda b: b.end_building(),
    "complete": lambda b: b.complete(),
    "debug_dot_print": lambda b: b.debug_dot_print("/nonexistent/graph.dot"),
    "split": lambda b: b.split(2),
    "join": lambda b: GraphBuilder.join(b, b.other),
    "stream": lambda b: b.stream,
    "__cuda_stream__": lambda b: b.__cuda_stream__(),
    "is_building": lambda b: b.is_building,
}
NOT_BUILDING, FINISHED = "is not building", "has not finished building"
REFUSED = {
    "new": {
        "end_building": NOT_BUILDING,
        "complete": FINISHED,
        "debug_dot_print": FINISHED,
        "split": "must be building before it can be split",
    },
    "building": {"begin_building": "already building", "complete": FINISHED, "debug_dot_print": FINISHED},
    "ended": {
        "begin_building": "Cannot resume building",
        "end_building": NOT_BUILDING,
        "split": "must be building before it can be split",
    },
    "forked": {
        "begin_building": "already building",
        "end_building": "cannot end building",
        "complete": FINISHED,
        "debug_dot_print": FINISHED,
    },
    "closed": dict.fromkeys(set(CALLS) - {"join"}, "GraphBuilder has been closed"),
    "joined": dict.fromkeys(set(CALLS) - {"join"}, "GraphBuilder has been closed"),
}


class Stages:
    """A builder in each stage, and what else has to be closed for it."""

    def __init__(self, device):
        self.device, self.others = device, []

    def make(self, stage):
        builder = self.device.create_graph_builder()
        self.others.append(builder)
        if stage in ("building", "ended", "forked", "joined"):
            builder.begin_building()
        if stage == "ended":
            builder.end_building()
        if stage in ("forked", "joined"):
            first, second = builder.split(2)
            if stage == "joined":
                GraphBuilder.join(first, second)
            builder = second
            self.others.append(second)
        if stage == "closed":
            builder.close()
        return builder

    def close(self):
        for builder in reversed(self.others):
            builder.close()


@pytest.fixture
def stages(device):
    made = Stages(device)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("stage", "call"), [(stage, call) for stage, calls in REFUSED.items() for call in sorted(calls)]
)
def test_a_call_in_the_wrong_stage_is_refused_before_any_driver_call(driver_watch, stages, stage, call):
    builder = stages.make(stage)
    with driver_watch.no_call():
        with pytest.raises(RuntimeError, match=REFUSED[stage][call]):
            CALLS[call](builder)
        assert builder.is_closed == (stage in ("closed", "joined"))


@pytest.mark.parametrize("mode", ["bad", "GLOBAL", "", None, 0, 2, b"global", ["global"], object])
def test_an_unknown_mode_is_refused(driver_watch, device, mode):
    builder = device.create_graph_builder()
    with driver_watch.no_call(), pytest.raises(ValueError, match="Unsupported build mode"):
        builder.begin_building(mode)
    builder.begin_building().close()


@pytest.mark.parametrize(
    ("count", "kind"),
    [
        (1, ValueError),
        (0, ValueError),
        (-2, ValueError),
        (True, TypeError),
        (2.0, TypeError),
        ("2", TypeError),
        (None, TypeError),
    ],
)
def test_a_wrong_count_is_refused(driver_watch, builder, count, kind):
    with driver_watch.no_call(), pytest.raises(kind, match="count"):
        builder.split(count)
    assert builder.is_building


def test_what_cannot_be_joined_is_refused(driver_watch, device, builder):
    first, second = builder.split(2)
    other = device.create_graph_builder().begin_building()
    closed = device.create_graph_builder()
    closed.close()
    with driver_watch.no_call():
        for builders, kind, text in (
            ((), ValueError, "at least two"),
            ((first,), ValueError, "at least two"),
            ((first, 1), TypeError, "got int: 1"),
            ((first, None), TypeError, "NoneType"),
            ((first, first.stream), TypeError, "got Stream"),
            ((first, first), ValueError, "with itself"),
            ((first, other), ValueError, "different captures"),
            ((first, closed), RuntimeError, "closed"),
        ):
            with pytest.raises(kind, match=text):
                GraphBuilder.join(*builders)
    GraphBuilder.join(first, second).end_building()
    other.close()


def test_builders_and_graphs_are_not_made_or_copied_directly(builder):
    with pytest.raises(NotImplementedError, match="create_graph_builder"):
        GraphBuilder()
    with pytest.raises(RuntimeError, match="not supported"):
        Graph()
    graph = builder.end_building().complete()
    for one in (builder, graph):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                way(one)
        assert weakref.ref(one)() is one
    graph.close()


@pytest.mark.parametrize(
    "name",
    [
        "create_condition",
        "embed",
        "graph_definition",
        "if_else",
        "if_then",
        "switch",
        "while_loop",
    ],
)
def test_what_a_builder_lacks_in_this_build_says_so(builder, name):
    with pytest.raises(AttributeError, match=f"GraphBuilder.{name} is not in this build"):
        getattr(builder, name)


def test_what_the_package_lacks_in_this_build_says_so():
    from cuda.core import graph

    for name in ("GraphDefinition", "GraphCondition", "KernelNode"):
        with pytest.raises(AttributeError, match=f"cuda.core.graph.{name} is not in this build"):
            getattr(graph, name)
    with pytest.raises(AttributeError, match="has no attribute 'Grph'"):
        _ = graph.Grph


def test_a_builder_needs_a_current_context_of_its_device(device):
    check(driver.cuCtxSetCurrent(0))
    with pytest.raises(CUDAError, match="set_current"):
        Device(0).create_graph_builder()
    device.set_current()


def test_a_closed_stream_gives_no_builder(device):
    stream = device.create_stream()
    stream.close()
    with pytest.raises(RuntimeError, match="Stream has been closed"):
        stream.create_graph_builder()


def test_the_legacy_stream_is_not_captured(driver_watch):
    builder = LEGACY_DEFAULT_STREAM.create_graph_builder()
    before = driver_watch.calls().get("cuStreamBeginCapture")
    with pytest.raises(CUDAError, match="legacy default stream is never captured"):
        builder.begin_building()
    assert driver_watch.calls().get("cuStreamBeginCapture") == before
    builder.close()


@pytest.mark.provokes_refusals
def test_a_stream_that_is_being_captured_already_is_left_as_it_is(stream, buffer):
    first, second = stream.create_graph_builder().begin_building(), stream.create_graph_builder()
    with pytest.raises(CUDAError, match="ILLEGAL_STATE"):
        second.begin_building()
    assert not second.is_building
    second.close()
    assert first.is_building
    first.end_building()
    assert second.is_closed
    first.close()


# --- broken captures ---------------------------------------------------------------------------------------------


def spoil(stream):
    assert driver.cuStreamSynchronize(int(stream.handle))[0] != driver.CUresult.CUDA_SUCCESS
    assert status(stream) == "INVALIDATED"


@pytest.mark.provokes_refusals
def test_a_broken_capture_says_so_and_can_be_closed(device, stream, buffer):
    builder = stream.create_graph_builder().begin_building()
    buffer.fill(1, stream=builder)
    spoil(stream)
    with pytest.raises(RuntimeError, match="capture is broken"):
        _ = builder.is_building
    with pytest.raises(RuntimeError, match="capture is broken"):
        builder.split(2)
    with pytest.raises(CUDAError, match="CAPTURE_INVALIDATED"):
        builder.end_building()
    assert status(stream) == "NONE"
    assert not builder.is_building
    for call in (builder.complete, lambda: builder.debug_dot_print("x")):
        with pytest.raises(RuntimeError, match="gave no graph"):
            call()
    with pytest.raises(RuntimeError, match="is not building"):
        builder.end_building()
    builder.close()
    stream.sync()


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_broken_capture_is_ended_quietly(device, stream, buffer, how):
    box = [stream.create_graph_builder().begin_building()]
    buffer.fill(1, stream=box[0])
    spoil(stream)
    if how == "close":
        box[0].close()
    box.clear()
    assert status(stream) == "NONE"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("forked", [False, True], ids=["alone", "forked"])
def test_a_builder_given_up_in_the_middle_ends_its_capture(
    device, stream, buffer, mode, how, forked, request
):
    if forked:
        request.node.add_marker(pytest.mark.provokes_refusals)  # the end of an unjoined capture is refused
    box = [stream.create_graph_builder().begin_building(mode)]
    if forked:
        box += box[0].split(3)[1:]
    for builder in box:
        buffer.fill(1, stream=builder)
    if how == "close":
        for builder in box:
            builder.close()
    del builder
    box.clear()
    assert status(stream) == "NONE"
    stream.sync()


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("mode", MODES)
def test_a_capture_ends_on_the_thread_on_which_it_began(stream, mode):
    builder = stream.create_graph_builder().begin_building(mode)
    outcome = []

    def end():
        try:
            outcome.append(builder.end_building())
        except CUDAError as error:
            outcome.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    if mode == "relaxed":
        assert outcome == [builder]
    else:
        assert "WRONG_THREAD" in str(outcome[0])
        with pytest.raises(RuntimeError, match="gave no graph"):
            builder.complete()
    outcome.clear()
    assert status(stream) == "NONE"
    builder.close()


def test_a_builder_outlives_the_close_of_its_stream_object(device, buffer):
    stream = device.create_stream()
    builder = stream.create_graph_builder().begin_building()
    buffer.fill(5, stream=stream)
    stream.close()
    with pytest.raises(RuntimeError, match="Stream has been closed"):
        buffer.fill(6, stream=builder)
    graph = builder.end_building().complete()
    builder.close()
    launch(graph, device.default_stream)
    assert read(buffer.handle, 4) == b"\x05" * 4
    graph.close()


# --- fork and join -----------------------------------------------------------------------------------------------


def test_branches_run_and_meet(device, stream):
    resource = Plain()
    one, two, three = (resource.allocate(SIZE) for _ in range(3))
    with built(device) as builder:
        one.fill(1, stream=builder)
        first, second, third = builder.split(3)
        assert first is builder
        assert [b.is_join_required for b in (first, second, third)] == [False, True, True]
        assert all(b.is_building for b in (first, second, third))
        one.copy_to(two, stream=second)
        one.copy_to(three, stream=third)
        second_first, fourth = second.split(2)
        assert second_first is second
        assert GraphBuilder.join(second, fourth) is second  # both need a join: the first goes on
        assert GraphBuilder.join(third, first, second) is first
        assert [b.is_closed for b in (first, second, third, fourth)] == [False, True, True, True]
        two.copy_to(one, stream=builder)
    graph = builder.complete()
    builder.close()
    launch(graph, stream)
    assert {read(b.handle, SIZE) for b in (one, two, three)} == {b"\x01" * SIZE}
    graph.close()
    for buffer in (one, two, three):
        assert soon(lambda buffer=buffer: buffer.loans == 0)
        buffer.close()


def test_a_capture_with_open_branches_does_not_end(device, builder, buffer):
    first, second = builder.split(2)
    buffer.fill(1, stream=second)
    with pytest.raises(RuntimeError, match=r"1 GraphBuilder.* not joined"):
        builder.end_building()
    assert builder.is_building
    GraphBuilder.join(first, second)
    builder.end_building().complete().close()
    builder.close()


@pytest.mark.provokes_refusals
def test_a_branch_that_was_closed_instead_of_joined_spoils_the_graph(device, builder, buffer):
    second = builder.split(2)[1]
    buffer.fill(1, stream=second)
    second.close()
    with pytest.raises(CUDAError, match="CAPTURE_UNJOINED"):
        builder.end_building()
    assert not builder.is_building


@pytest.mark.watched
def test_streams_of_branches_last_until_the_end_of_the_capture(driver_watch, device, builder):
    streams = driver_watch.live()["stream"]
    first, *others = builder.split(4)
    GraphBuilder.join(first, *others)
    del others
    assert driver_watch.live()["stream"] == streams + 3
    builder.end_building()
    assert driver_watch.live()["stream"] == streams
