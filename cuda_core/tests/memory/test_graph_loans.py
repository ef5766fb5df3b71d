# SPDX-License-Identifier: Apache-2.0
"""Copies and fills that are captured: the graph has the address, so the graph holds a loan."""

import gc
import time

import pytest

from buffer_kinds import SOURCES
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, Ownership, StreamOptions, TransferredTo
from cuda.core.utils import CopyOptions
from memory_kinds import pattern, put
from python_resources import Plain
from support import GRANULE, blocked, check, child_output, given_back, race, read, still_allocated, write

SMALL = 4096
MODES = list(driver.CUstreamCaptureMode)


class Graph:
    """What was captured on a stream by ``work``, and what was made from it."""

    def __init__(self, stream, work, mode=driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL):
        self.stream, self.executables = stream, []
        check(driver.cuStreamBeginCapture(stream.handle, mode))
        try:
            work()
        finally:
            self.graph = check(driver.cuStreamEndCapture(stream.handle))

    def nodes(self):
        return int(check(driver.cuGraphGetNodes(self.graph, 100))[1])

    def instantiate(self):
        self.executables.append(check(driver.cuGraphInstantiate(self.graph, 0)))
        return self.executables[-1]

    def launch(self):
        check(driver.cuGraphLaunch(self.executables[-1], self.stream.handle))
        self.stream.sync()

    def end_graph(self):
        check(driver.cuGraphDestroy(self.graph))

    def end_executable(self):
        check(driver.cuGraphExecDestroy(self.executables.pop()))

    def end(self):
        self.end_graph()
        while self.executables:
            self.end_executable()


def loans_end(*buffers, seconds=10):
    """Tell whether the loans on the buffers have ended, or do so within moments: a thread ends them."""
    end = time.monotonic() + seconds
    while any(buffer.loans for buffer in buffers):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_gr_02_a_captured_copy_keeps_the_memory_as_long_as_the_graph(device, stream, mode):
    resource = Plain()
    src, dst = resource.allocate(SMALL), resource.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    graph = Graph(stream, lambda: src.copy_to(dst, stream=stream), mode)
    assert (src.loans, dst.loans) == (1, 1)
    graph.instantiate()
    address = dst.handle
    assert src.close() is CloseResult.LENT
    assert dst.close() is CloseResult.LENT
    assert (dst.ownership, dst.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
    others = [resource.allocate(SMALL) for _ in range(4)]
    for other in others:
        write(other.handle, b"\x77" * SMALL)
    graph.launch()
    assert read(address, SMALL) == pattern(SMALL)  # the bytes went where they were meant to
    assert all(read(other.handle, SMALL) == b"\x77" * SMALL for other in others)
    graph.end()
    assert given_back(address)
    for other in others:
        other.close()
    assert resource.held == {}


@pytest.mark.parametrize("kind", SOURCES)
def test_gr_02_memory_of_every_kind_goes_back_after_the_graph(device, stream, kind):
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=stream)
    address, size = buffer.handle, buffer.size
    put(buffer, bytes(size))
    graph = Graph(stream, lambda: buffer.fill(b"abcd", stream=stream))
    assert buffer.loans == 1
    graph.instantiate()
    assert buffer.close() is CloseResult.LENT
    graph.launch()
    assert still_allocated(address)
    assert read(address, size) == b"abcd" * (size // 4)
    graph.end()
    assert given_back(address)
    assert source.frees() in (None, 1)


@pytest.mark.parametrize("order", ["graph first", "executable first"])
def test_the_loan_ends_with_the_last_of_graph_and_executables(device, stream, order):
    buffer = Plain().allocate(SMALL)
    graph = Graph(stream, lambda: buffer.fill(1, stream=stream))
    graph.instantiate()
    graph.instantiate()
    first, then = (
        (graph.end_graph, graph.end_executable)
        if order == "graph first"
        else (graph.end_executable, graph.end_graph)
    )
    first()
    time.sleep(0.02)
    assert buffer.loans == 1
    then()
    time.sleep(0.02)
    assert buffer.loans == 1
    graph.end_executable()
    assert loans_end(buffer)
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


def test_an_open_buffer_stays_open_when_the_graph_goes(device, stream):
    buffer = Plain().allocate(SMALL)
    graph = Graph(stream, lambda: [buffer.fill(n, stream=stream) for n in range(10)])
    assert buffer.loans == 10
    graph.end()
    assert loans_end(buffer)
    Buffer.adopt(buffer.detach()).close()  # nobody looks at the memory any more


def test_a_buffer_in_a_graph_is_not_given_away(device, stream):
    buffer = Plain().allocate(SMALL)
    graph = Graph(stream, lambda: buffer.fill(1, stream=stream))
    with pytest.raises(BufferError, match="while loans on it are open"):
        buffer.detach()
    graph.end()
    assert loans_end(buffer)
    buffer.close()


def test_a_copy_of_a_buffer_onto_itself_is_one_loan(device, stream):
    buffer = Plain().allocate(SMALL)
    graph = Graph(stream, lambda: buffer.copy_to(buffer, stream=stream))
    assert buffer.loans == 1
    graph.end()
    assert loans_end(buffer)
    buffer.close()


def test_a_dropped_buffer_is_kept_for_the_graph_too(device, stream):
    resource = Plain()
    box = [resource.allocate(SMALL)]
    address = box[0].handle
    graph = Graph(stream, lambda: box[0].fill(3, stream=stream))
    graph.instantiate()
    box.clear()
    gc.collect()
    assert resource.asked == []
    graph.launch()
    assert read(address, SMALL) == b"\x03" * SMALL
    graph.end()
    assert given_back(address)


def test_a_grow_that_moves_leaves_the_graph_its_addresses(device, stream, resource):
    small = resource.allocate(GRANULE)
    address = small.handle
    graph = Graph(stream, lambda: small.fill(b"abcd", stream=stream))
    graph.instantiate()
    with blocked(small):
        large = resource.modify_allocation(small, 2 * GRANULE)
    assert large.handle != address
    graph.launch()
    assert read(large.handle, 8) == b"abcdabcd"  # through the old addresses, which are the same memory
    assert still_allocated(address)
    graph.end()
    assert loans_end(large)
    large.close()
    assert not still_allocated(address)


def test_a_borrowed_buffer_keeps_its_owner_for_the_graph(device, stream):
    import weakref

    class Owner:
        pass

    memory, owner = Plain().allocate(SMALL), Owner()
    gone = weakref.ref(owner)
    view = Buffer.from_handle(memory.handle, SMALL, owner=owner)
    del owner
    graph = Graph(stream, lambda: view.fill(1, stream=stream))
    assert view.close() is CloseResult.LENT
    assert gone() is not None
    graph.end()
    end = time.monotonic() + 10
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.001)
    assert gone() is None
    memory.close()


