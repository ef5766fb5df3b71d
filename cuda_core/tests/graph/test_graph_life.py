# SPDX-License-Identifier: Apache-2.0
"""Graphs among threads, under the collector, at exit, in the child of a fork, and with a context that is gone."""

import gc
import random
import time

import pytest

from cuda.bindings import driver
from cuda.core import CloseResult, CUDAError, Device, Ownership
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from graph_tools import MODES, SIZE, built, graph_memory_in_use, launch, scratch, soon, status
from memory_kinds import pattern
from python_resources import Plain
from support import (
    check,
    child_output,
    in_context,
    race,
    read,
    run_child,
    still_allocated,
    warnings_seen,
    watched_end,
    write,
)

pytestmark = pytest.mark.usefixtures("device")


# --- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.provokes_refusals
def test_threads_launch_one_graph_whose_memory_nobody_owns(device, stream):
    """Each launch frees behind itself, so no launch finds the memory of another."""
    resource = Plain()
    source, target = resource.allocate(SIZE), resource.allocate(SIZE)
    write(source.handle, pattern(SIZE))
    with built(device) as builder:
        between = scratch(builder)
        between.copy_from(source, stream=builder)
        target.copy_from(between, stream=builder)
    graph = builder.complete()
    builder.close()
    streams = [device.create_stream() for _ in range(4)]

    def launches(one):
        for _ in range(50):
            graph.launch(one)
            graph.upload(one)

    def ends():
        time.sleep(0.001)
        return between.close()

    outcomes = race(ends, *(in_context(lambda one=one: launches(one)) for one in streams))
    # While the buffer is open, memory of one launch hinders the next.
    refused = [error for error in outcomes[1:] if error is not None]
    assert outcomes[0] is CloseResult.DONE
    assert all("Close the buffers" in str(error) for error in refused)
    del refused, outcomes
    assert race(*(in_context(lambda one=one: launches(one)) for one in streams)) == [None] * 4
    for one in streams:
        one.sync()
        one.close()
    assert read(target.handle, SIZE) == pattern(SIZE)
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)
    for buffer in (source, target):
        assert soon(lambda buffer=buffer: buffer.loans == 0)
        buffer.close()


def test_of_racing_closes_of_a_graph_one_destroys_it(driver_watch, device):
    for _ in range(20):
        with built(device) as builder:
            scratch(builder).close()
        graph = builder.complete()
        before = driver_watch.calls()
        assert race(*[graph.close] * 4, *[builder.close] * 2)[:4] == [None] * 4
        calls = driver_watch.calls()
        for name in ("cuGraphExecDestroy", "cuGraphDestroy"):
            assert calls.get(name, 0) - before.get(name, 0) in (0, 1), name  # 0 where nothing is counted
        builder.close()
        assert graph.is_closed
        assert builder.is_closed


def test_a_launch_racing_with_a_close_launches_or_is_refused(device, stream):
    for _ in range(30):
        with built(device) as builder:
            scratch(builder).close()
        graph = builder.complete()
        launched, _ = race(in_context(lambda graph=graph: graph.launch(stream)), graph.close)
        assert launched is None or "Graph has been closed" in str(launched)
        builder.close()
        stream.sync()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_close_of_a_buffer_racing_with_launch_and_end_leaves_nothing(device, stream):
    chance = random.Random(7)
    for _ in range(40):
        with built(device) as builder:
            buffer = scratch(builder)
        address = buffer.handle
        graph = builder.complete()

        def ends(graph=graph, builder=builder):
            time.sleep(chance.random() / 1000)
            graph.close()
            builder.close()

        def closes(buffer=buffer):
            time.sleep(chance.random() / 1000)
            return buffer.close()

        def launches(graph=graph):
            graph.launch(stream)

        _, closed, ended = race(in_context(launches), closes, ends)
        assert (closed, ended) == (CloseResult.DONE, None)
        stream.sync()
        assert not still_allocated(address)
    assert soon(lambda: graph_memory_in_use() == 0)


