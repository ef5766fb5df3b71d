# SPDX-License-Identifier: Apache-2.0
"""Memory that graphs allocate: whose it is in the capture, between launches and at the end; and that it comes back."""

import gc
import threading

import pytest

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    Device,
    GraphMemoryResource,
    Ownership,
    TransferredTo,
)
from cuda.core._memory._queue import drain
from cuda.core.graph import GraphBuilder
from graph_tools import (
    SIZE,
    built,
    graph_memory_in_use,
    launch,
    node_types,
    round_trip,
    scratch,
    soon,
    status,
)
from held_work import Gate
from memory_kinds import pattern
from support import check, read, still_allocated, warnings_seen, write

pytestmark = pytest.mark.usefixtures("device")

DONE, NOTHING = CloseResult.DONE, CloseResult.NOTHING


# --- the resource ------------------------------------------------------------------------------------------------


def test_there_is_one_resource_for_each_device(device):
    resource = GraphMemoryResource(device)
    assert resource is GraphMemoryResource(0)
    assert resource is GraphMemoryResource(device_id=device)
    assert type(resource) is GraphMemoryResource
    assert (resource.device_id, resource.is_device_accessible, resource.is_host_accessible) == (
        0,
        True,
        False,
    )
    resource.close()
    resource.close()
    assert resource is GraphMemoryResource(0)


@pytest.mark.two_devices
def test_another_device_has_another_resource_and_takes_no_foreign_stream(driver_watch, builder):
    other = GraphMemoryResource(Device(1))
    assert other is not GraphMemoryResource(0)
    assert other.device_id == 1
    before = driver_watch.calls().get("cuMemAllocAsync")
    with pytest.raises(ValueError, match=r"stream is of device 0.*of device 1"):
        other.allocate(SIZE, stream=builder)
    assert driver_watch.calls().get("cuMemAllocAsync") == before
    assert builder.is_building


@pytest.mark.parametrize(
    ("device_id", "kind"),
    [
        (-1, ValueError),
        (99, ValueError),
        ("0", TypeError),
        (None, TypeError),
        (0.0, TypeError),
        (2**70, (ValueError, OverflowError)),
    ],
)
def test_a_wrong_device_is_refused(device_id, kind):
    with pytest.raises(kind):
        GraphMemoryResource(device_id)


def test_attributes_tell_what_graphs_hold(device, stream):
    attributes = GraphMemoryResource(device).attributes
    assert (attributes.used_mem_current, attributes.reserved_mem_current) == (0, 0)
    attributes.used_mem_high = attributes.reserved_mem_high = 0
    assert (attributes.used_mem_high, attributes.reserved_mem_high) == (0, 0)
    with built(device) as builder:
        scratch(builder).close()
    graph = builder.complete()
    launch(graph, stream)
    held = attributes.used_mem_current
    assert held > 0
    assert attributes.used_mem_high == attributes.reserved_mem_high == attributes.reserved_mem_current == held
    assert repr(attributes) == (
        f"GraphMemoryResourceAttributes(reserved_mem_current={held}, reserved_mem_high={held}, "
        f"used_mem_current={held}, used_mem_high={held})"
    )
    GraphMemoryResource(device).trim()
    assert (attributes.used_mem_current, attributes.used_mem_high) == (0, held)
    launch(graph, stream)  # takes memory again
    builder.close()
    graph.close()


def test_attributes_are_reset_to_nothing_else_than_0(driver_watch):
    attributes = GraphMemoryResource(0).attributes
    with driver_watch.no_call():
        for name in ("used_mem_high", "reserved_mem_high"):
            for value in (1, -1, "0", None, False):
                with pytest.raises(AttributeError, match=rf"{name}.*zero \(got {value!r}\)"):
                    setattr(attributes, name, value)
        for name in ("used_mem_current", "reserved_mem_current"):
            with pytest.raises(AttributeError):
                setattr(attributes, name, 0)
        with pytest.raises(RuntimeError, match=r"GraphMemoryResource\.attributes"):
            type(attributes)()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_reading_and_trimming_disturb_no_capture(device, mode):
    with built(device, mode) as builder:
        GraphMemoryResource(device).trim()
        _ = GraphMemoryResource(device).attributes.used_mem_current
        assert status(builder.stream) == "ACTIVE"
    builder.close()


