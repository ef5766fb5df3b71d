# SPDX-License-Identifier: Apache-2.0
"""What tests of graphs share: making them, looking at them, and giving the device back what graphs hold."""

import collections
import contextlib
import gc
import time
import weakref

from cuda.bindings import driver
from cuda.core import Device, GraphMemoryResource
from support import check, read, write

SIZE = 4096
MODES = ("global", "thread_local", "relaxed")


def trim():
    """Give the device back what graphs have used: a driver keeps it, and counts it as taken."""
    gc.collect()
    Device(0).sync()
    for ordinal in range(int(check(driver.cuDeviceGetCount()))):
        check(driver.cuDeviceGraphMemTrim(ordinal))


def graph_memory_in_use():
    """Return the bytes that graphs keep on device 0 although nothing else is asked of them."""
    trim()
    name = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
    return int(check(driver.cuDeviceGetGraphMemAttribute(0, name)))


_graphs = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def built(device, mode="relaxed"):
    """Build in the block, and end it; the builder is closed by the test or by its end."""
    builder = device.create_graph_builder().begin_building(mode)
    yield builder
    _graphs[builder] = check(driver.cuStreamGetCaptureInfo(int(builder.stream.handle)))[2]
    builder.end_building()


def node_types(builder):
    """Return how many nodes of each type the graph of a builder has, which `built` has ended."""
    nodes, count = check(driver.cuGraphGetNodes(_graphs[builder], 100))
    prefix = "CU_GRAPH_NODE_TYPE_"
    return collections.Counter(
        check(driver.cuGraphNodeGetType(node)).name.removeprefix(prefix) for node in nodes[:count]
    )


def status(stream):
    """Return the status of a capture: ACTIVE, INVALIDATED or NONE."""
    name = check(driver.cuStreamIsCapturing(int(stream.handle))).name
    return name.removeprefix("CU_STREAM_CAPTURE_STATUS_")


def scratch(builder, size=SIZE):
    """Allocate memory of the graph."""
    return GraphMemoryResource(0).allocate(size, stream=builder)


def round_trip(builder, source, target, *, close=True):
    """Capture a copy from one buffer to another by way of memory of the graph, which is returned."""
    between = scratch(builder, source.size)
    between.copy_from(source, stream=builder)
    target.copy_from(between, stream=builder)
    if close:
        between.close()
    return between


def launch(graph, stream, times=1):
    for _ in range(times):
        graph.launch(stream)
        stream.sync()


def soon(true, seconds=10):
    """Tell whether something is true within moments: the driver and a thread of the package end what a graph holds."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


__all__ = [name for name in dir() if not name.startswith("_")]
__all__ += ["read", "write"]
