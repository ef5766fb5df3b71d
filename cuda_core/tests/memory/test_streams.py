# SPDX-License-Identifier: Apache-2.0
"""The stream that orders a release: recorded, replaced, closed before its buffers, and waited for."""

import contextlib
import gc

import pytest

from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    CloseResult,
    CUDAError,
    Ownership,
    Stream,
)
from cuda.core._memory._queue import drain
from held_work import Gate
from python_resources import Plain
from support import GRANULE, address_free, blocked, check, fill, holds, place, race, read

WORD = 0xABCDEF01


@pytest.fixture
def held(driver_watch):
    """Work on streams does not run until something waits for it. On a GPU it runs when the GPU likes."""
    return driver_watch.sim.hold if driver_watch.sim else contextlib.nullcontext


def enqueue_fill(buffer, stream, times=32):
    """Enqueue writes of the whole buffer; the last one leaves WORD everywhere."""
    for value in (*range(times), WORD):
        check(driver.cuMemsetD32Async(buffer.handle, value, buffer.size // 4, int(stream.handle)))


def has_word(address, size):
    return read(address, size) == WORD.to_bytes(4, "little") * (size // 4)


@pytest.mark.parametrize("how", ["allocate", "set", "close", "foreign"])
def test_a_close_waits_for_the_recorded_stream(resource, stream, held, how):
    with held():
        recorded = {"allocate": stream, "foreign": Stream.from_handle(int(stream.handle))}.get(how)
        buffer = resource.allocate(8 * GRANULE, stream=recorded)
        if how == "set":
            buffer.set_deallocation_stream(stream)
        address = buffer.handle
        enqueue_fill(buffer, stream)
        assert buffer.close(stream if how == "close" else None) is CloseResult.DONE
        # Work that ran after the unmap would have made the stream fail.
        assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.sync()
    assert address_free(address, 8 * GRANULE)


@pytest.mark.parametrize("where", ["same thread", "another thread"])
def test_a_buffer_allocated_without_a_stream_is_ordered_by_the_default_stream(device, resource, held, where):
    with held():
        buffer = resource.allocate(8 * GRANULE)
        address = buffer.handle
        enqueue_fill(buffer, device.default_stream)
        if where == "same thread":
            assert buffer.close() is CloseResult.DONE
        else:
            assert race(buffer.close) == [CloseResult.DONE]
    check(driver.cuCtxSynchronize())
    assert address_free(address, 8 * GRANULE)


@pytest.mark.parametrize(
    "token", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "per thread"]
)
def test_default_streams_are_recorded_and_waited_for(resource, held, token):
    with held():
        buffer = resource.allocate(4 * GRANULE, stream=token)
        enqueue_fill(buffer, token)
        assert buffer.close() is CloseResult.DONE
    check(driver.cuCtxSynchronize())


@pytest.mark.parametrize(
    "token", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "per thread"]
)
def test_default_streams_still_order_a_close_on_another_thread(resource, held, token):
    """The other thread has no current context, and its per-thread stream is not the one that was recorded."""
    with held():
        buffer = resource.allocate(4 * GRANULE, stream=token)
        enqueue_fill(buffer, token)
        assert race(buffer.close) == [CloseResult.DONE]
    check(driver.cuCtxSynchronize())


def test_a_moving_grow_keeps_what_the_recorded_stream_still_writes(resource, stream, held):
    with held():
        buffer = resource.allocate(4 * GRANULE, stream=stream)
        address, size = buffer.handle, buffer.size
        enqueue_fill(buffer, stream)
        with blocked(buffer):
            grown = resource.modify_allocation(buffer, 5 * GRANULE)
            assert grown.handle != address
            assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
            assert address_free(address, size)
        assert has_word(grown.handle, size)
        enqueue_fill(grown, stream)
        assert grown.close() is CloseResult.DONE
        assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.sync()


@pytest.mark.sim_only
def test_growing_in_place_waits_for_nothing(device, stream, held, driver_watch):
    buffer, resource = place(device, GRANULE, stretch=6, reserve_size=2 * GRANULE)
    buffer.set_deallocation_stream(stream)
    with held():
        enqueue_fill(buffer, stream)
        for granules in (2, 4):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
            assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_ERROR_NOT_READY
    stream.sync()
    assert has_word(buffer.handle, GRANULE)
    buffer.close()


def test_the_result_of_a_grow_inherits_the_stream(resource, stream, held):
    buffer = resource.allocate(GRANULE, stream=stream)
    for granules in (2, 3):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
    with held():
        enqueue_fill(buffer, stream)
        # No context is current on this thread: only the recorded stream can order the close.
        assert race(buffer.close) == [CloseResult.DONE]
        assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.sync()


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_closed_stream_still_orders_the_release(device, resource, held, how):
    stream = device.create_stream()
    buffer = resource.allocate(4 * GRANULE, stream=stream)
    address = buffer.handle
    with held():
        enqueue_fill(buffer, stream)
        stream.close()
        assert stream.is_closed
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        gc.collect()
    assert drain(20)  # the collection left it to the queue
    assert address_free(address, 4 * GRANULE)


def test_a_closed_stream_cannot_be_recorded(device, resource):
    stream = device.create_stream()
    stream.close()
    buffer = resource.allocate(GRANULE)
    for use in (
        lambda: resource.allocate(GRANULE, stream=stream),
        lambda: buffer.set_deallocation_stream(stream),
        lambda: buffer.close(stream),
    ):
        with pytest.raises(RuntimeError):
            use()
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


def test_a_rejected_stream_leaves_the_old_one(device):
    plain = Plain()
    first = device.create_stream()
    buffer = plain.allocate(512, stream=first)
    for wrong in (None, 7, "stream", object()):
        with pytest.raises(TypeError):
            buffer.set_deallocation_stream(wrong)
    del buffer
    gc.collect()
    assert int(plain.asked[0][2].handle) == int(first.handle)
    plain.asked.clear()
    first.close()


def test_a_replaced_stream_is_what_a_collection_uses(device):
    plain = Plain()
    first, second = device.create_stream(), device.create_stream()
    buffer = plain.allocate(512, stream=first)
    buffer.set_deallocation_stream(second)
    del buffer
    gc.collect()
    assert int(plain.asked[0][2].handle) == int(second.handle)
    plain.asked.clear()
    first.close()
    second.close()


def test_a_close_that_fails_leaves_the_recorded_stream(device):
    from python_resources import Refusing

    resource = Refusing(refusals=1)
    first, second = device.create_stream(), device.create_stream()
    buffer = resource.allocate(512, stream=first)
    with pytest.raises(LookupError):
        buffer.close(second)
    buffer.close()
    assert int(resource.asked[1][2].handle) == int(first.handle)
    resource.asked.clear()
    first.close()
    second.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_wait_that_fails_leaves_the_buffer_whole(resource, stream, driver_watch):
    buffer = resource.allocate(GRANULE, stream=stream)
    fill(buffer.handle, GRANULE, seed=5)
    for call in ("cuStreamIsCapturing", "cuStreamQuery"):
        with driver_watch.fail(call), pytest.raises(CUDAError, match=call):
            buffer.close()
    with Gate(stream):
        for call in ("cuEventRecord", "cuEventSynchronize"):
            with driver_watch.fail(call), pytest.raises(CUDAError, match=call):
                buffer.close()
            assert buffer.ownership is Ownership.OWNED
    assert holds(buffer.handle, GRANULE, seed=5)
    assert buffer.close() is CloseResult.DONE


# --- capture -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def capture(stream, mode="RELAXED"):
    """Capture the stream; at the end the capture must have survived."""
    mode = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
    check(driver.cuStreamBeginCapture(int(stream.handle), mode))
    yield
    graph = check(driver.cuStreamEndCapture(int(stream.handle)))
    assert int(graph) != 0
    check(driver.cuGraphDestroy(graph))


@pytest.mark.parametrize("how", ["recorded", "given"])
def test_a_release_on_a_capturing_stream_is_refused_and_the_capture_goes_on(resource, stream, how):
    buffer = resource.allocate(GRANULE, stream=stream if how == "recorded" else None)
    fill(buffer.handle, GRANULE, seed=1)
    address = buffer.handle
    with capture(stream):
        with pytest.raises(CUDAError, match="captur"):
            buffer.close(stream if how == "given" else None)
        assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
    assert holds(buffer.handle, GRANULE, seed=1)
    assert buffer.close() is CloseResult.DONE


def test_a_moving_grow_is_refused_while_the_recorded_stream_is_being_captured(resource, stream):
    """Its old addresses could not be retired; growing in place needs no waiting and goes on."""
    buffer = resource.allocate(GRANULE, stream=stream)
    fill(buffer.handle, GRANULE, seed=1)
    address = buffer.handle
    with blocked(buffer):
        with capture(stream):
            with pytest.raises(CUDAError, match="captur"):
                resource.modify_allocation(buffer, 2 * GRANULE)
            assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, GRANULE)
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert holds(grown.handle, GRANULE, seed=1)
    grown.close()


def test_growing_in_place_goes_on_during_a_capture(device, stream):
    buffer, resource = place(device, GRANULE, stretch=4, reserve_size=2 * GRANULE)
    buffer.set_deallocation_stream(stream)
    with capture(stream):
        for granules in (2, 3):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("mode", ["RELAXED", "THREAD_LOCAL", "GLOBAL"])
@pytest.mark.parametrize("how", ["close", "drop", "grow"])
def test_a_release_elsewhere_leaves_a_capture_alone(device, resource, stream, mode, how):
    """The thread captures one stream and releases memory ordered by another, whatever the mode of the capture."""
    other = device.create_stream()
    buffer = resource.allocate(GRANULE, stream=other)
    with blocked(buffer):
        with capture(stream, mode):
            if how == "drop":
                del buffer
                gc.collect()
            elif how == "grow":
                buffer = resource.modify_allocation(buffer, 2 * GRANULE)
            else:
                assert buffer.close() is CloseResult.DONE
            status = check(driver.cuStreamIsCapturing(int(stream.handle)))
            assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    if how == "grow":
        buffer.close()
    other.close()