def test_threads_capture_side_by_side(device):
    def work(number):
        def build():
            made = []
            for _ in range(10):
                builder = device.create_graph_builder().begin_building("thread_local")
                buffer = scratch(builder)
                buffer.fill(number, stream=builder)
                buffer.close()
                made.append(builder.end_building().complete())
                launch(made[-1], builder.stream)
                builder.close()
            for graph in made:
                graph.close()

        return in_context(build)

    assert race(*(work(number) for number in range(4))) == [None] * 4
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_builder_is_changed_by_one_thread_at_a_time(device):
    for _ in range(20):
        builder = device.create_graph_builder()
        outcomes = race(*[in_context(builder.begin_building)] * 3)
        begun = [one for one in outcomes if one is builder]
        assert len(begun) == 1
        assert all(isinstance(one, RuntimeError) for one in outcomes if one is not builder)
        outcomes = race(*[in_context(builder.end_building)] * 3)
        assert sum(one is builder for one in outcomes) == 1
        builder.close()


class Foreign:
    """A stream of another library, kept alive by whoever holds it; runs something when it goes."""

    def __init__(self, stream, end):
        self.stream, self.end = stream, end

    def __cuda_stream__(self):
        return (0, int(self.stream.handle))

    def __del__(self):
        self.end()


def test_a_foreign_stream_that_goes_with_a_launch_may_come_back_to_the_graph(device, stream):
    """The graph lets go of the stream of its last launch; what runs then may use the graph, under no lock."""
    ended = []
    with built(device) as builder:
        scratch(builder).close()
    graph = builder.complete()

    def use():
        graph.upload(stream)
        ended.append(graph.launch(stream))

    graph.launch(device.create_stream(Foreign(stream, use)))
    gc.collect()
    assert ended == []  # the graph keeps it
    assert race(in_context(lambda: graph.launch(stream))) == [None]
    assert ended == [None]
    builder.close()
    graph.close()


def test_a_queued_free_lets_a_foreign_stream_go(device, stream):
    """The queue's thread runs no Python, so the stream of the last launch is let go of on the main thread."""
    ended = []
    builder = stream.create_graph_builder().begin_building()
    buffer = scratch(builder)
    builder.end_building()
    graph = builder.complete()
    side = device.create_stream()
    graph.launch(device.create_stream(Foreign(side, lambda: ended.append(True))))
    side.sync()
    address = buffer.handle
    second = stream.create_graph_builder().begin_building()
    del buffer
    for one in (graph, builder):
        one.close()
    del graph, builder, one
    gc.collect()
    assert still_allocated(address)
    assert ended == []
    second.end_building()
    assert drain(20)
    assert soon(lambda: ended == [True])
    assert soon(lambda: not still_allocated(address))
    second.close()
    side.close()


# --- the collector -----------------------------------------------------------------------------------------------


