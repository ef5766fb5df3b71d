# SPDX-License-Identifier: Apache-2.0
"""Memory of graphs that changes hands, that resources of one's own free, or that is of graphs which others make."""

import time

import pytest

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    GraphMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from graph_tools import SIZE, built, graph_memory_in_use, launch, scratch, soon
from held_work import Gate
from support import check, read, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")

DONE = CloseResult.DONE


# --- handing over ------------------------------------------------------------------------------------------------


def test_graph_memory_can_be_detached_and_adopted(device, stream):
    with built(device) as builder:
        buffer = scratch(builder)
        buffer.fill(1, stream=builder)
    allocation = buffer.detach()
    assert buffer.transferred_to is TransferredTo.DETACHED
    graph = builder.complete()
    launch(graph, stream)
    again = Buffer.adopt(allocation)
    assert read(again.handle, 4) == b"\x01" * 4
    assert again.close() is DONE
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_detached_allocation_is_freed_by_its_address(device, stream):
    resource = GraphMemoryResource(0)
    with built(device) as builder:
        buffer = scratch(builder)
        address = buffer.handle
        with pytest.raises(OwnershipError, match="open buffer owns"):
            resource.deallocate(address, SIZE, stream=builder)
        allocation = buffer.detach()
        with pytest.raises(ValueError, match="size must be"):
            resource.deallocate(address, SIZE + 1, stream=builder)
        with pytest.raises(TypeError, match="stream is required"):
            resource.deallocate(address, SIZE, stream=None)
        resource.deallocate(address, SIZE, stream=builder)
    assert allocation is not None
    graph = builder.complete()
    launch(graph, stream, times=2)
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_memory_that_the_driver_has_allocated_in_a_capture_can_be_owned(device, stream):
    builder = stream.create_graph_builder().begin_building()
    address = int(check(driver.cuMemAllocAsync(SIZE, int(stream.handle))))
    with Buffer.from_handle(address, SIZE, mr=GraphMemoryResource(0), stream=builder):
        pass
    other = int(check(driver.cuMemAllocAsync(SIZE, int(stream.handle))))
    GraphMemoryResource(0).deallocate(other, SIZE, stream=builder)
    builder.end_building()
    graph = builder.complete()
    launch(graph, stream, times=2)
    builder.close()
    graph.close()


@pytest.mark.parametrize("how", ["no stream", "several streams"])
def test_memory_that_the_driver_has_allocated_in_a_launch_can_be_owned(device, stream, how):
    foreign = Foreign(stream)
    address = int(check(driver.cuMemAllocAsync(SIZE, int(stream.handle))))
    foreign.end()
    foreign.launch()

    other = device.create_stream()
    buffer = Buffer.from_handle(address, SIZE, mr=GraphMemoryResource(0))  # ordered by the default stream
    if how == "several streams":
        buffer.record_stream(stream)
        buffer.record_stream(other)
    with Gate(other) as gate:
        if how == "several streams":
            check(driver.cuMemsetD8Async(address, 7, SIZE, int(other.handle)))
        assert buffer.close() is DONE
        gate.open()
    device.sync()  # no work has touched freed memory
    other.close()
    assert not still_allocated(address)
    foreign.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_subclass_is_asked_for_each_free(device, stream):
    class Noting(GraphMemoryResource):
        def deallocate(self, ptr, size, *, stream):
            asked.append((ptr, size))
            super().deallocate(ptr, size, stream=stream)

    asked = []
    resource = Noting(0)
    assert resource is not GraphMemoryResource(0)
    with built(device) as builder:
        first, second = (resource.allocate(SIZE, stream=builder) for _ in range(2))
        addresses = [first.handle, second.handle]
        first.close()
    graph = builder.complete()
    launch(graph, stream)
    second.close()
    launch(graph, stream)
    assert asked == [(address, SIZE) for address in addresses]
    builder.close()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)


# --- captures of others ------------------------------------------------------------------------------------------


class Foreign:
    """A capture, its graph and executable that somebody else makes."""

    def __init__(self, stream):
        self.stream = int(stream.handle)
        check(
            driver.cuStreamBeginCapture(
                self.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            )
        )

    def end(self):
        self.graph = check(driver.cuStreamEndCapture(self.stream))
        self.executable = check(driver.cuGraphInstantiate(self.graph, 0))

    def launch(self):
        check(driver.cuGraphLaunch(self.executable, self.stream))
        check(driver.cuStreamSynchronize(self.stream))

    def close(self):
        check(driver.cuGraphExecDestroy(self.executable))
        check(driver.cuGraphDestroy(self.graph))


@pytest.mark.parametrize("how", ["close in the capture", "drop in the capture", "close after each launch"])
def test_memory_in_a_capture_of_others_comes_back(device, stream, how):
    foreign = Foreign(stream)
    box = [scratch(stream)]
    box[0].fill(1, stream=stream)
    address = box[0].handle
    if how == "close in the capture":
        box[0].close()
    elif how == "drop in the capture":
        box.clear()
    foreign.end()
    foreign.launch()
    if how == "close after each launch":
        assert read(address, 4) == b"\x01" * 4
        assert box[0].close() is DONE
    assert not still_allocated(address)
    foreign.close()
    assert soon(lambda: graph_memory_in_use() == 0)


def test_a_graph_of_others_that_is_gone_without_memory_is_quiet(device, stream):
    foreign = Foreign(stream)
    buffer = scratch(stream)
    foreign.end()
    foreign.close()
    with warnings_seen() as seen:
        assert buffer.close() is DONE
    assert seen == []


@pytest.mark.parametrize("how", ["close", "drop"])
def test_what_a_graph_of_others_has_left_is_lost_and_told(device, stream, how):
    """Nobody knows whose memory is at the address now."""
    foreign = Foreign(stream)
    box = [scratch(stream)]
    address = box[0].handle
    foreign.end()
    foreign.launch()
    foreign.close()
    time.sleep(0.2)  # until the driver has told, on a thread of its own, that the graph is gone
    with warnings_seen() as seen:
        if how == "drop":
            box.clear()
        else:
            with pytest.raises(CUDAError, match="may be somebody else's"):
                box[0].close()
            assert box[0].ownership is Ownership.RELEASED
    assert [one.category for one in seen] == ([CUDAWarning] if how == "drop" else [])
    assert all("is gone" in str(one.message) for one in seen)
    assert still_allocated(address)
    check(driver.cuMemFreeAsync(address, int(stream.handle)))
