# SPDX-License-Identifier: Apache-2.0
"""What the resources on memory pools share: allocating in the order of a stream, and returning without a wait."""

import gc

import pytest

from buffer_kinds import ENDINGS, POOLS, end, used
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    DeviceMemoryResource,
    ManagedBuffer,
    Ownership,
    OwnershipError,
    Stream,
    VirtualMemoryResource,
)
from cuda.core._memory import _counters
from held_work import Gate, Waiting
from odd_input import NOT_SIZES, NOT_STREAMS
from support import (
    check,
    fill,
    race,
    read,
    still_allocated,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=POOLS.values(), ids=POOLS)
def source(request, device):
    return request.param(device)


# --- allocating --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 255, 256, 257, 4096, 1 << 20])
def test_an_allocation_has_the_size_that_was_asked_for(source, stream, size):
    buffer = source.resource.allocate(size, stream=stream)
    assert type(buffer) is (ManagedBuffer if source.name == "managed pool" else Buffer)
    assert (buffer.size, buffer.ownership, buffer.owner) == (size, Ownership.OWNED, None)
    assert buffer.memory_resource is source.resource
    assert buffer.device_id == source.resource.device_id
    assert buffer.is_host_accessible == source.at_host
    assert buffer.is_device_accessible
    assert buffer.is_managed == (source.name == "managed pool")
    assert not buffer.is_mapped
    assert used(source.resource) == size
    assert buffer.close() is CloseResult.DONE
    assert used(source.resource) == 0


def test_the_memory_is_there_for_work_in_the_stream(source, stream):
    buffer = source.resource.allocate(4096, stream=stream)
    check(driver.cuMemsetD32Async(buffer.handle, 0x01020304, 1024, int(stream.handle)))
    stream.sync()
    assert read(buffer.handle, 8) == bytes((4, 3, 2, 1)) * 2
    if source.at_host:
        with memoryview(buffer) as view:
            assert view[:4].tobytes() == bytes((4, 3, 2, 1))
            view[:2] = b"ab"
        assert read(buffer.handle, 2) == b"ab"
    buffer.close()


def test_nothing_is_allocated_for_no_bytes(source, stream, driver_watch):
    with driver_watch.no_call():
        buffer = source.resource.allocate(0, stream=stream)
        assert (buffer.handle, buffer.size, buffer.ownership) == (0, 0, Ownership.OWNED)
        assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize(
    ("size", "error"),
    [
        NOT_SIZES[name] for name in NOT_SIZES if name not in ("beyond when rounded", "largest")
    ],  # the driver's to refuse
    ids=str,
)
def test_what_is_no_size_is_refused_before_any_call(source, stream, driver_watch, size, error):
    with driver_watch.no_call(), pytest.raises(error):
        source.resource.allocate(size, stream=stream)


@pytest.mark.parametrize("wrong", [None, *NOT_STREAMS.values()], ids=["None", *NOT_STREAMS])
@pytest.mark.parametrize("size", [0, 4096])
def test_what_is_no_stream_is_refused_before_any_call(source, driver_watch, wrong, size):
    with driver_watch.no_call():
        with pytest.raises(
            TypeError, match="stream is required" if wrong is None else "Stream or GraphBuilder expected"
        ):
            source.resource.allocate(size, stream=wrong)
        with pytest.raises(TypeError, match="stream"):
            source.resource.allocate(size)
        with pytest.raises(
            TypeError, match="stream is required" if wrong is None else "Stream or GraphBuilder expected"
        ):
            source.resource.deallocate(4096, size, stream=wrong)


def test_a_closed_stream_is_refused_before_any_call(source, device, driver_watch):
    stream = device.create_stream()
    stream.close()
    with driver_watch.no_call(), pytest.raises(RuntimeError, match="Stream has been closed"):
        source.resource.allocate(4096, stream=stream)


@pytest.mark.parametrize(
    "chosen", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "per thread"]
)
def test_default_streams(source, chosen):
    buffer = source.resource.allocate(4096, stream=chosen)
    fill(buffer.handle, 4096, seed=1)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.provokes_refusals
def test_more_than_there_is_is_refused_and_takes_nothing(source, stream):
    with pytest.raises(CUDAError, match=r"OUT_OF_MEMORY.*cuMemAllocFromPoolAsync"):
        source.resource.allocate(1 << 60, stream=stream)
    assert used(source.resource) == 0
    source.resource.allocate(4096, stream=stream).close()


