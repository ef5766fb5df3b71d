# SPDX-License-Identifier: Apache-2.0
"""A launch that is answered with UNKNOWN: a driver does so with some launches that run all the same."""

import time

import pytest

from cuda.core import CUDAError, OwnershipError, VirtualMemoryResource
from graph_tools import SIZE, built, graph_memory_in_use, scratch, soon
from held_work import Gate
from memory_kinds import pattern
from python_resources import Plain
from support import GRANULE, attempt, in_context, race, read, still_allocated, write

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.watched, pytest.mark.provokes_refusals]

UNKNOWN = "CUDA_ERROR_UNKNOWN"


@pytest.fixture(params=[True, False], ids=["it runs", "it does not run"])
def unknown(request, driver_watch):
    """Let the next launch be answered so."""
    return lambda: driver_watch.fail("cuGraphLaunch", result=UNKNOWN, effect=request.param)


@pytest.fixture
def runs(request):
    return request.node.callspec.params["unknown"]


@pytest.mark.parametrize("close_before", ["the launch", "the next launch", "the end"])
def test_a_launch_that_is_answered_unknown_and_runs_loses_nothing(
    device, stream, unknown, runs, close_before
):
    resource = Plain()
    source, target = resource.allocate(SIZE), resource.allocate(SIZE)
    write(source.handle, pattern(SIZE))
    write(target.handle, bytes(SIZE))
    with built(device) as builder:
        between = scratch(builder)
        between.copy_from(source, stream=builder)
        target.copy_from(between, stream=builder)
    graph = builder.complete()
    builder.close()
    address = int(between.handle)
    if close_before == "the launch":
        between.close()
    with unknown() as failure:
        with pytest.raises(CUDAError, match=rf"{UNKNOWN}.*cuGraphLaunch"):
            graph.launch(stream)
    assert failure.fired == 1
    stream.sync()
    assert read(target.handle, SIZE) == (pattern(SIZE) if runs else bytes(SIZE))
    assert still_allocated(address) is runs
    if close_before == "the next launch":
        between.close()
    if close_before != "the end":
        graph.launch(stream)
    else:
        between.close()
    stream.sync()
    graph.close()
    assert not still_allocated(address)
    assert soon(lambda: graph_memory_in_use() == 0)
    for buffer in (source, target):
        assert soon(lambda buffer=buffer: buffer.loans == 0)
        buffer.close()


def test_pausing_waits_for_a_launch_that_was_answered_unknown(device, stream, unknown, runs):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(GRANULE, stream=stream)
    write(buffer.handle, bytes(GRANULE))
    with built(device) as builder:
        buffer.fill(7, stream=builder)
    graph = builder.complete()
    builder.close()
    other = device.create_stream()
    done = []
    with Gate(other) as gate:
        with unknown():
            with pytest.raises(CUDAError, match=UNKNOWN):
                graph.launch(other)

        def pause():
            resource.pause(buffer, keep_contents=True)
            done.append(True)

        def open_later():
            time.sleep(0.1)
            attempt(lambda: graph.launch(stream), OwnershipError)
            seen = list(done)
            gate.open()
            return seen

        _, seen = race(in_context(pause), in_context(open_later))
    assert seen == []
    resource.resume(buffer)
    assert read(buffer.handle, GRANULE) == (b"\x07" if runs else b"\0") * GRANULE
    graph.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()
    other.close()


@pytest.mark.parametrize("result", [UNKNOWN, "CUDA_ERROR_OUT_OF_MEMORY"])
def test_what_a_refused_launch_has_allocated_is_asked_for_until_it_is_known(
    device, stream, driver_watch, result
):
    with built(device) as builder:
        between = scratch(builder)
    graph = builder.complete()
    builder.close()
    between.close()
    with driver_watch.fail("cuGraphLaunch", result=result, effect=True):
        with pytest.raises(CUDAError, match=result):
            graph.launch(stream)
    with driver_watch.fail("cuPointerGetAttributes") as failure:
        with pytest.raises(CUDAError, match="cuPointerGetAttributes"):
            graph.launch(stream)
    assert failure.fired == 1
    for _ in range(2):
        graph.launch(stream)
    stream.sync()
    graph.close()
    assert soon(lambda: graph_memory_in_use() == 0)
