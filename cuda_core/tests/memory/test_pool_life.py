# SPDX-License-Identifier: Apache-2.0
"""The life of a pool: it goes with the last that needs it, at the end of a program and in a forked child too."""

import gc
import warnings

import pytest

from buffer_kinds import POOL_TYPES, POOLS
from captures import capture, end_capture
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    DeviceMemoryResource,
    Stream,
)
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from held_work import Gate
from support import (
    check,
    child_output,
    fill,
    holds,
    still_allocated,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def pools(driver_watch):
    """Tells how many pools are not destroyed of those made since, by the driver's count and by the package's."""

    def count():
        return driver_watch.live().get("memory_pool", 0), _counters.live().get("pools", 0)

    driver, package = count()
    return lambda: (count()[0] - driver, count()[1] - package)


@pytest.fixture(params=POOLS.values(), ids=POOLS)
def source(request, device, pools):
    return request.param(device)


# --- the life of the pool ----------------------------------------------------------------------------------------


@pytest.mark.watched
@pytest.mark.parametrize("kept", ["buffer", "allocation", "slice", "several", "nothing", "moved"])
@pytest.mark.parametrize("end_of_resource", ["close", "drop"])
def test_pool_04_the_pool_goes_after_the_last_that_needs_it(
    device, stream, source, kept, end_of_resource, pools
):
    assert pools() == (1, 1)
    resource, source.resource = source.resource, None
    buffers = [resource.allocate(4096, stream=stream) for _ in range(3 if kept == "several" else 1)]
    address = buffers[0].handle
    other = source.make() if kept == "moved" else None
    holder = {
        "allocation": lambda: buffers.pop().detach(),
        "slice": lambda: buffers[0][:64],
        "moved": lambda: buffers.pop().move_to(other),
        "nothing": lambda: buffers.pop().close(),
    }.get(kept, list)()
    if end_of_resource == "close":
        resource.close()
        assert resource.is_closed
        with pytest.raises(RuntimeError, match=f"{type(resource).__name__} has been closed"):
            resource.allocate(4096, stream=stream)
        with pytest.raises(RuntimeError, match="has been closed"):
            resource.allocate(0, stream=stream)
    del resource
    gc.collect()
    if other is not None:
        other.close()
    if kept == "nothing":
        assert pools() == (0, 0)
        return
    assert pools() == (2 if kept == "moved" else 1,) * 2 or kept == "moved"
    fill(address, 4096, seed=4)
    assert holds(address, 4096, seed=4)
    if kept == "allocation":
        holder = Buffer.adopt(holder)
    if kept == "slice":
        assert buffers[0].close() is CloseResult.LENT
        assert pools() == (1, 1)
    while len(buffers) > 1:
        assert buffers.pop().close() is CloseResult.DONE
        assert pools() == (1, 1)
    last = holder if kept in ("allocation", "slice", "moved") else buffers.pop()
    assert last.close() is CloseResult.DONE
    del last, holder
    gc.collect()
    assert pools() == (0, 0)
    assert not still_allocated(address)


@pytest.mark.watched
def test_a_queued_release_keeps_the_pool(source, stream, pools):
    resource, source.resource = source.resource, None
    buffer = resource.allocate(4096, stream=stream)
    capture(stream)
    del buffer
    resource.close()
    del resource
    gc.collect()
    assert pools() == (1, 1)
    end_capture(stream)
    assert drain(20)
    assert pools() == (0, 0)


@pytest.mark.watched
def test_a_pool_stays_while_foreign_code_has_memory_of_it(source, stream, pools):
    """A driver crashes later when a pool is destroyed under its memory. It is looked at again with the next pool."""
    resource, source.resource = source.resource, None
    allocation = resource.allocate(4096, stream=stream).detach()
    address = allocation.handle
    resource.close()
    allocation.handed_over()
    del resource  # which knows the address, in case that it comes back
    gc.collect()
    DeviceMemoryResource(0, {}).close()
    assert pools()[1] == 1
    check(driver.cuMemFreeAsync(address, int(stream.handle)))
    stream.sync()
    DeviceMemoryResource(0, {}).close()
    assert pools()[1] == 0


@pytest.mark.parametrize("end", ["close", "drop", "last loan"])
def test_a_pool_is_destroyed_when_the_last_free_has_run(source, device, pools, end):
    """Not when it is submitted, whichever streams the frees are in, and whatever happens to these."""
    resource, source.resource = source.resource, None
    streams = [device.create_stream() for _ in range(8)]  # more than a pool keeps
    foreign = Stream.from_handle(int(streams[6].handle))
    buffers = [resource.allocate(4096, stream=stream) for stream in streams[:6]]
    buffers += [resource.allocate(4096, stream=foreign) for _ in range(2)]
    buffers[0].record_stream(streams[7])
    last = buffers.pop()
    view = last[0:8] if end == "last loan" else None
    with Gate(streams[0]), Gate(streams[6]), Gate(streams[3]):
        for buffer in buffers:
            buffer.close()
        for stream in streams:
            if stream is not streams[6]:
                stream.close()
        resource.close()
        del resource
        last.close() if end != "drop" else None
        del last, buffer
        buffers.clear()
        if view is not None:
            view.close()
        gc.collect()
        assert not drain(0.05)
        assert pools()[1] == 1
    assert drain(20)
    assert pools()[1] == 0
    streams[6].close()


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_the_end_of_a_pool_waits_for_a_capture_of_a_stream_of_its_frees(source, stream, pools, mode):
    """Whether the free before the capture has run cannot be asked now."""
    resource, source.resource = source.resource, None
    resource.allocate(4096, stream=stream).close()
    capture(stream, mode)
    resource.close()
    del resource
    gc.collect()
    assert not drain(0.05)
    assert pools()[1] == 1
    end_capture(stream)
    assert drain(20)
    assert pools()[1] == 0


def test_a_pool_keeps_few_streams(source, device, driver_watch):
    """Programs that make a stream for each work do not gather them, nor events, in a pool that lives long."""
    before = driver_watch.live()
    for _ in range(100):
        stream = device.create_stream()
        source.resource.allocate(4096, stream=stream).close()
        stream.close()
    device.sync()
    source.resource.allocate(4096, stream=device.default_stream).close()
    if driver_watch.sim:
        now = driver_watch.live()
        assert now.get("stream", 0) - before.get("stream", 0) <= 4
        assert now.get("event", 0) - before.get("event", 0) <= 4


def test_closing_twice_is_harmless(source, driver_watch):
    source.resource.close()
    with driver_watch.no_call():
        source.resource.close()


def test_what_a_closed_resource_still_says(source, stream):
    resource = source.resource
    buffer = resource.allocate(4096, stream=stream)
    attributes = resource.attributes
    assert attributes.used_mem_current == 4096
    assert int(resource.handle) != 0
    assert (resource.is_closed, resource.is_handle_owned, resource.is_ipc_enabled) == (False, True, False)
    assert (resource.is_mapped, resource.uuid) == (False, None)
    resource.close()
    assert int(resource.handle) == 0
    assert (resource.is_closed, resource.is_handle_owned, resource.is_ipc_enabled) == (True, False, False)
    assert (resource.is_mapped, resource.uuid) == (False, None)
    for read_it in (
        lambda: resource.attributes,
        lambda: attributes.used_mem_current,
        lambda: repr(attributes),
    ):
        with pytest.raises(RuntimeError, match=f"{type(resource).__name__} has been closed"):
            read_it()
    # It still frees.
    allocation = buffer.detach()
    address = allocation.handle
    resource.deallocate(address, 4096, stream=stream)
    assert not still_allocated(address)


def test_memory_may_be_given_to_a_closed_resource(source, stream):
    resource = source.resource
    allocation = resource.allocate(4096, stream=stream).detach()
    address = allocation.handle
    allocation.handed_over()
    resource.close()
    buffer = Buffer.from_handle(address, 4096, resource, stream=stream)
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


def test_the_current_pool_is_used_and_never_destroyed(source, stream, threshold):
    source.resource.close()
    kind = POOL_TYPES[source.name]
    first, second = (kind() if source.name != "pool" else kind(0) for _ in range(2))
    assert int(first.handle) == int(second.handle) != 0
    assert not first.is_handle_owned
    buffer = first.allocate(4096, stream=stream)
    first.close()
    assert first.is_closed
    fill(buffer.handle, 4096, seed=5)
    assert buffer.close() is CloseResult.DONE
    second.allocate(4096, stream=stream).close()
    assert _counters.live().get("pools", 0) == 0


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_resource_whose_pool_cannot_be_destroyed_stays_open(source, stream, driver_watch, pools):
    with driver_watch.fail("cuMemPoolDestroy"), pytest.raises(CUDAError, match="cuMemPoolDestroy"):
        source.resource.close()
    assert not source.resource.is_closed
    assert source.resource.is_handle_owned
    source.resource.allocate(4096, stream=stream).close()
    source.resource.close()
    assert pools() == (0, 0)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_pool_that_cannot_be_destroyed_with_its_last_buffer_is_told_of_and_tried_again(
    device, source, stream, driver_watch, pools
):
    resource, source.resource = source.resource, None
    buffer = resource.allocate(4096, stream=stream)
    resource.close()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with driver_watch.fail("cuMemPoolDestroy"):
            assert buffer.close() is CloseResult.DONE
        for _ in range(100):  # the report is a pending call of the main thread
            pass
    assert [entry.category for entry in seen] == [CUDAWarning]
    assert "pool could not be destroyed" in str(seen[0].message)
    assert pools() == (1, 1)
    other = source.make()  # tries again
    assert pools() == (1, 1)
    other.close()
    assert pools() == (0, 0)


LOOP = """
import sys
from support import check, driver
from buffer_kinds import POOLS
from cuda.core import Device
device = Device(0)
device.set_current()
stream = device.create_stream()
for round_ in range(200):
    source = POOLS[sys.argv[1]](device)
    buffers = [source.resource.allocate(1 << 20, stream=stream) for _ in range(4)]
    check(driver.cuMemsetD8Async(buffers[0].handle, 1, 1 << 20, int(stream.handle)))
    if round_ % 2:
        source.resource.close()
    del source
    while buffers:
        buffers.pop().close()
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", POOLS)
def test_pool_03_pools_made_used_and_dropped_in_a_loop_give_all_of_it_back(kind):
    """Two hundred pools of 32 MiB where there are 96."""
    import os

    environment = os.environ | {"CUDA_DRIVER_SIM_MEMORY": "96MiB", "CUDA_DRIVER_SIM_HOST_MEMORY": "96MiB"}
    assert child_output(LOOP, kind, environment=environment) == ""


AT_EXIT = """
import sys
from buffer_kinds import POOLS
from cuda.core import Buffer, Device
device = Device(0)
device.set_current()
stream = device.create_stream()
sources = [kind(device) for kind in POOLS.values()]
buffers = [source.resource.allocate(4096, stream=stream) for source in sources]
kept = [source.resource.allocate(4096, stream=device.default_stream) for source in sources]
parts = [buffer[:16] for buffer in kept]
if sys.argv[1] == "closed":
    for source in sources:
        source.resource.close()
elif sys.argv[1] == "dropped":
    del sources
elif sys.argv[1] == "lent":
    for buffer in kept:
        buffer.close()
"""


@pytest.mark.parametrize("how", ["open", "closed", "dropped", "lent"])
def test_pools_and_buffers_alive_at_exit_are_silent(how):
    assert child_output(AT_EXIT, how, options=("-X", "dev", "-W", "error")) == ""


FORK = """
import os, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # newer Pythons warn of threads, and drivers have some
from buffer_kinds import POOLS
from support import fill, holds
from cuda.core import Device
from cuda.core._memory import _counters
device = Device(0)
device.set_current()
stream = device.create_stream()
sources = [kind(device) for kind in POOLS.values()]
buffers = [source.resource.allocate(4096, stream=stream) for source in sources]
for buffer in buffers:
    fill(buffer.handle, 4096, seed=9)
child = os.fork()
if not child:
    results = [buffer.close().name for buffer in buffers]
    for source in sources:
        source.resource.close()
    ended = results == ["NOTHING"] * 3 and all(b.ownership.name == "RELEASED" for b in buffers)
    del buffers, sources, source, buffer
    os._exit(0 if ended else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print([holds(buffer.handle, 4096, seed=9) for buffer in buffers], [b.close().name for b in buffers])
for source in sources:
    source.resource.close()
print(_counters.live().get("pools", 0))
"""


def test_in_a_forked_child_pools_and_buffers_are_lost():
    assert child_output(FORK).splitlines() == ["[True, True, True] ['DONE', 'DONE', 'DONE']", "0"]
