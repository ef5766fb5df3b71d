# SPDX-License-Identifier: Apache-2.0
"""Graphs that are complete: launching, uploading, updating, printing, closing."""

import gc

import pytest

from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, CUDAError
from cuda.core.graph import GraphCompleteOptions, GraphDebugPrintOptions
from graph_tools import MODES, SIZE, built, launch, round_trip, scratch, soon, status
from memory_kinds import pattern
from python_resources import Plain
from support import check, given_back, read, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


def graph_of(device, work, options=None):
    """Build what `work` puts into a builder, and let go of the builder."""
    with built(device) as builder:
        work(builder)
    graph = builder.complete(options)
    builder.close()
    return graph


def closed(*buffers):
    for buffer in buffers:
        assert soon(lambda buffer=buffer: buffer.loans == 0)
        buffer.close()


# --- launching ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["own", "legacy", "per thread", "another library's"])
def test_a_graph_runs_on_every_kind_of_stream(device, stream, pair, where):
    source, target = pair

    class Foreign:
        def __cuda_stream__(self):
            return (0, int(stream.handle))

    streams = {"own": stream, "legacy": LEGACY_DEFAULT_STREAM, "per thread": PER_THREAD_DEFAULT_STREAM}
    chosen = streams.get(where) or device.create_stream(Foreign())
    graph = graph_of(device, lambda builder: round_trip(builder, source, target))
    graph.upload(chosen)
    launch(graph, chosen, times=3)
    assert read(target.handle, SIZE) == pattern(SIZE)
    graph.close()


@pytest.mark.parametrize("call", ["launch", "upload"])
@pytest.mark.parametrize(
    ("stream", "kind"), [(None, TypeError), (5, TypeError), ("s", TypeError), ("closed", RuntimeError)]
)
def test_what_is_no_stream_is_refused_before_any_driver_call(driver_watch, device, call, stream, kind):
    graph = graph_of(device, lambda builder: None)
    if stream == "closed":
        stream = device.create_stream()
        stream.close()
    with driver_watch.no_call(), pytest.raises(kind, match=r"stream|Stream"):
        getattr(graph, call)(stream)
    graph.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["launch", "upload", "complete with upload_stream"])
def test_a_stream_that_is_being_captured_is_refused_and_its_capture_goes_on(device, stream, mode, call):
    with built(device) as first:
        pass
    graph = first.complete()
    builder = stream.create_graph_builder().begin_building(mode)
    for given in (builder, stream):
        with pytest.raises(CUDAError, match=r"CAPTURE_UNSUPPORTED.*being captured"):
            if call == "complete with upload_stream":
                first.complete({"upload_stream": given})
            else:
                getattr(graph, call)(given)
    assert status(stream) == "ACTIVE"
    builder.end_building()
    builder.close()
    first.close()
    graph.close()


@pytest.mark.parametrize("mode", MODES)
def test_graphs_are_made_launched_and_closed_beside_a_capture(device, stream, pair, mode):
    """Making and destroying an executable is forbidden by a capture of anybody, and disturbs none."""
    source, target = pair
    other = device.create_stream()
    with built(device) as first:
        round_trip(first, source, target)
    builder = stream.create_graph_builder().begin_building(mode)
    graph = first.complete(GraphCompleteOptions(upload_stream=other))
    graph.upload(other)
    graph.launch(other)
    graph.update(first)
    first.close()
    graph.close()
    assert status(stream) == "ACTIVE"
    builder.end_building()
    builder.close()
    other.sync()
    other.close()
    assert read(target.handle, SIZE) == pattern(SIZE)


def test_a_closed_graph_is_refused(driver_watch, device, stream):
    graph = graph_of(device, lambda builder: None)
    assert int(graph.handle) != 0
    graph.close()
    with driver_watch.no_call():
        graph.close()
        for call in (graph.launch, graph.upload):
            with pytest.raises(RuntimeError, match="Graph has been closed"):
                call(stream)
    assert (graph.is_closed, int(graph.handle)) == (True, 0)
    assert repr(graph) == "<Graph handle=0x0 closed>"


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [5, "x", [], ("auto_free_on_launch",), {"unknown": True}, GraphDebugPrintOptions()]
)
def test_wrong_options_are_refused_before_any_driver_call(driver_watch, device, builder, options):
    builder.end_building()
    with driver_watch.no_call(), pytest.raises(TypeError, match="options"):
        builder.complete(options)