# --- allocating --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "kind"),
    [(-1, ValueError), (2**63, OverflowError), (1.0, TypeError), ("1", TypeError), (True, TypeError)],
)
def test_a_wrong_size_is_refused_before_any_driver_call(driver_watch, builder, size, kind):
    resource = GraphMemoryResource(0)
    with driver_watch.no_call(), pytest.raises(kind):
        resource.allocate(size, stream=builder)
    assert builder.is_building


@pytest.mark.parametrize(
    ("stream", "kind"), [(None, TypeError), (3, TypeError), ("closed builder", RuntimeError)]
)
def test_what_is_no_stream_is_refused_before_any_driver_call(driver_watch, device, stream, kind):
    if stream == "closed builder":
        stream = device.create_graph_builder()
        stream.close()
    resource = GraphMemoryResource(0)
    with driver_watch.no_call(), pytest.raises(kind):
        resource.allocate(SIZE, stream=stream)


def test_a_stream_that_is_not_captured_is_refused(device, stream):
    for one in (stream, device.default_stream, device.create_graph_builder()):
        with pytest.raises(RuntimeError, match="non-capturing stream"):
            scratch(one)


def test_nothing_is_an_empty_buffer(driver_watch, builder):
    resource = GraphMemoryResource(0)
    with driver_watch.no_call():
        buffer = resource.allocate(0, stream=builder)
        assert (buffer.size, buffer.ownership) == (0, Ownership.OWNED)
        assert buffer.close() is DONE


@pytest.mark.provokes_refusals
def test_too_much_is_refused_and_the_capture_goes_on(builder):
    with pytest.raises(CUDAError, match="OUT_OF_MEMORY"):
        scratch(builder, 1 << 50)
    assert builder.is_building
    scratch(builder).close()


@pytest.mark.provokes_refusals
def test_a_broken_capture_gives_no_memory(stream):
    builder = stream.create_graph_builder().begin_building()
    buffer = scratch(builder)
    assert driver.cuStreamSynchronize(int(stream.handle))[0] != 0
    with pytest.raises(CUDAError, match="CAPTURE_INVALIDATED"):
        scratch(builder)
    with pytest.raises(CUDAError, match=r"CAPTURE_UNSUPPORTED.*its capture is broken"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    builder.close()
    assert buffer.close() is DONE


# --- in the capture ----------------------------------------------------------------------------------------------


def test_a_close_in_the_capture_is_a_node_and_every_launch_returns_the_memory(device, stream, pair):
    source, target = pair
    with built(device) as builder:
        between = scratch(builder)
        assert (between.ownership, between.size, between.memory_resource) == (
            Ownership.OWNED,
            SIZE,
            GraphMemoryResource(0),
        )
        between.copy_from(source, stream=builder)
        target.copy_from(between, stream=builder)
        assert between.loans == 0  # the graph needs no loan on its own memory
        address = between.handle
        assert between.close() is DONE
        assert (between.ownership, between.close()) == (Ownership.RELEASED, NOTHING)
    assert node_types(builder) == {"MEM_ALLOC": 1, "MEM_FREE": 1, "MEMCPY": 2}
    graph = builder.complete()
    for seed in range(3):
        write(source.handle, pattern(SIZE, seed))
        launch(graph, stream)
        assert read(target.handle, SIZE) == pattern(SIZE, seed)
        assert not still_allocated(address)
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)


@pytest.mark.parametrize("how", ["with", "drop", "cycle", "last loan", "thread"])
def test_other_ends_in_the_capture_are_nodes_too(device, stream, how):
    with warnings_seen() as seen, built(device) as builder:
        box = [scratch(builder)]
        box[0].fill(1, stream=builder)
        if how == "with":
            with box[0]:
                pass
        elif how == "last loan":
            part = box[0][:16]
            assert box[0].close() is CloseResult.LENT
            part.close()
        elif how == "cycle":
            box.append(box)
        if how == "thread":
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
        if how == "cycle":
            del box
        else:
            box.clear()
        gc.collect()
        assert status(builder.stream) == "ACTIVE"
    assert seen == []
    assert node_types(builder)["MEM_FREE"] == 1
    graph = builder.complete()
    launch(graph, stream, times=2)
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_slice_that_is_captured_needs_no_loan_of_the_graph(device, stream):
    with built(device) as builder:
        whole = scratch(builder)
        part = whole[16:32]
        part.fill(1, stream=builder)
        view = Buffer.from_handle(whole.handle, 16, owner=whole)
        view.fill(2, stream=builder)
        assert (part.loans, view.loans, whole.loans) == (0, 0, 1)
        view.close()
        part.close()
        assert whole.close() is DONE
    assert node_types(builder)["MEM_FREE"] == 1
    builder.close()


