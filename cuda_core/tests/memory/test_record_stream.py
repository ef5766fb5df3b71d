# SPDX-License-Identifier: Apache-2.0
"""``record_stream``: all streams that use a buffer order its release."""

import gc

import pytest

from buffer_kinds import SOURCES, WAITING, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    Ownership,
    OwnershipError,
)
from held_work import Gate, Waiting
from python_resources import Plain
from support import GRANULE, blocked, check, free_memory, race, still_allocated

SUCCESS = driver.CUresult.CUDA_SUCCESS
NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


@pytest.fixture
def streams(device):
    made = [device.create_stream() for _ in range(3)]
    yield made
    for stream in made:
        stream.close()


def handles(allocation):
    return [int(stream.handle) for stream in allocation.streams]


def recorded(buffer):
    """Return the streams that order the release of a buffer, and a buffer that owns it."""
    allocation = buffer.detach()
    found = handles(allocation)
    return found, Buffer.adopt(allocation)


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_close_waits_for_every_recorded_stream(device, streams, kind, stopped):
    buffer = SOURCES[kind](device).allocate(stream=streams[0])
    address = buffer.handle
    buffer.record_stream(streams[1])
    buffer.record_stream(streams[2])
    with Gate(streams[stopped]) as gate:
        closing = Waiting(buffer.close)
        assert closing.waits()
        assert still_allocated(address)
        gate.open()
        assert closing.result() is CloseResult.DONE
    assert not still_allocated(address)


def test_a_stream_is_recorded_once(device, resource, streams):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    for stream in (streams[0], streams[1], streams[1], streams[0], streams[2], streams[1]):
        buffer.record_stream(stream)
    found, buffer = recorded(buffer)
    assert found == [int(stream.handle) for stream in streams]
    buffer.close()


def test_default_streams_are_recorded_beside_others(device, resource, streams):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    for _ in range(2):
        buffer.record_stream(LEGACY_DEFAULT_STREAM)
        buffer.record_stream(PER_THREAD_DEFAULT_STREAM)
    found, buffer = recorded(buffer)
    assert found == [int(streams[0].handle), 1, 2]
    assert race(buffer.close) == [CloseResult.DONE], "also where no context is current"


def test_recording_many_streams(device, resource):
    made = [device.create_stream() for _ in range(40)]
    buffer = resource.allocate(GRANULE, stream=made[0])
    for stream in made * 2:
        buffer.record_stream(stream)
    found, buffer = recorded(buffer)
    assert found == [int(stream.handle) for stream in made]
    address = buffer.handle
    for stream in made:
        stream.close()
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


def test_replacing_the_stream_replaces_all(device, resource, streams):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(streams[1])
    buffer.set_deallocation_stream(streams[2])
    found, buffer = recorded(buffer)
    assert found == [int(streams[2].handle)]
    with Gate(streams[1]):
        assert buffer.close() is CloseResult.DONE


def test_recording_keeps_what_was_recorded_before(device, resource, streams):
    """A buffer that is asked for nothing has the default stream; recording another adds to it."""
    buffer = resource.allocate(GRANULE)
    buffer.record_stream(streams[0])
    found, buffer = recorded(buffer)
    assert found == [int(device.default_stream.handle), int(streams[0].handle)]
    buffer.close()


def test_a_close_with_a_stream_is_ordered_by_that_one(device, resource, streams):
    """It replaces the recipe for this attempt, as the stream given to ``close`` always does."""
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(streams[1])
    address = buffer.handle
    with Gate(streams[1]) as gate:
        assert buffer.close(streams[2]) is CloseResult.DONE
        assert not gate.is_open
    assert not still_allocated(address)


@pytest.mark.parametrize("how", ["grow", "moving grow", "detach", "move to another resource"])
def test_recorded_streams_go_with_the_allocation(device, resource, streams, how):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(streams[1])
    if how == "grow":
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    elif how == "moving grow":
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    elif how == "detach":
        buffer = Buffer.adopt(buffer.detach())
    else:
        buffer = buffer.move_to(SOURCES["virtual"](device).resource)
    buffer.record_stream(streams[2])
    found, buffer = recorded(buffer)
    assert found == [int(stream.handle) for stream in streams]
    buffer.close()