def test_a_copy_captured_by_a_fork_of_the_capture_is_lent_too(device, stream):
    other = device.create_stream()
    buffer = Plain().allocate(SMALL)

    def work():
        other.wait(stream)
        buffer.fill(4, stream=other)
        stream.wait(other)

    graph = Graph(stream, work)
    assert buffer.loans == 1
    graph.instantiate()
    graph.launch()
    assert read(buffer.handle, SMALL) == b"\x04" * SMALL
    graph.end()
    assert loans_end(buffer)
    buffer.close()


def test_what_is_not_captured_is_not_lent(device, stream):
    """Another stream's work, empty buffers, and refused calls leave the graph nothing."""
    other, resource = device.create_stream(), Plain()
    one, two = resource.allocate(SMALL), resource.allocate(SMALL)
    empty, nothing = Buffer.from_handle(0, 0), Buffer.from_handle(0, 0)

    def work():
        one.copy_to(two, stream=other)
        empty.copy_to(nothing, stream=stream)
        empty.fill(0, stream=stream)
        with pytest.raises(ValueError, match="must be divisible"):
            resource_odd.fill(b"ab", stream=stream)
        with pytest.raises(TypeError, match="copy_to does not support graph capture with options"):
            one.copy_to(two, stream=stream, options=CopyOptions())
        with pytest.raises(TypeError, match="copy_from does not support graph capture with options"):
            one.copy_from(two, stream=stream, options=CopyOptions("any"))

    resource_odd = resource.allocate(5)
    graph = Graph(stream, work)
    assert [b.loans for b in (one, two, empty, nothing, resource_odd)] == [0] * 5
    assert graph.nodes() == 0
    graph.end()
    other.sync()
    for buffer in (one, two, resource_odd):
        buffer.close()


@pytest.mark.provokes_refusals
def test_a_capture_that_is_spoiled_lends_nothing_in_the_end(device, stream):
    buffer = Plain().allocate(SMALL)
    check(
        driver.cuStreamBeginCapture(
            stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        )
    )
    buffer.fill(1, stream=stream)
    assert buffer.loans == 1
    assert driver.cuStreamSynchronize(stream.handle)[0] != driver.CUresult.CUDA_SUCCESS
    with pytest.raises(CUDAError, match="CAPTURE_INVALIDATED"):
        buffer.fill(2, stream=stream)
    assert driver.cuStreamEndCapture(stream.handle)[0] != driver.CUresult.CUDA_SUCCESS
    assert loans_end(buffer)
    buffer.close()


@pytest.mark.provokes_refusals
def test_the_legacy_stream_is_refused_beside_a_capture_that_it_would_wait_for(device):
    """The driver would refuse the copy as well, and end the capture."""
    from cuda.core import LEGACY_DEFAULT_STREAM

    blocking = device.create_stream(options=StreamOptions(nonblocking=False))
    one, two = Plain().allocate(SMALL), Plain().allocate(SMALL)

    def work():
        one.fill(1, stream=blocking)
        for call in (
            lambda: one.copy_to(two, stream=LEGACY_DEFAULT_STREAM),
            lambda: one.fill(1, stream=LEGACY_DEFAULT_STREAM),
        ):
            with pytest.raises(CUDAError, match="STREAM_CAPTURE_IMPLICIT"):
                call()

    graph = Graph(blocking, work)  # it ends well
    assert (one.loans, two.loans) == (1, 0)
    graph.end()
    assert loans_end(one)
    one.close()
    two.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("operation", ["copy", "fill"])
