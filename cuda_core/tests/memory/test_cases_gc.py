# SPDX-License-Identifier: Apache-2.0
"""Failures of garbage collection reported in the field, a test each, named by the id of its case."""

import gc
import itertools
import os
import threading
import weakref

import pytest

from buffer_kinds import SOURCES, WAITING, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from held_work import Gate
from support import (
    GRANULE,
    blocked,
    check,
    child_output,
    fill,
    free_memory,
    holds,
    race,
    still_allocated,
)


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_gc_01_a_buffer_outlives_everything_that_made_it(device, kind, end, quiet):
    def function():
        source = SOURCES[kind](device)
        stream = device.create_stream()
        return source.allocate(stream=stream), weakref.ref(source.resource), weakref.ref(stream)

    free = free_memory()
    buffer, resource, _ = function()
    gc.collect()
    address, size = buffer.handle, buffer.size
    fill(address, size, seed=3)
    assert holds(address, size, seed=3)
    assert buffer.memory_resource is resource()
    if end == "close":
        assert buffer.close() is CloseResult.DONE
    del buffer
    gc.collect()
    assert resource() is None
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)
    assert free_memory() >= free


def test_gc_01_a_grown_a_detached_and_a_lent_buffer_outlive_it_too(device, resource, quiet):
    free = free_memory()
    for kind, what in itertools.product(WITH_RESOURCE, ("detached", "lent", "closed while lent")):
        source = SOURCES[kind](device)
        buffer = source.allocate(stream=device.create_stream())
        address, size = buffer.handle, buffer.size
        kept = buffer.detach() if what == "detached" else buffer[0:size]
        if what == "closed while lent":
            assert buffer.close() is CloseResult.LENT
        del source, buffer
        gc.collect()
        fill(address, size, seed=1)
        assert holds(address, size, seed=1)
        if what == "detached":
            kept = Buffer.adopt(kept)
        assert kept.close() is CloseResult.DONE
        del kept
        gc.collect()
        assert drain(20)  # a collection never waits: the memory may go back by the reaper
        assert not still_allocated(address), (kind, what)
    assert free_memory() >= free


def test_gc_02_a_release_may_happen_at_any_line(device, resource):
    """The collector runs at every allocation of an object and always finds buffers of every kind."""
    sources = [SOURCES[kind](device) for kind in SOURCES]
    free = free_memory()
    stop = threading.Event()

    def work():
        device.set_current()
        for round_ in range(25):
            for source in sources:
                cycle = [source.allocate(), Buffer.from_handle(4096, 16, owner=object())]
                cycle.append(cycle[0][0:16])
                cycle.append(cycle)
                del cycle
                buffer = source.allocate()
                part, view = buffer[0:16], buffer.array_view()
                buffer = Buffer.adopt(source.allocate().detach())
                if source.name == "virtual":
                    if round_ % 5 == 0:
                        with blocked(buffer):
                            buffer = source.resource.modify_allocation(buffer, 2 * GRANULE)
                    buffer = source.resource.modify_allocation(buffer, 3 * GRANULE)
                buffer.close(wait=round_ % 2 == 0)
                view.close()
                part.close()

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        work()
        assert race(work, work) == [None, None]
    finally:
        stop.set()
        gc.set_threshold(*thresholds)
    gc.collect()
    assert drain(20)
    device.sync()  # a pool returns what it does not use with the next wait
    assert free_memory() == free


@pytest.mark.parametrize("how", ["drop", "cycle", "last loan"])
@pytest.mark.parametrize("kind", WAITING)
def test_gc_03_a_collection_waits_for_no_stream(device, kind, how):
    source = SOURCES[kind](device)
    free = free_memory()
    stream = device.create_stream()
    buffer = source.allocate(stream=stream)
    address, size = buffer.handle, buffer.size
    with Gate(stream) as gate:
        check(driver.cuMemsetD8Async(address, 1, size, int(stream.handle)))
        if how == "cycle":
            cycle = [buffer]
            cycle.append(cycle)
            del cycle
        elif how == "last loan":
            part = buffer[0:16]
            assert buffer.close() is CloseResult.LENT
            del part
        del buffer
        gc.collect()
        assert not gate.is_open
        assert _counters.live().get("queued") == 1
        assert still_allocated(address)
        gate.open()
        assert drain(20)
    assert not still_allocated(address)
    assert free_memory() == free
    stream.close()


PINNED = """
import gc, sys
from support import check, driver
from cuda.core import Device, LegacyPinnedMemoryResource
device = Device(0)
device.set_current()
stream = device.create_stream()
resource = LegacyPinnedMemoryResource()
size, how = 4 << 20, sys.argv[1]
for round_ in range(60):
    buffer = resource.allocate(size, stream=stream)
    check(driver.cuMemsetD8Async(buffer.handle, round_, size, int(stream.handle)))
    if how == "close":
        buffer.close()
    elif how == "no wait":
        buffer.close(wait=False)
    elif how == "with":
        with buffer:
            pass
    elif how == "cycle":
        cycle = [buffer]
        cycle.append(cycle)
        del cycle
        gc.collect() if round_ % 2 else None
    elif how == "loan":
        view = memoryview(buffer)
        buffer.close()
        view.release()
    del buffer
"""


@pytest.mark.parametrize("how", ["close", "no wait", "with", "drop", "cycle", "loan"])
def test_gc_04_pinned_memory_comes_back(how):
    """Sixty times 4 MiB where the simulated driver has 12 MiB of pinned memory: never out of memory."""
    environment = os.environ | {"CUDA_DRIVER_SIM_HOST_MEMORY": "12MiB"}
    assert child_output(PINNED, how, environment=environment) == ""
