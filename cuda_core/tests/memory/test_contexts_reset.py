# SPDX-License-Identifier: Apache-2.0
"""Contexts that other code resets, more than once: each loss is told, and nothing old is named by its address.

A reset ends the process's own streams and memory with it, so everything here happens in children.
"""

import pytest

from support import child_output

TWICE = """
import gc, sys, warnings
from support import check, driver
from buffer_kinds import SOURCES
from cuda.core import CUDAError, Device
from cuda.core._memory._queue import drain
device = Device(0)
for turn in range(3):
    device.set_current()
    source = SOURCES[sys.argv[1]](device)
    stream = None if sys.argv[2] == "default" else device.create_stream()
    closed, first, second, lent = [source.allocate(stream=stream) for _ in range(4)]
    part = lent[0:8]
    lent.close()
    check(driver.cuDevicePrimaryCtxReset(0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            closed.close()
        except CUDAError as error:
            print(closed.ownership.name, str(error).split(":")[0])
        del first, second
        gc.collect()
        part.close()
        drain(20)
        for _ in range(1000):  # a report of the queue is a pending call
            pass
    print(len(seen), "It is lost, like everything of device 0" in str(seen[-1].message) if seen else None)
"""


@pytest.mark.parametrize("stream", ["default", "created"])
@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_each_reset_is_reported_once(kind, stream):
    expected = ["RELEASED CUDA_ERROR_CONTEXT_IS_DESTROYED", "1 True"] * 3
    assert child_output(TWICE, kind, stream).splitlines() == expected


OLD = """
import gc, sys, warnings
from support import check, driver, watching_driver
from buffer_kinds import SOURCES
from cuda.core import Buffer, CUDAError, Device
kind, origin, how = sys.argv[1:]
device = Device(0)
device.set_current()
source = SOURCES[kind](device)
if origin == "allocate":
    buffer = source.allocate()
elif origin == "from_handle":
    make = driver.cuMemAlloc if kind == "device" else driver.cuMemAllocHost
    buffer = Buffer.from_handle(int(check(make(4096))), 4096, mr=source.resource)
elif origin == "adopt":
    buffer = Buffer.adopt(source.allocate().detach())
elif origin == "move_to":
    buffer = source.allocate().move_to(type(source.resource)(*source.arguments))
if how == "deallocate":
    resource, buffer = buffer.memory_resource, buffer.detach()
    address, size = buffer.handle, buffer.size
check(driver.cuDevicePrimaryCtxReset(0))
check(driver.cuDevicePrimaryCtxRetain(0))
news = [check(driver.cuMemAlloc(4096)) for _ in range(8)]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        if how == "close":
            buffer.close()
        elif how == "no wait":
            buffer.close(wait=False)
        else:
            resource.deallocate(address, size)
    except CUDAError as error:
        print(str(error).split(":")[0])
    print(buffer.ownership.name)
    del buffer
    gc.collect()
print([str(w.message) for w in seen])
for new in news:
    check(driver.cuMemFree(new))
sim = watching_driver()
print({call.name for call in sim.refused()} - {"cuCtxGetId"} if sim else set())
"""


@pytest.mark.parametrize("how", ["close", "no wait", "deallocate"])
@pytest.mark.parametrize("origin", ["allocate", "from_handle", "adopt", "move_to"])
@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_old_memory_is_lost_where_its_context_came_back(kind, origin, how):
    """By then the address may be another allocation's, so that it must not be freed by it."""
    assert child_output(OLD, kind, origin, how).splitlines() == [
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "RELEASED",
        "[]",
        "set()",
    ]


POOLS = """
import gc, sys, threading, warnings
from support import check, driver, watching_driver
from buffer_kinds import SOURCES
from cuda.core import Device, Stream
from cuda.core._memory._queue import drain
import cuda_driver_sim as sim
then, where, kind = sys.argv[1:]
device = Device(0)
device.set_current()
own = device.create_stream()
streams = {"created": own, "foreign": Stream.from_handle(int(own.handle)), "several": own}
source = SOURCES[kind](device)
made = []
for name, stream in streams.items():
    for _ in range(3):
        made.append(source.allocate(stream=stream))
        if name == "several":
            made[-1].record_stream(streams["foreign"])
lent = [made[index] for index in (1, 4, 7)]
parts = [buffer[0:8] for buffer in lent]
dropped = [made[index] for index in (2, 5, 8)]
closed = [made[index] for index in (0, 3, 6)]
del made
check(driver.cuDevicePrimaryCtxReset(0))
if then == "activated again":
    check(driver.cuDevicePrimaryCtxRetain(0))
    news = [check(driver.cuStreamCreate(1)) for _ in range(4)]
def end():
    print({buffer.close().name for buffer in closed} <= {"DONE", "QUEUED"})
    print({buffer.close().name for buffer in lent})
    parts.clear()
    dropped.clear()
    gc.collect()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    if where == "here":
        end()
    else:
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    print(drain(20), sim.live().get("pool_allocation", 0))
print([str(w.message) for w in seen])
# The question for a capture is answered on a real device, too; what ends the process there is the free behind it.
fatal = {"cuMemFreeAsync", "cuStreamQuery", "cuStreamSynchronize", "cuEventRecord"}
print({call.name for call in sim.refused()} & fatal)
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", ["pool", "pinned pool", "managed pool"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("then", ["gone", "activated again"])
def test_a_pool_frees_in_a_stream_of_a_context_that_was_reset(then, where, kind):
    """The memory is the pool's and goes back; nothing is put behind the stream, which went with its context."""
    assert child_output(POOLS, then, where, kind).splitlines() == [
        "True",
        "{'LENT'}",
        "True 0",
        "[]",
        "set()",
    ]


