# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Small programs that behave differently on cuda-core 1.2.2 and here; run as a script, it says how each of them went.

    python behaviour.py [FOLDER]

With a folder, that of an unpacked wheel of ``cuda-core``, it runs on that one. Always on the simulated driver. The
answer is JSON: the name of each program with what it said.
"""

import copy
import json
import re
import sys
import uuid

import cuda_driver_sim

cuda_driver_sim.activate()

if len(sys.argv) > 1:
    import cuda

    cuda.__path__ = [f"{sys.argv[1]}/cuda", *cuda.__path__]  # ours would be found first

import numpy

from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    PinnedMemoryResource,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
    __version__,
)
from cuda.core._stream import Stream_accept
from cuda.core.graph import Graph, GraphBuilder
from cuda.core.utils import copy_batch

MIB = 1 << 20
device = Device(0)
device.set_current()
stream = device.create_stream()
pinned = LegacyPinnedMemoryResource()


def live(kind):
    return cuda_driver_sim.live().get(kind, 0)


def outcome(function, *arguments, **keywords):
    """Return what a call gives, by its type unless it is plain, or the exception that it raises."""
    try:
        value = function(*arguments, **keywords)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return value if value is None or isinstance(value, bool | int | str) else type(value).__name__


def closing_fails():
    before = live("host_allocation")
    buffer = pinned.allocate(64, stream=stream)
    with cuda_driver_sim.fail("cuMemFreeHost"):
        first = outcome(buffer.close)
    return [first.split()[0] if first else first, buffer.is_closed, live("host_allocation") - before]


def use_of_a_closed_buffer():
    buffer = pinned.allocate(64, stream=stream)
    buffer.close()
    return [outcome(buffer.fill, 0, stream=stream), buffer.handle, buffer.size]


def the_hash_of_a_closed_buffer():
    buffer = pinned.allocate(64, stream=stream)
    before = hash(buffer)
    buffer.close()
    return [hash(buffer) == before]


def closing_under_a_view():
    before = live("host_allocation")
    buffer = pinned.allocate(64, stream=stream)
    array = numpy.from_dlpack(buffer)
    buffer.close()
    still = live("host_allocation") - before
    del array
    return [still, live("host_allocation") - before]


def copying_a_buffer():
    return [outcome(copy.copy, pinned.allocate(64, stream=stream))]


def two_owners():
    first = pinned.allocate(64, stream=stream)
    second = outcome(Buffer.from_handle, first.handle, 64, mr=pinned)
    return [second]


def growing_twice():
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(2 * MIB)
    grown = resource.modify_allocation(buffer, 4 * MIB)
    again = outcome(resource.modify_allocation, grown, 8 * MIB)
    return [grown is buffer, buffer.is_closed, again]


def memory_after_the_close_of_virtual_memory():
    resource = VirtualMemoryResource(device)
    before = live("physical_allocation")
    resource.allocate(2 * MIB).close()
    return [live("physical_allocation") - before]


def the_config_of_a_grow():
    resource = VirtualMemoryResource(device)
    other = VirtualMemoryResourceOptions(granularity="minimum")
    grown = resource.modify_allocation(resource.allocate(2 * MIB), 4 * MIB, config=other)
    return [grown.size // MIB, str(resource.config.granularity)]


def wrong_options_of_virtual_memory():
    return [
        outcome(VirtualMemoryResourceOptions, handle_type="nothing"),
        outcome(VirtualMemoryResourceOptions, addr_align=3),
    ]


def an_override_of_deallocate():
    asked = []

    class Asked(DeviceMemoryResource):
        def deallocate(self, ptr, size, *, stream):
            asked.append(size)
            super().deallocate(ptr, size, stream=stream)

    Asked(0).allocate(64, stream=stream).close()
    return asked


def making_a_resource_twice():
    resource = DeviceMemoryResource(0)
    return [outcome(resource.__init__, 0)]


def what_dlpack_is_asked_for():
    buffer = pinned.allocate(64, stream=stream)
    return [
        outcome(buffer.__dlpack__, copy=True),
        outcome(DeviceMemoryResource(0).allocate(64, stream=stream).__dlpack__, stream=0),
    ]


def copies_that_overlap():
    buffer = pinned.allocate(64, stream=stream)
    left, right = (Buffer.from_handle(buffer.handle + offset, 48, owner=buffer) for offset in (0, 8))
    return [outcome(left.copy_to, right, stream=stream)]


def nothing_in_a_batch():
    empty = pinned.allocate(0, stream=stream)
    return [outcome(copy_batch, stream, [empty], [empty])]


def closing_under_a_graph():
    pool = DeviceMemoryResource(0)
    before = live("pool_allocation")
    source, target = (pool.allocate(64, stream=stream) for _ in range(2))
    stream.sync()
    builder = device.create_graph_builder().begin_building()
    source.copy_to(target, stream=builder)
    graph = builder.end_building().complete()
    source.close()
    target.close()
    stream.sync()
    kept = live("pool_allocation") - before
    graph.close()
    builder.close()
    return [kept]


def ending_with_open_branches():
    builder = device.create_graph_builder().begin_building()
    branches = builder.split(2)
    said = outcome(builder.end_building)
    for branch in reversed(branches):
        branch.close()
    return [said]


def closing_on_a_capturing_stream():
    order = device.create_stream()
    buffer = DeviceMemoryResource(0).allocate(64, stream=order)
    builder = order.create_graph_builder().begin_building()
    said = outcome(buffer.close, builder)
    closed = buffer.is_closed
    builder.close()
    return [said, closed]


def making_graphs_directly():
    return [outcome(Graph, 3), outcome(GraphBuilder, 3)]


def making_graphs_without_arguments():
    return [outcome(Graph), outcome(GraphBuilder)]


def registering_under_no_uuid():
    return [outcome(DeviceMemoryResource(0, {"ipc_enabled": True}).register, "name")]


def error_of(function, *arguments, **keywords):
    """Return the error of a call as an except clause of 1.2.2's time catches it: by Python's own class."""
    try:
        function(*arguments, **keywords)
    except Exception as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return "none"


def errors_that_are_documented():
    """One line for each exception that a docstring of 1.2.2 promises."""
    buffer = pinned.allocate(64, stream=stream)
    closed = pinned.allocate(64, stream=stream)
    closed.close()
    return [
        error_of(buffer.copy_from, closed, stream=stream),
        error_of(buffer.copy_from, buffer, stream=None),
        error_of(buffer.copy_to, pinned.allocate(32, stream=stream), stream=stream),
        error_of(buffer.fill, 256, stream=stream),
        error_of(buffer.fill, b"abc", stream=stream),
        error_of(buffer.fill, b"abcd" * 2, stream=stream),
        error_of(buffer.set_deallocation_stream, 7),
        error_of(closed.set_deallocation_stream, stream),
        error_of(DeviceMemoryResource.from_registry, uuid.UUID(int=7)),
        error_of(PinnedMemoryResource.from_registry, uuid.UUID(int=7)),
        error_of(copy_batch, stream, [buffer], []),
        error_of(copy_batch, stream, [buffer], [closed]),
        error_of(device.create_event, {"nothing": 1}),
        error_of(stream.wait, 7),
        error_of(Device, -1),
        error_of(Device, 99),
    ]


def no_stream():
    said = []
    for thing in (None, 7):
        try:
            Stream_accept(thing)
        except TypeError as error:
            said.append(re.split("[:;]", str(error))[0])
    return said


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__module__", "") == "__main__"]

if __name__ == "__main__":
    answers = {"version": __version__}
    for program in PROGRAMS:
        if program not in (live, outcome, error_of):
            answers[program.__name__] = program()
    print(json.dumps(answers))