def test_memory_of_one_graph_in_another_is_lent_to_it(device, stream):
    with built(device) as first:
        memory = scratch(first)
        memory.fill(3, stream=first)
    with built(device) as second:
        memory.fill(4, stream=second)
        assert memory.loans == 1
    graphs = [first.complete(), second.complete()]
    for graph in graphs:
        launch(graph, stream)
    assert read(memory.handle, 4) == b"\x04" * 4
    assert memory.close() is CloseResult.LENT
    assert (memory.ownership, memory.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
    second.close()
    graphs[1].close()
    assert soon(lambda: memory.loans == 0)
    first.close()
    graphs[0].close()
    assert soon(lambda: graph_memory_in_use() == 0)


# --- after the capture -------------------------------------------------------------------------------------------

# What happens to a buffer that was not closed in the capture, launch by launch.
STORIES = {
    "closed before the first launch": ("close", "launch", "launch", "launch"),
    "closed after one launch": ("launch", "close", "launch", "launch"),
    "closed after the last launch": ("launch", "close"),
    "dropped before the first launch": ("drop", "launch", "launch"),
    "dropped after a launch": ("launch", "drop", "launch"),
    "collected after a launch": ("launch", "cycle", "launch"),
    "never launched": (),
    "never launched, closed": ("close",),
    "never launched, dropped": ("drop",),
    "closed when all is gone": ("launch", "end", "close"),
    "dropped when all is gone": ("launch", "end", "drop"),
    "collected when all is gone": ("launch", "end", "cycle"),
    "never closed": ("launch",),
    "closed when all is gone and nothing was launched": ("end", "close"),
    "launched once more by the driver": ("close", "raw launch"),
    "launched by the driver only": ("raw launch", "end", "close"),
}


@pytest.mark.parametrize("ending", ["graph first", "builder first"])
@pytest.mark.parametrize("story", STORIES)
def test_graph_memory_comes_back(device, stream, story, ending):
    """Whatever becomes of a buffer after the capture: all quiet, and the memory is the device's again."""
    with warnings_seen() as seen:
        with built(device) as builder:
            box = [scratch(builder)]
            box[0].fill(5, stream=builder)
        address = box[0].handle
        graph = builder.complete()

        def end():
            for one in (graph, builder) if ending == "graph first" else (builder, graph):
                one.close()

        for step in STORIES[story]:
            if step == "launch":
                launch(graph, stream)
                if box and box[0].ownership is Ownership.OWNED:
                    assert read(address, 4) == b"\x05" * 4
                else:
                    assert not still_allocated(address)  # it was freed behind the launch
            elif step == "raw launch":
                check(driver.cuGraphLaunch(int(graph.handle), int(stream.handle)))
                stream.sync()
            elif step == "close":
                assert box[0].close() is DONE
                assert not still_allocated(address)
                assert box[0].close() is NOTHING
            elif step == "end":
                end()
            else:
                if step == "cycle":
                    box.append(box)
                    del box
                    box = []
                box.clear()
                gc.collect()
                assert not still_allocated(address)
        end()
        box.clear()
    assert seen == []
    assert not still_allocated(address)
    assert soon(lambda: graph_memory_in_use() == 0)


def test_an_open_buffer_keeps_what_a_launch_has_allocated(device, stream):
    with built(device) as builder:
        buffer = scratch(builder)
        buffer.fill(6, stream=builder)
    graph = builder.complete()
    launch(graph, stream)
    graph.close()
    builder.close()
    assert read(buffer.handle, SIZE) == b"\x06" * SIZE
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is DONE
    assert soon(lambda: graph_memory_in_use() == 0)


@pytest.mark.provokes_refusals
def test_a_second_launch_over_an_open_buffer_is_refused_and_says_why(device, stream):
    with built(device) as builder:
        buffer = scratch(builder)
    graph = builder.complete()
    launch(graph, stream)
    with pytest.raises(CUDAError, match=r"INVALID_VALUE.*Close the buffers.*auto_free_on_launch"):
        graph.launch(stream)
    buffer.close()
    launch(graph, stream, times=2)
    builder.close()
    graph.close()


def test_with_auto_free_an_open_buffer_is_no_hindrance(device, stream):
    with built(device) as builder:
        buffer = scratch(builder)
        buffer.fill(8, stream=builder)
    graph = builder.complete({"auto_free_on_launch": True})
    launch(graph, stream, times=3)
    assert read(buffer.handle, 4) == b"\x08" * 4
    builder.close()
    graph.close()
    assert buffer.close() is DONE
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_second_executable_after_the_first_finds_the_buffer_still_owned(device, stream):
    with built(device) as builder:
        buffer = scratch(builder)
        buffer.fill(2, stream=builder)
    for _ in range(2):
        graph = builder.complete({"auto_free_on_launch": True})
        launch(graph, stream)
        graph.close()
        assert read(buffer.handle, 4) == b"\x02" * 4
    builder.close()
    buffer.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_free_comes_behind_the_last_launch(device, stream, pair):
    """The buffer's own stream is the one that was captured; the work ran on another."""
    source, target = pair
    with built(device) as builder:
        between = round_trip(builder, source, target, close=False)
    graph = builder.complete()
    address = between.handle
    with Gate(stream) as gate:
        graph.launch(stream)
        assert between.close() is DONE
        gate.open()
    stream.sync()
    assert read(target.handle, SIZE) == pattern(SIZE)
    assert not still_allocated(address)
    builder.close()
    graph.close()
    device.sync()  # no work has touched freed memory


@pytest.mark.parametrize("how", ["drop", "last loan"])
def test_a_collection_beside_another_capture_of_the_stream_goes_to_the_queue(device, stream, how):
    first = stream.create_graph_builder().begin_building()
    box = [scratch(first)]
    first.end_building()
    graph = first.complete()
    other = device.create_stream()
    launch(graph, other)
    address = box[0].handle
    part = box[0][:16] if how == "last loan" else None
    second = stream.create_graph_builder().begin_building()
    with warnings_seen() as seen:
        if part is not None:
            assert box[0].close() is CloseResult.LENT
            part.close()
        box.clear()
        gc.collect()
    assert seen == []
    assert drain(0.1) is False
    assert still_allocated(address)
    assert second.is_building
    second.end_building()
    assert drain(20)
    device.sync()
    assert not still_allocated(address)
    for one in (second, graph, first, other):
        one.close()


def test_a_close_beside_another_capture_of_the_stream_is_refused_and_another_stream_may_order_it(
    device, stream
):
    first = stream.create_graph_builder().begin_building()
    buffer = scratch(first)
    first.end_building()
    graph, other = first.complete(), device.create_stream()
    launch(graph, other)
    second = stream.create_graph_builder().begin_building()
    with pytest.raises(CUDAError, match=r"CAPTURE_UNSUPPORTED.*another graph"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close(other) is DONE
    assert second.is_building
    for one in (second, graph, first, other):
        one.close()
    assert soon(lambda: graph_memory_in_use() == 0)


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_dropped_after_such_a_refusal_is_returned_behind_the_capture(device, stream, wait):
    """The close has done nothing, as one that a capture refuses of any other memory."""
    first = stream.create_graph_builder().begin_building()
    box = [scratch(first)]
    first.end_building()
    graph, other = first.complete(), device.create_stream()
    launch(graph, other)
    address = box[0].handle
    second = stream.create_graph_builder().begin_building()
    with warnings_seen() as seen:
        with pytest.raises(CUDAError, match="another graph"):
            box[0].close(wait=wait)
        box.clear()
        gc.collect()
        assert still_allocated(address)
        second.end_building()
        assert drain(20)
    assert [str(one.message) for one in seen] == []
    device.sync()
    assert not still_allocated(address)
    for one in (second, graph, first, other):
        one.close()
    assert soon(lambda: graph_memory_in_use() == 0)


@pytest.mark.sim_only  # runs the nodes in chosen orders
def test_several_recorded_streams_order_the_free_node(device, stream, pair):
    import cuda_driver_sim as sim

    source, target = pair
    with built(device) as builder:
        between = scratch(builder)
        between.copy_from(source, stream=builder)
        first, second = builder.split(2)
        target.copy_from(between, stream=second)
        between.record_stream(second)
        assert between.close() is DONE
        GraphBuilder.join(first, second)
    graph = builder.complete()
    for seed in range(20):
        write(source.handle, pattern(SIZE, seed))
        with sim.interleave(seed), sim.hold():
            graph.launch(stream)
        stream.sync()
        assert read(target.handle, SIZE) == pattern(SIZE, seed)
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)