@pytest.mark.parametrize("name", ["auto_free_on_launch", "device_launch", "use_node_priority"])
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_options_are_checked_when_given_and_when_assigned(name, value):
    options = GraphCompleteOptions()
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {value!r}"):
        GraphCompleteOptions(**{name: value})
    with pytest.raises(TypeError, match=name):
        setattr(options, name, value)
    assert getattr(options, name) is False


@pytest.mark.parametrize("value", [5, "s", object()])
def test_an_upload_stream_is_a_stream(value):
    with pytest.raises(TypeError, match="Stream or GraphBuilder expected"):
        GraphCompleteOptions(upload_stream=value)


def test_options_that_exclude_each_other_are_refused(driver_watch, builder):
    builder.end_building()
    with driver_watch.no_call(), pytest.raises(ValueError, match="exclude each other"):
        builder.complete({"device_launch": True, "auto_free_on_launch": True})


def test_options_keep_the_order_of_their_fields():
    assert GraphCompleteOptions(True, None, False, True) == GraphCompleteOptions(
        auto_free_on_launch=True, use_node_priority=True
    )


@pytest.mark.parametrize(
    "options",
    [
        {"use_node_priority": True},
        {"auto_free_on_launch": True},
        GraphCompleteOptions(use_node_priority=True),
    ],
)
def test_options_reach_the_driver(device, options):
    """A driver may leave flags out that change nothing for a graph: one that was made by hand tells."""
    graph = graph_of(device, lambda builder: None, options)
    flags = int(check(driver.cuGraphExecGetFlags(int(graph.handle))))
    given = 8 if "use_node_priority" in repr(options).replace("use_node_priority=False", "") else 1
    empty = check(driver.cuGraphCreate(0))
    by_hand = check(driver.cuGraphInstantiate(empty, given))
    assert flags == int(check(driver.cuGraphExecGetFlags(by_hand)))
    assert given == 8 or flags == 1
    check(driver.cuGraphExecDestroy(by_hand))
    check(driver.cuGraphDestroy(empty))
    graph.close()


# --- updating ----------------------------------------------------------------------------------------------------


def test_an_update_gives_later_launches_other_parameters(device, stream):
    one, two = Plain().allocate(SIZE), Plain().allocate(SIZE)
    graph = graph_of(device, lambda builder: one.fill(1, stream=builder))
    launch(graph, stream)
    with built(device) as other:
        two.fill(2, stream=other)
    graph.update(other)
    assert soon(lambda: one.loans == 0)  # the graph does not use it any more
    assert two.loans == 1
    one.fill(9, stream=stream)
    launch(graph, stream)
    assert (read(one.handle, 4), read(two.handle, 4)) == (b"\x09" * 4, b"\x02" * 4)
    other.close()
    address = two.handle
    two.close()
    launch(graph, stream)
    assert still_allocated(address)
    graph.close()
    assert given_back(address)
    one.close()


@pytest.mark.provokes_refusals
def test_an_update_by_another_shape_is_refused_and_changes_nothing(device, stream):
    buffer, other_buffer = Plain().allocate(SIZE), Plain().allocate(SIZE)
    graph = graph_of(device, lambda builder: buffer.fill(1, stream=builder))
    for work, reason in (
        (lambda b: None, "TOPOLOGY_CHANGED"),
        (lambda b: buffer.copy_to(other_buffer, stream=b), "NODE_TYPE_CHANGED"),
    ):
        with built(device) as other:
            work(other)
        with pytest.raises(CUDAError, match=rf"UPDATE_FAILURE.*{reason}"):
            graph.update(other)
        other.close()
    launch(graph, stream)
    assert read(buffer.handle, 4) == b"\x01" * 4
    graph.close()
    closed(buffer, other_buffer)


def test_what_is_no_finished_builder_is_refused_before_any_driver_call(driver_watch, device, builder):
    graph, ended = graph_of(device, lambda builder: None), device.create_graph_builder()
    ended.begin_building().end_building().close()
    with driver_watch.no_call():
        for source, kind, text in (
            (None, TypeError, "NoneType"),
            (5, TypeError, "got int: 5"),
            (graph, TypeError, "must be a GraphBuilder, got Graph"),
            (builder, RuntimeError, "not finished"),
            (ended, RuntimeError, "closed"),
        ):
            with pytest.raises(kind, match=text):
                graph.update(source)
    graph.close()