@pytest.mark.sim_only
@pytest.mark.provokes_refusals
def test_out_of_memory_waits_for_the_queue_and_tries_again(device, stream):
    """Five of eight GiB wait in the queue; six more are asked for."""
    large = VirtualMemoryResource(device).allocate(5 << 30, stream=stream)
    resource = DeviceMemoryResource(device, {})
    mine = device.create_stream()
    with Gate(stream) as gate:
        assert large.close(wait=False) is CloseResult.QUEUED
        allocating = Waiting(lambda: resource.allocate(6 << 30, stream=mine))
        assert allocating.waits()
        gate.open()
        buffer = allocating.result()
    assert isinstance(buffer, Buffer), repr(buffer)
    buffer.close()
    mine.close()


def test_an_address_comes_back_in_the_order_of_its_stream(source, stream):
    """The driver hands it out again at once on the same stream, and to another not before the work has run."""
    first = source.resource.allocate(4096, stream=stream)
    address = first.handle
    assert first.close() is CloseResult.DONE
    second = source.resource.allocate(4096, stream=stream)
    assert second.handle == address
    assert (first.handle, first.is_closed) == (0, True)
    second.close()


# --- returning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
def test_it_is_given_back_however_the_buffer_ends(source, stream, how):
    box = [source.resource.allocate(4096, stream=stream)]
    address = box[0].handle
    with warnings_seen() as seen:
        end(box, how)
    assert seen == []
    assert used(source.resource) == 0
    assert not still_allocated(address)


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["close", "no wait", "with", "drop", "last loan"])
def test_a_release_waits_for_nothing_and_comes_behind_the_work(source, stream, driver_watch, how):
    buffer = source.resource.allocate(4096, stream=stream)
    with Gate(stream) as gate:
        check(driver.cuMemsetD32Async(buffer.handle, 7, 1024, int(stream.handle)))
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        elif how == "no wait":
            assert buffer.close(wait=False) is CloseResult.DONE
        elif how == "with":
            with buffer:
                pass
        elif how == "last loan":
            part = buffer[:16]
            assert buffer.close() is CloseResult.LENT
            part.close()
        del buffer
        gc.collect()
        assert not gate.is_open
        assert driver_watch.live()["pool_allocation"] == 1  # the driver frees it behind the work
        assert _counters.live().get("buffers", 0) == 0
        gate.open()
        stream.sync()
        assert "pool_allocation" not in driver_watch.live()


@pytest.mark.sim_only
@pytest.mark.parametrize("which", ["default of another thread", "legacy", "recorded"])
def test_the_free_comes_behind_the_stream_that_was_recorded(source, device, stream, driver_watch, which):
    """Where it has to be another stream, or one that the calling thread would read differently."""
    other = device.create_stream()
    chosen = {"legacy": LEGACY_DEFAULT_STREAM, "recorded": stream}.get(which, PER_THREAD_DEFAULT_STREAM)
    buffer = source.resource.allocate(4096, stream=other if which == "recorded" else chosen)
    if which == "recorded":
        buffer.set_deallocation_stream(stream)
    with Gate(chosen):
        if which == "default of another thread":
            (closed,) = race(buffer.close)
            assert closed is CloseResult.DONE
        else:
            assert buffer.close() is CloseResult.DONE
        other.sync()
        assert driver_watch.live()["pool_allocation"] == 1
    device.sync()
    assert "pool_allocation" not in driver_watch.live()
    other.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_str_06_all_recorded_streams_order_the_free_and_none_waits_for_another(
    source, device, driver_watch, stopped, how
):
    streams = [device.create_stream() for _ in range(3)]
    buffer = source.resource.allocate(4096, stream=streams[0])
    for other in streams[1:]:
        buffer.record_stream(other)
    before = driver_watch.live()
    with Gate(streams[stopped]):
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        gc.collect()
        for number, other in enumerate(streams):
            if number != stopped:
                other.sync()  # would hang if it had been made to wait for the stopped one
        assert driver_watch.live()["pool_allocation"] == 1
    device.sync()
    assert "pool_allocation" not in driver_watch.live()
    source.resource.close()  # which keeps the stream of the free until then
    assert driver_watch.live().get("event", 0) == before.get("event", 0)
    assert driver_watch.live()["stream"] == before["stream"]
    for other in streams:
        other.close()