def test_every_call_of_a_captured_operation_fails(device, stream, driver_watch, operation):
    """Whatever is refused, the capture is neither lent too much nor too little."""
    src, dst = Plain().allocate(SMALL), Plain().allocate(SMALL)

    def work():
        if operation == "copy":
            src.copy_to(dst, stream=stream)
        else:
            dst.fill(1, stream=stream)

    counted = []
    graph = Graph(stream, lambda: counted.append(driver_watch.calls_of(work)))
    graph.end()
    assert loans_end(src, dst)
    assert {"cuUserObjectCreate", "cuGraphRetainUserObject"} <= counted[0].keys()
    for name, count in counted[0].items():
        for nth in range(1, count + 1):

            def refused(name=name, nth=nth):
                with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                    with pytest.raises(CUDAError, match=name):
                        work()
                assert failure.fired == 1
                assert loans_end(src, dst)
                work()

            graph = Graph(stream, refused)
            assert graph.nodes() == 1
            assert dst.loans == 1
            graph.end()
            assert loans_end(src, dst)
    src.close()
    dst.close()


def test_threads_capture_and_destroy(device):
    """Each its own graph over one buffer: the loans of all end, and the memory goes back once."""
    resource = Plain()
    buffer = resource.allocate(SMALL)
    context = check(driver.cuCtxGetCurrent())
    streams = [device.create_stream() for _ in range(4)]

    def work(stream):
        check(driver.cuCtxSetCurrent(context))
        for _ in range(25):
            graph = Graph(stream, lambda: buffer.fill(1, stream=stream))
            graph.instantiate()
            graph.launch()
            graph.end()

    assert race(*(lambda s=stream: work(s) for stream in streams)) == [None] * 4
    assert loans_end(buffer)
    assert buffer.close() is CloseResult.DONE
    assert len(resource.asked) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_deallocate_reaches_the_main_thread(device, stream, kind):
    """Ctrl-C and ``sys.exit()`` are not about the memory, and the thread that ends loans has no caller to tell."""

    class Interrupted(Plain):
        refusals = 1

        def deallocate(self, ptr, size, *, stream=None):
            if self.refusals:
                self.refusals -= 1
                raise kind("stop")
            super().deallocate(ptr, size, stream=stream)

    resource, quiet = Interrupted(), Plain()
    first, second = resource.allocate(SMALL), quiet.allocate(SMALL)
    graph = Graph(stream, lambda: first.fill(1, stream=stream))
    other = Graph(stream, lambda: second.fill(1, stream=stream))
    address = second.handle
    first.close()
    second.close()
    with pytest.raises(kind, match="stop"):
        graph.end()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.001)
    other.end()  # the thread goes on
    assert given_back(address)
    for pointer in list(resource.held):  # raising promised that nothing was freed
        resource.give_back(pointer)


@pytest.mark.sim_only
def test_graphs_that_are_alive_at_exit_are_silent():
    output = child_output(
        """
import cuda_driver_sim
cuda_driver_sim.activate()
from cuda.bindings import driver
from cuda.core import Device
from python_resources import Plain
from cuda.core import LegacyPinnedMemoryResource
device = Device(0)
device.set_current()
stream = device.create_stream()
kept = [Plain().allocate(4096), LegacyPinnedMemoryResource().allocate(4096)]
driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
for buffer in kept:
    buffer.fill(1, stream=stream)
graph = driver.cuStreamEndCapture(stream.handle)[1]
print([buffer.loans for buffer in kept], kept[1].close().name)

class AtExit:
    def __del__(self):
        driver.cuGraphDestroy(graph)

import builtins
builtins.kept_to_the_end = AtExit()
"""
    )
    assert output == "[1, 1] LENT\n"


@pytest.mark.sim_only
def test_a_child_of_a_fork_does_not_touch_what_graphs_hold():
    output = child_output(
        """
import cuda_driver_sim
cuda_driver_sim.activate()
import os, time
from cuda.bindings import driver
from cuda.core import Device
from python_resources import Plain
device = Device(0)
device.set_current()
stream, resource = device.create_stream(), Plain()
buffer = resource.allocate(4096)
driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
buffer.fill(1, stream=stream)
graph = driver.cuStreamEndCapture(stream.handle)[1]
child = os.fork()
if child == 0:
    print(buffer.loans, buffer.close().name, buffer.ownership.name, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), buffer.loans)
buffer.close()
driver.cuGraphDestroy(graph)
while resource.held:
    time.sleep(0.001)
print(len(resource.asked))
""",
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert output == "0 NOTHING RELEASED\n0 1\n1\n"