def test_memory_of_one_graph_is_not_given_to_another(driver_watch, device):
    with built(device) as one, built(device) as other, built(device) as plain:
        for builder in (one, other):
            scratch(builder).close()
    graph, without = one.complete(), plain.complete()
    with driver_watch.no_call():
        for updated, source in ((graph, other), (graph, plain), (without, one)):
            with pytest.raises(ValueError, match="its memory stays its own"):
                updated.update(source)
    graph.update(one)
    for each in (graph, without, one, other, plain):
        each.close()


# --- printing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [None, {"verbose": True}, GraphDebugPrintOptions(mem_alloc_node_params=True)]
)
def test_a_graph_is_printed(tmp_path, device, pair, options):
    with built(device) as builder:
        round_trip(builder, *pair)
    path = tmp_path / "graph.dot"
    builder.debug_dot_print(path, options)
    builder.debug_dot_print(str(path), options)
    text = path.read_text()
    assert text.startswith("digraph")
    assert text.count("->") >= 3
    builder.close()


@pytest.mark.parametrize(
    ("path", "options", "kind"),
    [
        (None, None, TypeError),
        (5, None, TypeError),
        ("a\0b", None, ValueError),
        ("x.dot", 5, TypeError),
        ("x.dot", {"verbos": True}, TypeError),
        ("x.dot", GraphCompleteOptions(), TypeError),
    ],
)
def test_a_print_with_wrong_arguments_is_refused_before_any_driver_call(
    driver_watch, builder, path, options, kind
):
    builder.end_building()
    with driver_watch.no_call(), pytest.raises(kind):
        builder.debug_dot_print(path, options)


@pytest.mark.provokes_refusals
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, builder):
    builder.end_building()
    with pytest.raises(CUDAError, match="cuGraphDebugDotPrint"):
        builder.debug_dot_print(tmp_path / "no" / "such" / "folder.dot")


def test_every_option_of_a_print_has_its_bit():
    names = [name for name in vars(GraphDebugPrintOptions()) if not name.startswith("_")]
    bits = [GraphDebugPrintOptions(**{name: True})._to_flags() for name in names]
    flags = {
        flag.name.removeprefix("CU_GRAPH_DEBUG_DOT_FLAGS_").lower(): int(flag)
        for flag in driver.CUgraphDebugDot_flags
    }
    assert dict(zip(names, bits, strict=True)) == {name: flags[name] for name in names}
    assert GraphDebugPrintOptions()._to_flags() == 0
    with pytest.raises(TypeError, match="handles must be True or False, got 1"):
        GraphDebugPrintOptions(handles=1)


# --- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["builder first", "graph first"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_graph_and_builder_end_in_any_order(device, stream, pair, how, order):
    with built(device) as builder:
        round_trip(builder, *pair)
    box = {"builder": builder, "graph": builder.complete()}
    del builder
    box["graph"].launch(stream)  # and is in flight
    for name in ("builder", "graph") if order == "builder first" else ("graph", "builder"):
        one = box.pop(name)
        if how == "close":
            one.close()
            assert one.is_closed
        with warnings_seen() as seen:
            del one
        assert seen == []
    stream.sync()
    assert read(pair[1].handle, SIZE) == pattern(SIZE)


def test_a_graph_needs_its_builder_no_more(device, stream, pair):
    with built(device) as builder:
        round_trip(builder, *pair)
    graph = builder.complete()
    del builder
    gc.collect()
    launch(graph, stream, times=2)
    assert read(pair[1].handle, SIZE) == pattern(SIZE)
    graph.close()


@pytest.mark.provokes_refusals
def test_a_graph_with_memory_has_one_executable_at_a_time(device, stream):
    with built(device) as builder:
        scratch(builder).close()
    first = builder.complete()
    with pytest.raises(CUDAError, match=r"NOT_SUPPORTED.*one executable at a time; close the Graph"):
        builder.complete()
    first.close()
    second = builder.complete()
    launch(second, stream, times=2)
    second.close()
    builder.close()