def test_a_moving_grow_waits_for_every_recorded_stream(device, resource, streams):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(streams[1])
    with blocked(buffer), Gate(streams[1]) as gate:
        context = check(driver.cuCtxGetCurrent())

        def grow():
            check(driver.cuCtxSetCurrent(context))
            return resource.modify_allocation(buffer, 2 * GRANULE)

        growing = Waiting(grow)
        assert growing.waits()
        gate.open()
        growing.result().close()


@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_streams_may_be_closed_before_the_buffer(device, kind):
    made = [device.create_stream() for _ in range(3)]
    buffer = SOURCES[kind](device).allocate(stream=made[0])
    address = buffer.handle
    buffer.record_stream(made[1])
    buffer.record_stream(made[2])
    for stream in made:
        stream.close()
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_an_author_sees_the_recorded_stream_ordered_behind_the_others(device, streams, how):
    """The stream that ``deallocate`` gets is the recorded one, and waits for the others."""
    seen = []

    class Looking(Plain):
        def deallocate(self, ptr, size, *, stream=None):
            seen.append((int(stream.handle), driver.cuStreamQuery(int(stream.handle))[0]))
            gate.open()
            stream.sync()
            seen.append(driver.cuStreamQuery(int(streams[1].handle))[0])
            super().deallocate(ptr, size, stream=stream)

    resource = Looking()
    buffer = resource.allocate(512, stream=streams[0])
    buffer.record_stream(streams[1])
    with Gate(streams[1]) as gate:
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        gc.collect()
    assert seen == [(int(streams[0].handle), NOT_READY), SUCCESS]
    resource.asked.clear()


def test_what_is_no_stream_is_refused(device, resource, streams):
    closed = device.create_stream()
    closed.close()
    buffer = resource.allocate(GRANULE, stream=streams[0])
    for wrong in (None, 7, "stream", object()):
        with pytest.raises(TypeError):
            buffer.record_stream(wrong)
    with pytest.raises(RuntimeError, match="Stream has been closed"):
        buffer.record_stream(closed)
    found, buffer = recorded(buffer)
    assert found == [int(streams[0].handle)]
    buffer.close()


@pytest.mark.parametrize("how", ["closed", "grown", "detached"])
def test_a_buffer_that_has_ended_records_nothing(resource, streams, how):
    buffer = resource.allocate(GRANULE)
    after = None
    if how == "closed":
        buffer.close()
    elif how == "grown":
        after = resource.modify_allocation(buffer, 2 * GRANULE)
    else:
        after = Buffer.adopt(buffer.detach())
    with pytest.raises(OwnershipError, match="Buffer has been closed"):
        buffer.record_stream(streams[0])
    if after is not None:
        found, after = recorded(after)
        assert int(streams[0].handle) not in found
        after.close()


@pytest.mark.two_devices
def test_a_stream_of_another_device(devices, resource, streams):
    devices[1].set_current()
    other = devices[1].create_stream()
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(other)
    address = buffer.handle
    with Gate(other) as gate:
        devices[0].set_current()
        closing = Waiting(buffer.close)
        assert closing.waits()
        gate.open()
        assert closing.result() is CloseResult.DONE
    assert not still_allocated(address)
    other.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_recorded_stream_that_is_capturing_refuses_the_close(resource, streams, which):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    buffer.record_stream(streams[1])
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(int(streams[which].handle), mode))
    with pytest.raises(CUDAError, match="captur"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    graph = check(driver.cuStreamEndCapture(int(streams[which].handle)))
    check(driver.cuGraphDestroy(graph))
    assert buffer.close() is CloseResult.DONE


def test_recording_while_others_close(device, resource, streams):
    free = free_memory()
    for _ in range(100):
        buffer = resource.allocate(GRANULE, stream=streams[0])

        def record(buffer=buffer):
            try:
                for stream in streams * 3:
                    buffer.record_stream(stream)
            except OwnershipError:
                return "refused"
            return "recorded"

        closed, *others = race(buffer.close, record, record)
        assert closed is CloseResult.DONE
        assert set(others) <= {"refused", "recorded"}
    assert free_memory() == free


def test_recording_from_many_threads_loses_no_stream(device, resource):
    made = [device.create_stream() for _ in range(16)]
    for _ in range(30):
        buffer = resource.allocate(GRANULE, stream=made[0])
        outcomes = race(*[lambda s=stream, b=buffer: b.record_stream(s) for stream in made])
        assert outcomes == [None] * len(made)
        found, buffer = recorded(buffer)
        assert sorted(found) == sorted(int(stream.handle) for stream in made)
        buffer.close()
    for stream in made:
        stream.close()