AFTERWARDS = """
from support import check, driver
from buffer_kinds import SOURCES
from cuda.core import CUDAError, Device
device = Device(0)
device.set_current()
source = SOURCES["device"](device)
source.allocate().close()
check(driver.cuDevicePrimaryCtxReset(0))
try:
    source.allocate()
except CUDAError as error:
    print(str(error).split(":")[0])
device.set_current()
print(source.allocate().close().name)
"""


def test_the_resource_allocates_again_when_the_context_is_back():
    assert child_output(AFTERWARDS).splitlines() == ["CUDA_ERROR_CONTEXT_IS_DESTROYED", "DONE"]


WAITING = """
import sys, threading
from support import check, driver
from buffer_kinds import SOURCES
from held_work import Gate, Waiting
from cuda.core import CUDAError, Device
import cuda_driver_sim as sim
device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = SOURCES[sys.argv[1]](device).allocate(stream=stream)
gate = Gate(stream)
closing = Waiting(buffer.close)
assert closing.waits(0.1)
check(driver.cuDevicePrimaryCtxReset(0))
device.set_current()
sim.reset()
gate.open_with_gil()
error = closing.result()
print(type(error).__name__, str(error).split(":")[0], buffer.ownership.name)
print(sorted({call.name for call in sim.refused()} & {"cuMemFree", "cuMemFreeHost", "cuEventDestroy"}))
import os
os._exit(0)  # the gate is of the context that is gone
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_context_that_is_reset_while_a_close_waits_is_asked_about_again(kind):
    """The address may be another allocation's when the wait is over."""
    assert child_output(WAITING, kind).splitlines() == [
        "CUDAError CUDA_ERROR_CONTEXT_IS_DESTROYED RELEASED",
        "[]",
    ]


USES = """
import sys
from support import attempt, check, driver
from buffer_kinds import SOURCES
from cuda.core import Device, EventOptions, Stream
import cuda_driver_sim as sim
then, made, use = sys.argv[1:]
device = Device(0)
device.set_current()
own, other = device.create_stream(), device.create_stream()
stream = Stream.from_handle(int(own.handle)) if made == "foreign" else own
timed = EventOptions(timing_enabled=True)
event, later = [stream.record(options=timed) for _ in range(2)]
managed = SOURCES["managed pool"](device).allocate(stream=other)
plain = SOURCES["device"](device)
target, source = plain.allocate(), plain.allocate()
builder = stream.create_graph_builder()
builder.begin_building()
builder.end_building()
graph = builder.complete()
check(driver.cuDevicePrimaryCtxReset(0))
if then == "activated again":
    check(driver.cuDevicePrimaryCtxRetain(0))
uses = {
    "Event.is_done": lambda: event.is_done,
    "Event.sync": lambda: event.sync(),
    "Event - Event": lambda: later - event,
    "Stream.record": lambda: stream.record(),
    "Stream.record of an event": lambda: stream.record(event),
    "Stream.wait for an event": lambda: other.wait(event),
    "Stream.wait for a stream": lambda: other.wait(stream),
    "Stream.sync": lambda: stream.sync(),
    "Stream.priority": lambda: stream.priority,
    "Stream.is_nonblocking": lambda: Stream.from_handle(int(stream.handle)).is_nonblocking,
    "GraphBuilder.begin_building": lambda: stream.create_graph_builder().begin_building(),
    "Graph.launch": lambda: graph.launch(stream),
    "Graph.upload": lambda: graph.upload(stream),
    "fill": lambda: target.fill(1, stream=stream),
    "copy_to": lambda: source.copy_to(target, stream=stream),
    "prefetch": lambda: managed.prefetch(device, stream=stream),
    "discard": lambda: managed.discard(stream=stream),
    "discard_prefetch": lambda: managed.discard_prefetch(device, stream=stream),
    "allocate": lambda: managed.memory_resource.allocate(64, stream=stream),
    "__dlpack__": lambda: managed.__dlpack__(stream=int(stream.handle)),
}
sim.reset()
answer, error = attempt(uses[use], Exception)
print(type(error).__name__, {call.name for call in sim.refused()} - {"cuCtxGetId", "cuStreamIsCapturing"})
"""


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "use",
    [
        "Event.is_done",
        "Event.sync",
        "Event - Event",
        "Stream.record",
        "Stream.record of an event",
        "Stream.wait for an event",
        "Stream.wait for a stream",
        "Stream.sync",
        "Stream.priority",
        "Stream.is_nonblocking",
        "GraphBuilder.begin_building",
        "Graph.launch",
        "Graph.upload",
        "fill",
        "copy_to",
        "prefetch",
        "discard",
        "discard_prefetch",
        "allocate",
        "__dlpack__",
    ],
)
@pytest.mark.parametrize("made", ["created", "foreign"])
@pytest.mark.parametrize("then", ["gone", "activated again"])
def test_a_stream_or_event_of_a_context_that_was_reset_is_not_used(then, made, use):
    """A real driver may crash where it is named. The two questions it answers, also of one that is gone."""
    assert child_output(USES, then, made, use).splitlines() == ["CUDAError set()"]
