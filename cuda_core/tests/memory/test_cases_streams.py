# SPDX-License-Identifier: Apache-2.0
"""Failures of stream order reported in the field, a test each, named by the id of its case.

str-02 and str-06 speak of pools. Here they are shown on the resources that wait for their streams; the pools' own
part comes with the pools.
"""

import gc

import pytest

from buffer_kinds import BUILT_IN, FREES, SOURCES, WAITING
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, Ownership
from cuda.core._memory._queue import drain
from held_work import Gate, Waiting
from python_resources import Plain, Refusing
from support import check, fill, free_memory, holds, read, still_allocated, warnings_seen

WORD, OTHER = 0xABCDEF01, 0x12345678


def has(address, size, word):
    return read(address, size) == word.to_bytes(4, "little") * (size // 4)


def enqueue(buffer, word, stream):
    check(driver.cuMemsetD32Async(buffer.handle, word, buffer.size // 4, int(stream.handle)))


@pytest.mark.parametrize("kind", BUILT_IN)
def test_str_01_a_dropped_buffer_is_freed_in_the_order_of_its_stream(device, kind):
    """Work in flight writes the dropped buffer; one of the same size is made and written on another stream."""
    source = SOURCES[kind](device)
    first, second = device.create_stream(), device.create_stream()
    for _ in range(5):
        buffer = source.allocate(stream=first)
        size = buffer.size
        with Gate(first) as gate:
            enqueue(buffer, WORD, first)
            del buffer
            gc.collect()
            other = source.allocate(stream=second)
            enqueue(other, OTHER, second)
            second.sync()
            assert not gate.is_open
        first.sync()  # a write to memory that was given back would have failed here
        assert has(other.handle, size, OTHER)
        other.close()
        assert drain(20)
    first.close()
    second.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("seed", range(10))
def test_str_01_in_any_order_of_two_streams(device, resource, driver_watch, seed):
    first, second = device.create_stream(), device.create_stream()
    with driver_watch.sim.interleave(seed), driver_watch.sim.hold():
        buffer = resource.allocate(1, stream=first)
        enqueue(buffer, WORD, first)
        del buffer
        other = resource.allocate(1, stream=second)
        enqueue(other, OTHER, second)
        device.sync()
        assert has(other.handle, other.size, OTHER)
        other.close()
    assert drain(20)
    first.close()
    second.close()


@pytest.mark.parametrize("kind", BUILT_IN)
def test_str_02_a_stream_is_never_missing_at_release(device, kind, quiet):
    """A detached pointer is wrapped again without a stream: refused where None is said, quiet where nothing is said."""
    source = SOURCES[kind](device)
    free = free_memory()
    allocation = source.allocate().detach()
    address, size = allocation.handle, allocation.size
    allocation.handed_over()
    buffer = Buffer.from_handle(address, size, source.resource)
    with pytest.raises(TypeError, match="stream"):
        buffer.set_deallocation_stream(None)
    with warnings_seen() as seen:
        assert buffer.close() is CloseResult.DONE
    assert seen == []
    assert not still_allocated(address)
    device.sync()  # a pool returns what it does not use with the next wait
    assert free_memory() == free


def test_str_02_an_author_never_sees_a_missing_stream(device):
    resource = Plain()
    buffers = [
        Buffer.from_handle(resource.take(512), 512, resource),
        resource.allocate(512),
        resource.allocate(512, stream=device.create_stream()),
    ]
    for buffer in buffers:
        buffer.close()
    assert all(stream is not None and not stream.is_closed for _, _, stream in resource.asked)
    resource.asked.clear()


def test_str_03_the_stream_of_the_free_can_be_replaced(device):
    resource = Plain()
    first, second = device.create_stream(), device.create_stream()
    with Gate(first) as gate, Gate(second):
        buffer = resource.allocate(512, stream=first)
        buffer.set_deallocation_stream(second)  # waits for neither
        assert not gate.is_open
    del buffer
    gc.collect()
    assert [int(stream.handle) for _, _, stream in resource.asked] == [int(second.handle)]
    resource.asked.clear()

    buffer = resource.allocate(512, stream=first)
    for wrong in (None, 7, 0):
        with pytest.raises(TypeError):
            buffer.set_deallocation_stream(wrong)
    del buffer
    gc.collect()
    assert [int(stream.handle) for _, _, stream in resource.asked] == [int(first.handle)]
    resource.asked.clear()
    first.close()
    second.close()


@pytest.mark.two_devices
@pytest.mark.parametrize("how", ["close", "drop", "no wait"])
@pytest.mark.parametrize("kind", ["virtual", "device", "pool"])
def test_str_04_the_device_is_part_of_the_recipe(devices, kind, how):
    devices[1].set_current()
    free = free_memory()
    devices[0].set_current()
    current = int(check(driver.cuCtxGetCurrent()))
    buffer = SOURCES[kind](devices[1]).allocate()
    address, size = buffer.handle, buffer.size
    assert int(check(driver.cuCtxGetCurrent())) == current
    assert buffer.device_id == 1
    devices[1].set_current()
    fill(address, size, seed=1)
    assert holds(address, size, seed=1)
    of_pointer = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert int(check(driver.cuPointerGetAttribute(of_pointer, address))) == 1
    devices[0].set_current()
    if how == "close":
        assert buffer.close() is CloseResult.DONE
    elif how == "no wait":
        assert buffer.close(wait=False) is CloseResult.DONE
    del buffer
    gc.collect()
    assert int(check(driver.cuCtxGetCurrent())) == current
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)
    devices[1].set_current()
    assert free_memory() == free
    devices[0].set_current()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize(("kind", "name"), [(kind, FREES[kind]) for kind in WAITING])
def test_str_05_a_close_that_fails_leaves_the_recipe(device, driver_watch, kind, name):
    first, second = device.create_stream(), device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=first)
    address = buffer.handle
    with driver_watch.fail(name), pytest.raises(CUDAError, match=name):
        buffer.close(second)
    assert buffer.ownership is Ownership.OWNED
    with Gate(first) as gate:
        closing = Waiting(buffer.close)
        assert closing.waits(), "the plain close is ordered by the recorded stream"
        assert still_allocated(address)
        gate.open()
        assert closing.result() is CloseResult.DONE
    first.close()
    second.close()


def test_str_05_an_author_sees_the_recorded_stream_again(device):
    resource = Refusing(refusals=1)
    first, second = device.create_stream(), device.create_stream()
    buffer = resource.allocate(512, stream=first)
    with pytest.raises(LookupError):
        buffer.close(second)
    assert buffer.close() is CloseResult.DONE
    assert int(resource.asked[1][2].handle) == int(first.handle)
    resource.asked.clear()
    first.close()
    second.close()


@pytest.mark.parametrize("how", ["no wait", "drop"])
@pytest.mark.parametrize("kind", WAITING)
def test_str_06_all_recorded_streams_order_the_free(device, kind, how):
    """Work in flight on two streams; one is let go: the memory is still used; the other: it is given back."""
    first, second = device.create_stream(), device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=first)
    buffer.record_stream(second)
    address = buffer.handle
    with Gate(first) as one, Gate(second) as two:
        enqueue(buffer, WORD, first)
        enqueue(buffer, OTHER, second)
        if how == "no wait":
            assert buffer.close(wait=False) is CloseResult.QUEUED
        del buffer
        gc.collect()
        one.open()
        first.sync()
        assert drain(0.1) is False
        assert still_allocated(address)
        two.open()
        assert drain(20)
        assert not still_allocated(address)
    for stream in (first, second):
        stream.sync()
        stream.close()
