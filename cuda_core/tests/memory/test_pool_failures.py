# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside the operations of pools fails in turn, once and for good.

What is called, how often and in which order is found by running the operation once, so the tests follow the
implementation.
"""

import gc

import pytest

from buffer_kinds import POOLS
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    Device,
    DeviceMemoryResource,
    ManagedMemoryResource,
    Ownership,
    PinnedMemoryResource,
)
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from support import attempt, calls_in_order, check, fill, holds, still_allocated, warnings_seen

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
# What undoes a step that has had its effect. Where one of these is refused the operation has succeeded.
UNDOING = {"cuCtxPopCurrent", "cuEventDestroy", "cuStreamDestroy"}
EXCHANGE = "cuThreadExchangeStreamCaptureMode"
STREAMS = (
    "own",
    "default",
    pytest.param("default, on another context", marks=pytest.mark.two_devices),
    "several",
)


@pytest.fixture(params=POOLS.values(), ids=POOLS)
def source(request, device):
    return request.param(device)


@pytest.fixture(autouse=True)
def the_mode_of_the_thread(device):
    """Where giving the capture mode back is what fails, the thread keeps the one it was lent."""
    yield
    check(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))


class Streams:
    """The streams of one case: what to allocate with, and what to record beside."""

    def __init__(self, device, case):
        self.made = [device.create_stream() for _ in range(3)]
        self.first = device.default_stream if case.startswith("default") else self.made[0]
        self.case = case
        self.device = device

    def allocate(self, resource):
        buffer = resource.allocate(4096, stream=self.first)
        if self.case == "several":
            for stream in self.made[1:]:
                buffer.record_stream(stream)
        fill(buffer.handle, 4096, seed=1)
        return buffer

    def leave(self):
        """Go where the operation is made from."""
        if self.case == "default, on another context":
            Device(1).set_current()

    def come_back(self):
        self.device.set_current()

    def close(self):
        for stream in self.made:
            stream.close()


@pytest.fixture(params=STREAMS)
def streams(request, device):
    made = Streams(device, request.param)
    yield made
    made.come_back()
    made.close()


def had_effect(call, n, total):
    """Whether the operation succeeds although this call is refused."""
    return call in UNDOING or (call == EXCHANGE and n == total)


def what_is_left(driver_watch, streams):
    """What is live, but for the streams and events that a pool keeps until it ends: `nothing_left` sees those go."""
    Device().create_event().close()  # with it those go that were refused
    driver, package = driver_watch.live(), dict(_counters.live())
    if streams.case == "several":
        driver.pop("stream", None)
        driver.pop("event", None)
        package.pop("stream_handles", None)
    return driver, package


MAKES = {
    "device, current": lambda: DeviceMemoryResource(0),
    "device, own": lambda: DeviceMemoryResource(0, {"max_size": 1 << 20}),
    "pinned, current": PinnedMemoryResource,
    "pinned, own": lambda: PinnedMemoryResource({}),
    "pinned, on a node": lambda: PinnedMemoryResource({"numa_id": 0}),
    "pinned, shareable": lambda: PinnedMemoryResource({"ipc_enabled": True}),
    "managed, current": ManagedMemoryResource,
    "managed, own": lambda: ManagedMemoryResource({"preferred_location": 0}),
    "managed, on the nearest node": lambda: ManagedMemoryResource({"preferred_location_type": "host_numa"}),
}


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_every_call_of_making_a_resource_fails(driver_watch, threshold, make, sticky):
    threshold.set(0)  # else there is nothing to raise
    resource, calls = calls_in_order(driver_watch, make)
    assert calls
    resource.close()
    del resource
    for call, n in calls:
        if call == "cuCtxPopCurrent":
            continue
        threshold.set(0)
        live = driver_watch.live(), _counters.live()
        with warnings_seen() as seen, driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            resource, error = attempt(make, CUDAError)
        if not failure.fired:
            assert call == "cuMemPoolSetAccess", (
                f"{call} {n} did not fail"
            )  # the current pool has the rights by now
        if resource is None:
            assert call in str(error), f"{call} {n}: {error}"
        else:  # giving the capture mode back
            assert call == EXCHANGE or not failure.fired, f"{call} {n} was swallowed"
            resource.close()
        del resource, error
        gc.collect()
        if seen:  # the pool could not be destroyed either, and is tried again with the next
            assert sticky
            assert [entry.category for entry in seen] == [CUDAWarning]
            make().close()
        assert (driver_watch.live(), _counters.live()) == live, f"{call} {n}: something is left"
    make().close()


@ONCE_AND_FOR_GOOD
def test_every_call_of_allocate_fails(driver_watch, source, streams, sticky):
    def allocate():
        return source.resource.allocate(4096, stream=streams.first)

    buffer, calls = calls_in_order(driver_watch, allocate)
    buffer.close()
    total = dict(calls)  # the last number of each
    for call, n in calls:
        live = driver_watch.live(), _counters.live()
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            buffer, error = attempt(allocate, CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        if buffer is None:
            assert call in str(error), f"{call} {n}: {error}"
        else:
            assert had_effect(call, n, total[call]), f"{call} {n} was swallowed"
            assert buffer.close() is CloseResult.DONE
        del buffer, error
        gc.collect()
        assert (driver_watch.live(), _counters.live()) == live, f"{call} {n}: something is left"
    assert allocate().close() is CloseResult.DONE


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("indexed", [False, True], ids=["no index", "index"])
def test_every_call_of_close_fails(device, driver_watch, source, streams, sticky, indexed):
    """A close that fails leaves the buffer as it was, and the next one returns it."""
    if indexed:
        Buffer.from_handle(0, 0, source.resource, stream=streams.first).close()
    buffer = streams.allocate(source.resource)
    streams.leave()
    outcome, calls = calls_in_order(driver_watch, buffer.close)
    assert outcome is CloseResult.DONE
    total = dict(calls)
    for call, n in calls:
        if call in UNDOING:
            continue  # what is refused then stays with the driver: nobody can do more
        streams.come_back()
        live = what_is_left(driver_watch, streams)
        buffer = streams.allocate(source.resource)
        address = buffer.handle
        streams.leave()
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            outcome, error = attempt(buffer.close, CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        streams.come_back()
        if outcome is None:
            assert call in str(error), f"{call} {n}: {error}"
            assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 4096)
            assert holds(address, 4096, seed=1), f"{call} {n}"
            streams.leave()
            assert buffer.close() is CloseResult.DONE
            streams.come_back()
        else:
            assert had_effect(call, n, total[call]), f"{call} {n} was swallowed"
            assert outcome is CloseResult.DONE
        assert buffer.ownership is Ownership.RELEASED
        del error
        device.sync()
        assert not still_allocated(address)
        assert what_is_left(driver_watch, streams) == live, f"{call} {n}: something is left"
        check(
            driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        )


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("case", ["own", "default"])
def test_every_call_of_deallocate_fails(device, driver_watch, source, case, sticky):
    streams = Streams(device, case)

    def free(allocation):
        return source.resource.deallocate(allocation.handle, 4096, stream=streams.first)

    allocation = streams.allocate(source.resource).detach()
    _, calls = calls_in_order(driver_watch, lambda one=allocation: free(one))
    total = dict(calls)
    for call, n in calls:
        live = driver_watch.live(), _counters.live()
        allocation = streams.allocate(source.resource).detach()
        address = allocation.handle
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            _, error = attempt(lambda one=allocation: free(one), CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        if error is not None:
            assert call in str(error)
            assert allocation.ownership is Ownership.OWNED
            assert holds(address, 4096, seed=1)
            assert Buffer.adopt(allocation).close() is CloseResult.DONE
        else:
            assert had_effect(call, n, total[call]), f"{call} {n} was swallowed"
        del allocation, error
        assert not still_allocated(address)
        assert what_is_left(driver_watch, streams) == live, f"{call} {n}: something is left"
        check(
            driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        )
    streams.close()


@pytest.mark.parametrize("case", ["own", "several"])
def test_every_call_of_a_collection_fails_once(device, driver_watch, source, case):
    """It is reported once and stays, or the queue makes it."""
    streams = Streams(device, case)
    buffer = streams.allocate(source.resource)
    _, calls = calls_in_order(driver_watch, buffer.close)
    del buffer
    kept = []
    for call, n in calls:
        if call == "cuCtxPopCurrent" or (call == EXCHANGE and n > 1):
            continue
        buffer = streams.allocate(source.resource)
        address = buffer.handle
        with warnings_seen() as seen, driver_watch.fail(call, nth=n):
            del buffer
            gc.collect()
            assert drain(20)
        device.sync()
        if still_allocated(address):
            assert [entry.category for entry in seen] == [CUDAWarning], f"{call} {n}: {seen}"
            assert call in str(seen[0].message)
            kept.append(address)
        else:
            assert seen == [], f"{call} {n}"
    for address in kept:
        check(driver.cuMemFreeAsync(address, 0))
    device.sync()
    streams.close()


@ONCE_AND_FOR_GOOD
def test_every_call_of_closing_a_resource_fails(driver_watch, source, sticky):
    resource = source.make()
    _, calls = calls_in_order(driver_watch, resource.close)
    total = dict(calls)
    for call, n in calls:
        live = driver_watch.live(), _counters.live()
        resource = source.make()
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            _, error = attempt(resource.close, CUDAError)
        assert failure.fired
        if error is not None:
            assert call in str(error)
            assert not resource.is_closed
            resource.close()
        else:
            assert had_effect(call, n, total[call]), f"{call} {n} was swallowed"
        assert resource.is_closed
        del error
        assert (driver_watch.live(), _counters.live()) == live, f"{call} {n}: something is left"


@ONCE_AND_FOR_GOOD
def test_every_call_of_reading_an_attribute_fails(driver_watch, source, sticky):
    attributes = source.resource.attributes
    _, calls = calls_in_order(driver_watch, lambda: attributes.used_mem_current)
    for call, n in calls:
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            value, error = attempt(lambda: attributes.used_mem_current, CUDAError)
        assert failure.fired
        assert value == 0 if call == EXCHANGE and n > 1 else call in str(error)
    assert attributes.used_mem_current == 0


@pytest.mark.parametrize("result", ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_CONTEXT_IS_DESTROYED"])
def test_what_is_hopeless_is_lost_with_one_report(device, driver_watch, source, result):
    """The context is gone, and everything in it; nothing is tried again."""
    stream = device.create_stream()
    buffer = source.resource.allocate(4096, stream=stream)
    address = buffer.handle
    names = ("cuMemFreeAsync", "cuMemFree") if result.endswith("DESTROYED") else ("cuMemFreeAsync",)
    failures = [driver_watch.fail(name, result=result, sticky=True) for name in names]
    for failure in failures:
        failure.__enter__()
    with pytest.raises(CUDAError, match=result):
        buffer.close()
    assert buffer.ownership is Ownership.RELEASED
    assert "lost" in repr(buffer)
    assert buffer.close() is CloseResult.NOTHING
    for failure in failures:
        failure.__exit__(None, None, None)
    check(driver.cuMemFreeAsync(address, int(stream.handle)))
    stream.close()
