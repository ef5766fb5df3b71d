# SPDX-License-Identifier: Apache-2.0
"""The cases of graphs, on graphs that a builder makes: each test is named after the case that it covers."""

import gc

import pytest

from buffer_kinds import POOLS, SOURCES
from cuda.core import (
    CloseResult,
    CUDAError,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    Ownership,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory._queue import drain
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core.graph import GraphBuilder
from graph_tools import MODES, SIZE, built, graph_memory_in_use, launch, scratch, soon, status
from memory_kinds import pattern
from python_resources import Plain
from support import (
    GRANULE,
    child_output,
    fill,
    given_back,
    holds,
    read,
    simulated,
    still_allocated,
    warnings_seen,
    write,
)

pytestmark = pytest.mark.usefixtures("device")

FIRST = """
import sys
from support import check, driver
from cuda.core import Device
device = Device(0)
device.set_current()
builder = device.create_graph_builder().begin_building(sys.argv[1])
mine = device.create_stream()
buffer = device.memory_resource.allocate(4096, stream=mine)
print(builder.is_building)
graph = builder.end_building().complete()
graph.launch(mine)
mine.sync()
for one in (buffer, graph, builder, mine):
    one.close()
"""


@pytest.mark.parametrize("mode", MODES)
def test_gr_01_the_first_allocation_of_the_process_disturbs_no_builder(mode):
    assert child_output(FIRST, mode).splitlines() == ["True"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", POOLS)
def test_gr_01_making_and_using_a_pool_disturbs_no_builder(device, stream, mode, kind):
    with built(device, mode) as builder:
        resource = POOLS[kind](device).resource
        assert resource.attributes.used_mem_current == 0
        resource.allocate(SIZE, stream=stream).close()
        resource.close()
        assert status(builder.stream) == "ACTIVE"
    stream.sync()
    builder.complete().close()
    builder.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [kind for kind, source in SOURCES.items() if source.built_in])
def test_gr_01_allocating_and_closing_memory_of_any_kind_disturbs_no_builder(device, stream, mode, kind):
    source = SOURCES[kind](device)
    with built(device, mode) as builder:
        buffer = source.allocate(stream=stream)
        address = buffer.handle
        assert buffer.close() is CloseResult.DONE
        assert status(builder.stream) == "ACTIVE"
    assert given_back(address)
    builder.complete().close()
    builder.close()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("first", ["graph", "builder"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_gr_02_what_a_builder_captures_lives_as_long_as_the_graph(device, stream, kind, first, how):
    source = SOURCES[kind](device)
    box = [source.allocate(stream=stream)]
    address, size = box[0].handle, box[0].size
    stream.sync()
    with built(device) as builder:
        box[0].fill(b"abcd", stream=builder)
        assert box[0].loans == 1
    graphs = {"graph": builder.complete(), "builder": builder}
    graph = graphs["graph"]
    if how == "close":
        assert box[0].close() is CloseResult.LENT
        assert (box[0].ownership, box[0].transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
    box.clear()
    gc.collect()
    others = [source.allocate(stream=stream) for _ in range(3)]
    stream.sync()
    for other in others:
        assert other.handle != address
        fill(other.handle, size, seed=5)
    launch(graph, stream)
    assert read(address, 8) == b"abcdabcd"
    assert all(holds(other.handle, size, seed=5) for other in others)
    for name in (first, next(name for name in graphs if name != first)):
        assert still_allocated(address)
        graphs[name].close()
    assert given_back(address)
    for other in others:
        other.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["virtual", "pool", "pinned pool", "managed pool"])
def test_gr_03_a_close_on_a_builder_is_refused_before_anything_happens(device, stream, mode, kind):
    buffer = SOURCES[kind](device).allocate(stream=stream)
    fill(buffer.handle, buffer.size, seed=3)
    builder = stream.create_graph_builder().begin_building(mode)
    for close in (buffer.close, lambda: buffer.close(builder), lambda: buffer.close(wait=False)):
        with pytest.raises(CUDAError, match=r"STREAM_CAPTURE_UNSUPPORTED.*being captured"):
            close()
        assert buffer.ownership is Ownership.OWNED
    assert builder.is_building
    builder.end_building()
    assert holds(buffer.handle, buffer.size, seed=3)
    assert buffer.close() is CloseResult.DONE
    builder.close()


@pytest.mark.parametrize("mode", MODES)
def test_gr_04_a_pool_on_a_builder_is_refused_and_names_what_is_meant(device, stream, pool, mode):
    with built(device, mode) as builder:
        for resource in (pool, DeviceMemoryResource(device)):
            with pytest.raises(RuntimeError, match=r"being captured.*GraphMemoryResource"):
                resource.allocate(SIZE, stream=builder)
        with pytest.raises(RuntimeError, match="GraphMemoryResource"):
            device.allocate(SIZE, stream=builder)
        memory = scratch(builder)
        memory.fill(1, stream=builder)
        memory.close()
    assert pool.attributes.used_mem_current == 0
    graph = builder.complete()
    launch(graph, stream, times=2)
    builder.close()
    graph.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "make",
    [lambda: _SynchronousMemoryResource(0), LegacyPinnedMemoryResource, lambda: VirtualMemoryResource(0)],
    ids=["synchronous", "pinned", "virtual"],
)
def test_gr_05_a_collection_beside_a_builder_spoils_nothing(device, stream, mode, make):
    box = [make().allocate(GRANULE, stream=stream)]
    address = box[0].handle
    box.append(box)
    with built(device, mode) as builder:
        with warnings_seen() as seen:
            del box
            gc.collect()
            assert drain(20)
        assert seen == []
        assert not still_allocated(address)
        assert status(builder.stream) == "ACTIVE"
    builder.complete().close()
    builder.close()


# --- gr-06 -------------------------------------------------------------------------------------------------------


def by_split(builder, work):
    """A branch by split and join."""
    first, second = builder.split(2)
    work(second)
    GraphBuilder.join(first, second)


def by_hand(builder, work):
    """A branch on a stream of the program, which waits for the builder's and is waited for."""
    side = builder.stream.device.create_stream()
    side.wait(builder)
    work(side)
    builder.stream.wait(side)
    SIDES.append(side)  # it may not go before the capture has ended


SIDES = []
ENDS = ("on the branch", "on the branch, dropped", "behind the join", "behind the join, dropped")


@pytest.mark.sim_only  # runs the nodes in chosen orders
@pytest.mark.parametrize("branch", [by_split, by_hand])
@pytest.mark.parametrize("end", ENDS)
def test_gr_06_a_free_follows_the_last_use_on_its_own_stream(device, stream, branch, end):
    """Whatever order the device chooses among the branches: the bytes are right, and nothing uses freed memory."""
    import cuda_driver_sim as sim

    resource = Plain()
    source, here, there = (resource.allocate(SIZE) for _ in range(3))
    write(source.handle, pattern(SIZE))
    kept = []

    def finish():
        if "dropped" in end:
            kept.clear()
            gc.collect()
        else:
            assert kept.pop().close() is CloseResult.DONE

    with built(device) as builder:
        main = scratch(builder)
        main.copy_from(source, stream=builder)

        def work(other):
            memory = scratch(other)
            memory.copy_from(source, stream=other)
            there.copy_from(memory, stream=other)
            kept.append(memory)
            del memory
            if "behind" not in end:
                finish()

        branch(builder, work)
        if "behind" in end:
            finish()
        assert status(builder.stream) == "ACTIVE"
        here.copy_from(main, stream=builder)
        main.close()
    for side in SIDES:
        side.close()
    SIDES.clear()
    graph = builder.complete()
    builder.close()
    for seed in range(30):
        write(source.handle, pattern(SIZE, seed))
        with sim.interleave(seed), sim.hold():
            graph.launch(stream)
        stream.sync()
        assert read(here.handle, SIZE) == read(there.handle, SIZE) == pattern(SIZE, seed)
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)
    for buffer in (source, here, there):
        assert soon(lambda buffer=buffer: buffer.loans == 0)
        buffer.close()
    assert simulated()