def test_a_set_with_default_streams(source, stream):
    buffer = source.resource.allocate(4096, stream=stream)
    buffer.record_stream(LEGACY_DEFAULT_STREAM)
    buffer.record_stream(PER_THREAD_DEFAULT_STREAM)
    (closed,) = race(buffer.close)  # on a thread without a context
    assert closed is CloseResult.DONE
    assert used(source.resource) == 0


def test_a_closed_stream_still_orders(source, device):
    stream = device.create_stream()
    buffer = source.resource.allocate(4096, stream=stream)
    stream.close()
    assert buffer.close() is CloseResult.DONE
    assert used(source.resource) == 0


@pytest.mark.sim_only
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("context", ["current", "none"])
def test_a_foreign_stream_that_is_gone_orders_nothing(source, stream, others, context):
    """A real driver may crash where a destroyed stream is used."""
    foreign = check(driver.cuStreamCreate(1))
    buffer = source.resource.allocate(4096, stream=Stream.from_handle(int(foreign)))
    if others:
        buffer.record_stream(stream)
    address = buffer.handle
    check(driver.cuStreamDestroy(foreign))
    closed = buffer.close() if context == "current" else race(buffer.close)[0]
    assert closed is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_thread_without_a_context_allocates_and_returns(source, stream, how):
    """Also with a default stream that was recorded while a context was current."""

    def run():
        assert int(check(driver.cuCtxGetCurrent())) == 0
        box = [source.resource.allocate(4096, stream=stream)]
        end(box, how)
        end([kept.pop()], how)
        return int(check(driver.cuCtxGetCurrent()))

    kept = [source.allocate()]
    assert race(run) == [0]
    assert used(source.resource) == 0


def test_a_default_stream_means_none_where_no_context_is_current(source):
    (error,) = race(lambda: source.resource.allocate(4096, stream=LEGACY_DEFAULT_STREAM))
    assert isinstance(error, RuntimeError)
    assert "no CUDA context is current" in str(error)


@pytest.mark.two_devices
@pytest.mark.parametrize("recorded", ["own", "default"])
def test_str_04_the_context_that_is_current_at_the_close_does_not_matter(source, devices, stream, recorded):
    chosen = stream if recorded == "own" else LEGACY_DEFAULT_STREAM
    buffer = source.resource.allocate(4096, stream=chosen)
    devices[1].set_current()
    current = int(check(driver.cuCtxGetCurrent()))
    assert buffer.close() is CloseResult.DONE
    assert int(check(driver.cuCtxGetCurrent())) == current
    devices[0].set_current()
    assert used(source.resource) == 0


@pytest.mark.two_devices
def test_a_stream_of_another_device_can_allocate(devices):
    devices[1].set_current()
    stream = devices[1].create_stream()
    devices[0].set_current()
    resource = DeviceMemoryResource(0, {})
    buffer = resource.allocate(4096, stream=stream)
    assert buffer.device_id == 0
    assert buffer.close() is CloseResult.DONE
    stream.close()


@pytest.mark.sim_only
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("recorded", ["own", "default", "several"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_pool_memory_outlives_the_context_of_its_streams(source, device, stream, recorded, how):
    """Nothing of that context runs any more, and the memory is not its: it is given back and not lost."""
    context = check(driver.cuCtxCreate(None, 0, 0))
    foreign = Stream.from_handle(int(check(driver.cuStreamCreate(1))))
    buffer = source.resource.allocate(
        4096, stream=LEGACY_DEFAULT_STREAM if recorded == "default" else foreign
    )
    if recorded == "several":
        buffer.record_stream(LEGACY_DEFAULT_STREAM)
    device.set_current()
    if recorded == "several":
        buffer.record_stream(stream)
    address = buffer.handle
    check(driver.cuCtxDestroy(context))
    check(driver.cuCtxPopCurrent())  # the place of the destroyed one, which the device's has taken
    with warnings_seen() as seen:
        box = [buffer]
        del buffer
        end(box, how)
    assert seen == []
    device.sync()
    assert not still_allocated(address)


def test_deallocate_by_hand(source, stream):
    buffer = source.resource.allocate(4096, stream=stream)
    with pytest.raises(OwnershipError, match="open buffer"):
        source.resource.deallocate(buffer.handle, 4096, stream=stream)
    allocation = buffer.detach()
    assert source.resource.deallocate(allocation.handle, 4096, stream=stream) is None
    assert used(source.resource) == 0
    assert allocation.ownership is Ownership.TRANSFERRED
