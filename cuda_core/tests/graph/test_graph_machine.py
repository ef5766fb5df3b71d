# SPDX-License-Identifier: Apache-2.0
"""Any order of building, launching and ending, against a model in plain Python: bytes, states, memory."""

import gc

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from cuda.core import (
    CloseResult,
    CUDAError,
    Device,
    GraphMemoryResource,
    LegacyPinnedMemoryResource,
    Ownership,
)
from cuda.core.graph import GraphBuilder
from graph_tools import SIZE, graph_memory_in_use, soon, trim
from support import attempt, given_back, read, still_allocated, warnings_seen


class Building:
    """A builder with what was put into it; and its executable, of which there is one at a time."""

    def __init__(self, builder):
        self.builder = builder
        self.ended = False
        self.graph = None
        self.memories = []
        self.outside = []  # (buffer, value) of fills of memory that is not the graph's
        self.forks = []

    def stream(self, number):
        """The builder or one of its branches."""
        streams = [self.builder, *self.forks]
        return streams[number % len(streams)]


class Memory:
    """An allocation of a graph."""

    def __init__(self, of, buffer, stream):
        self.of, self.buffer, self.stream = of, buffer, stream
        self.address = buffer.handle
        self.value = None
        self.freed_in_the_graph = self.armed = False