def test_garbage_of_every_kind_is_collected_at_every_line(device, stream):
    """Graphs, builders and buffers in cycles, collected while others are being built, launched and closed."""

    class Holder:
        pass

    def garbage(kind):
        holder = Holder()
        holder.itself = holder
        builder = device.create_graph_builder().begin_building()
        buffer = scratch(builder)
        buffer.fill(1, stream=builder)
        if kind == "building":
            holder.all = (builder, buffer)
            return
        builder.end_building()
        graph = builder.complete()
        if kind == "launched":
            graph.launch(stream)
        holder.all = (graph, buffer, builder)

    threshold = gc.get_threshold()
    with warnings_seen() as seen:
        try:
            gc.set_threshold(1)
            for _ in range(10):
                for kind in ("building", "complete", "launched"):
                    garbage(kind)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
    assert seen == []
    stream.sync()
    assert soon(lambda: graph_memory_in_use() == 0)
    assert _counters.live().get("graphs", 0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_collected_beside_a_capture_disturbs_it_not(device, stream, mode):
    with built(device) as first:
        buffer = scratch(first)
        buffer.fill(1, stream=first)
    box = [first.complete(), first, buffer]
    launch(box[0], stream)
    del first, buffer
    box.append(box)
    builder = device.create_graph_builder().begin_building(mode)
    with warnings_seen() as seen:
        del box
        gc.collect()
    assert seen == []
    assert status(builder.stream) == "ACTIVE"
    builder.end_building()
    builder.close()
    assert soon(lambda: graph_memory_in_use() == 0)


# --- exit --------------------------------------------------------------------------------------------------------

EVERYTHING = """
import sys
from support import check, driver
from cuda.core import Device, GraphMemoryResource
from buffer_kinds import SOURCES
device = Device(0)
device.set_current()
stream = device.create_stream()
resource = GraphMemoryResource(device)

def story(*steps):
    builder = device.create_graph_builder().begin_building()
    kept = [builder, resource.allocate(4096, stream=builder), resource.allocate(4096, stream=builder)]
    buffers = [SOURCES[kind](device).allocate(stream=stream) for kind in SOURCES]
    stream.sync()
    for buffer in (*buffers, *kept[1:]):
        buffer.fill(1, stream=builder)
    for buffer in buffers[::2]:
        buffer.close()
    if "free" in steps:
        kept[1].close()
    if "fork" in steps:
        kept += builder.split(3)
    if "end" in steps:
        builder.end_building()
        kept.append(builder.complete())
    if "launch" in steps:
        kept[-1].launch(stream)
    if "left" in steps:
        kept[1].close()
    return kept + buffers

all_of_it = [story(), story("free"), story("fork"), story("end"), story("end", "left"), story("end", "launch"),
             story("free", "end", "launch"), story("end", "launch", "left")]
"""
ENDS = {
    "plain": "",
    "sys.exit": "sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "cycle": "all_of_it.append(all_of_it); all_of_it = None",
    "builtins": "import builtins; builtins.kept = all_of_it",
    "at exit": "import atexit; atexit.register(all_of_it.clear)",
    "thread": "import threading; threading.Thread(target=all_of_it.clear).start()",
}


@pytest.mark.parametrize("options", [("-W", "error"), ("-X", "dev")], ids=["warnings are errors", "dev"])
@pytest.mark.parametrize("how", ENDS)
def test_everything_of_graphs_alive_at_exit_is_silent(how, options):
    assert child_output(EVERYTHING + ENDS[how], options=options) == ""


def test_a_builder_that_is_building_when_the_program_fails_hides_nothing():
    child = run_child(EVERYTHING + "raise ValueError('the reason')")
    assert child.returncode == 1
    assert child.stderr.splitlines()[-1] == "ValueError: the reason"
    assert "Exception ignored" not in child.stderr


# --- fork --------------------------------------------------------------------------------------------------------

FORK = """
import os, sys, traceback, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
from support import check, driver
from cuda.core import Device, GraphMemoryResource, Ownership
from support import watching_driver
device = Device(0)
device.set_current()
sim = watching_driver()
stream = device.create_stream()
resource = GraphMemoryResource(device)
builder = device.create_graph_builder().begin_building()
kept, left = (resource.allocate(4096, stream=builder) for _ in range(2))
kept.fill(5, stream=builder)
builder.end_building()
graph = builder.complete()
graph.launch(stream)
left.close()
building = device.create_graph_builder().begin_building()
inside = resource.allocate(4096, stream=building)
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        before = dict(sim.calls()) if sim else None
        for buffer in (kept, inside):
            assert (buffer.ownership, buffer.close().name) == (Ownership.RELEASED, "NOTHING")
        for call in (lambda: graph.launch(stream), lambda: graph.upload(stream)):
            try:
                call()
            except RuntimeError as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("no error")
        for one in (graph, builder, building):
            one.close()
            assert one.is_closed
        del graph, builder, building, kept, inside
        after = dict(sim.calls()) if sim else before
        made = {name for name, n in (after or {}).items() if before.get(name) != n}
        assert made <= {"cuStreamDestroy"}, made  # of the builders' own streams, as with every stream
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
inside.close()
building.end_building().complete().launch(stream)
stream.sync()
kept.close()
graph.launch(stream)
stream.sync()
for one in (graph, builder, building):
    one.close()
print("parent goes on")
"""


def test_in_a_forked_child_graphs_are_lost_and_the_parent_s_are_the_parent_s():
    assert child_output(FORK).splitlines() == ["0", "parent goes on"]


# --- contexts that are gone --------------------------------------------------------------------------------------

GONE = """
import sys, warnings
from support import check, driver
from cuda.core import CUDAError, Device, GraphMemoryResource, Ownership, VirtualMemoryResource
from cuda.core._memory import _counters
import cuda_driver_sim as sim
device = Device(0)
device.set_current()
stream = device.create_stream()
builder = device.create_graph_builder().begin_building()
owned, dropped = (GraphMemoryResource(0).allocate(4096, stream=builder) for _ in range(2))
builder.end_building()
graph = builder.complete()
graph.launch(stream)
stream.sync()
building, dropped_building = (device.create_graph_builder().begin_building() for _ in range(2))
inside = GraphMemoryResource(0).allocate(4096, stream=building)
if sys.argv[1] == "reset":
    check(driver.cuDevicePrimaryCtxReset(0))
else:
    memory = VirtualMemoryResource(device).allocate(2 << 20)
    with sim.hold():
        check(driver.cuMemsetD8Async(memory.handle, 1, 4096, int(stream.handle)))
        check(driver.cuMemUnmap(memory.handle, 2 << 20))
    assert driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        graph.launch(stream)
        print("launched")
    except CUDAError:
        pass
    for buffer in (owned, inside):
        try:
            buffer.close()
        except CUDAError:
            pass
        assert buffer.ownership is Ownership.RELEASED, buffer
    for one in (building, graph, builder):
        one.close()
        assert one.is_closed
    del dropped, dropped_building, building, graph, builder, owned, inside, buffer, one
print([str(warning.message) for warning in seen if "lost, like everything of device 0" not in str(warning.message)])
print(_counters.live().get("graphs", 0))
"""


@pytest.mark.sim_only  # a real driver may not survive the use of what a reset has ended
@pytest.mark.parametrize("how", ["reset", "fault"])
def test_what_a_dead_context_takes_along_is_lost_and_can_be_closed(how):
    assert child_output(GONE, how).splitlines() == ["[]", "0"]


# --- nothing piles up --------------------------------------------------------------------------------------------


def test_nothing_piles_up_over_many_graphs(device, stream):
    objects = None
    for turn in range(300):
        with built(device) as builder:
            memory, other = scratch(builder), scratch(builder)
            memory.fill(1, stream=builder)
            memory.close()
        graph = builder.complete()
        launch(graph, stream)
        assert other.close() is CloseResult.DONE
        assert other.ownership is Ownership.RELEASED
        graph.close()
        builder.close()
        if turn == 50:
            gc.collect()
            objects = len(gc.get_objects())
    gc.collect()
    del builder, graph, memory, other
    assert len(gc.get_objects()) - objects < 50
    assert _counters.live().get("graphs", 0) == 0
    assert soon(lambda: graph_memory_in_use() == 0)


@pytest.mark.two_devices
def test_a_builder_belongs_to_the_device_of_its_stream(device):
    second = Device(1)
    second.set_current()
    builder = second.create_graph_builder().begin_building()
    device.set_current()
    assert builder.stream.device.device_id == 1
    forks = builder.split(2)
    assert forks[1].stream.device.device_id == 1
    type(builder).join(*forks)
    builder.end_building()
    builder.close()
    with pytest.raises(CUDAError, match="set_current"):
        second.create_graph_builder()
    check(driver.cuDeviceGraphMemTrim(1))


@pytest.mark.sim_only
def test_a_program_that_ends_waits_for_what_its_last_graph_lent(tmp_path):
    """The driver tells of a graph's end some time after it."""
    program = tmp_path / "program.py"
    program.write_text(
        """
from cuda.core import Device, DeviceMemoryResource
device = Device(0)
device.set_current()
stream = device.create_stream()
pool = DeviceMemoryResource(device)
buffer = pool.allocate(1 << 20, stream=stream)
builder = stream.create_graph_builder().begin_building()
buffer.fill(2, stream=builder)
graph = builder.end_building().complete()
builder.close()
buffer.close()
graph.launch(stream)
graph.close()
stream.sync()
"""
    )
    for _ in range(5):
        assert watched_end(program) == (0, "")