class GraphMachine(RuleBasedStateMachine):
    memories = Bundle("memories")

    def __init__(self):
        super().__init__()
        self.device = Device(0)
        self.device.set_current()
        trim()
        self.resource = GraphMemoryResource(0)
        self.streams = [self.device.create_stream() for _ in range(2)]
        self.pinned = LegacyPinnedMemoryResource()
        self.lent = []  # addresses that only graphs keep
        self.buildings = []
        self.next_value = 0
        self.seen = warnings_seen()
        self.told = self.seen.__enter__()

    @initialize()
    def first(self):
        self.begin("relaxed")

    def having(self, **what):
        """Return the buildings of a kind."""
        return [b for b in self.buildings if all(bool(getattr(b, k)) == v for k, v in what.items())]

    def choose(self, data, **what):
        return data.draw(st.sampled_from(self.having(**what)))

    def value(self):
        self.next_value = self.next_value % 250 + 1
        return self.next_value

    # -- building --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.buildings) < 3)
    @rule(mode=st.sampled_from(["relaxed", "thread_local", "global"]))
    def begin(self, mode):
        self.buildings.append(Building(self.device.create_graph_builder().begin_building(mode)))

    @precondition(lambda self: self.having(ended=False))
    @rule(target=memories, data=st.data(), number=st.integers(0, 3))
    def allocate(self, data, number):
        of = self.choose(data, ended=False)
        stream = of.stream(number)
        memory = Memory(of, self.resource.allocate(SIZE, stream=stream), stream)
        of.memories.append(memory)
        return memory

    @rule(memory=memories)
    def fill(self, memory):
        if memory.buffer is not None and not memory.of.ended and not memory.stream.is_closed:
            memory.value = self.value()
            memory.buffer.fill(memory.value, stream=memory.stream)

    @precondition(lambda self: self.having(ended=False))
    @rule(data=st.data(), keep=st.booleans())
    def fill_outside(self, data, keep):
        of, buffer = self.choose(data, ended=False), self.pinned.allocate(SIZE)
        value = self.value()
        buffer.fill(value, stream=of.builder)
        if keep:
            of.outside.append((buffer, value))
        else:
            self.lent.append(buffer.handle)
            assert buffer.close() is CloseResult.LENT

    @precondition(lambda self: self.having(ended=False))
    @rule(data=st.data(), count=st.integers(2, 3))
    def split(self, data, count):
        of = self.choose(data, ended=False)
        of.forks += of.builder.split(count)[1:]

    @precondition(lambda self: self.having(ended=False, forks=True))
    @rule(data=st.data())
    def join(self, data):
        of = self.choose(data, ended=False, forks=True)
        GraphBuilder.join(of.builder, *of.forks)
        of.forks.clear()

    @precondition(lambda self: self.having(ended=False))
    @rule(data=st.data())
    def end(self, data):
        of = self.choose(data, ended=False)
        if of.forks:
            self.join_all(of)
        of.builder.end_building()
        of.ended = True

    def join_all(self, of):
        GraphBuilder.join(of.builder, *of.forks)
        of.forks.clear()

    # -- launching -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.having(ended=True, graph=False))
    @rule(data=st.data())
    def complete(self, data):
        of = self.choose(data, ended=True, graph=False)
        of.graph = of.builder.complete()

    @precondition(lambda self: self.having(graph=True))
    @rule(data=st.data(), number=st.integers(0, 1), times=st.integers(1, 3))
    def launch(self, data, number, times):
        of = self.choose(data, graph=True)
        for _ in range(times):
            hindered = any(memory.armed for memory in of.memories)
            _, error = attempt(lambda of=of: of.graph.launch(self.streams[number]), CUDAError)
            assert (error is not None) == hindered, error
            self.streams[number].sync()
            if hindered:
                continue
            for memory in of.memories:
                memory.armed = memory.buffer is not None and not memory.freed_in_the_graph
                if memory.armed and memory.value is not None:
                    assert read(memory.address, SIZE) == bytes([memory.value]) * SIZE
            for buffer, value in of.outside:
                assert read(buffer.handle, SIZE) == bytes([value]) * SIZE

    # -- ending ----------------------------------------------------------------------------------------------------

    @rule(memory=consumes(memories), how=st.sampled_from(["close", "drop", "cycle", "slice"]))
    def end_memory(self, memory, how):
        box, part = [memory.buffer], None
        memory.buffer = None
        assert box[0].ownership is Ownership.OWNED
        memory.freed_in_the_graph = not memory.of.ended
        if how == "close":
            assert box[0].close() is CloseResult.DONE
        elif how == "slice":
            part = box[0][:16]
            assert box[0].close() is CloseResult.LENT
            part.close()
        elif how == "cycle":
            box.append(box)
        if how == "cycle":
            del box
        else:
            box.clear()
        gc.collect()
        memory.armed = False
        assert not still_allocated(memory.address)

    @precondition(lambda self: self.having(graph=True))
    @rule(data=st.data(), drop=st.booleans())
    def end_graph(self, data, drop):
        of = self.choose(data, graph=True)
        if not drop:
            of.graph.close()
        of.graph = None
        gc.collect()

    @precondition(lambda self: self.having(ended=True, graph=False, memories=False))
    @rule(data=st.data(), drop=st.booleans())
    def end_builder(self, data, drop):
        of = self.choose(data, ended=True, graph=False, memories=False)
        self.buildings.remove(of)
        if not drop:
            of.builder.close()
        of.builder = None
        self.close_outside(of)

    def close_outside(self, of):
        for buffer, _ in of.outside:
            assert soon(lambda buffer=buffer: buffer.loans == 0)
            buffer.close()

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def captures_go_on(self):
        assert all(of.builder.is_building for of in self.buildings if not of.ended)

    @invariant()
    def memory_is_there_while_a_launch_has_left_it_to_an_open_buffer(self):
        armed = {memory.address for of in self.buildings for memory in of.memories if memory.armed}
        for of in self.buildings:
            for memory in of.memories:  # a graph may give an address again that was freed in it
                assert still_allocated(memory.address) == (memory.address in armed)

    @invariant()
    def nothing_is_said(self):
        assert self.told == []

    def teardown(self):
        for of in self.buildings:
            if of.graph is not None:
                of.graph.close()
            of.builder.close()
            for fork in of.forks:
                fork.close()
        for of in self.buildings:
            self.close_outside(of)
            for memory in of.memories:
                if memory.buffer is not None:
                    assert memory.buffer.close() is CloseResult.DONE
            for memory in of.memories:
                assert not still_allocated(memory.address)
        self.buildings.clear()
        self.seen.__exit__(None, None, None)
        assert self.told == []
        assert all(given_back(address) for address in self.lent)
        for stream in self.streams:
            stream.close()
        assert soon(lambda: graph_memory_in_use() == 0)


GraphMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
# A launch over memory that an open buffer owns is refused, and so is the end of a capture with open branches.
test_graph_machine = pytest.mark.provokes_refusals(GraphMachine.TestCase)
