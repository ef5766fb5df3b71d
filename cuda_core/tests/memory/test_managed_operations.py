# SPDX-License-Identifier: Apache-2.0
"""Prefetching and discarding managed memory, one buffer and many, and the order of its release."""

import pytest

from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    Host,
    ManagedBuffer,
    MemoryResource,
    OwnershipError,
)
from cuda.core.utils import discard_batch, discard_prefetch_batch, prefetch_batch
from held_work import Gate
from managed_memory import Managed, prefetched
from support import check, read, write

SIZE = 64 << 10


@pytest.fixture
def managed():
    return Managed()


@pytest.fixture
def buffer(device, managed):
    buffer = managed.allocate(SIZE)
    yield buffer
    buffer.close()
    assert managed.held == {}


# --- moving pages ------------------------------------------------------------------------------------------------

PLACES = {"device": ("DEVICE", 0), "host": ("HOST", None), "node": ("HOST_NUMA", 0)}


def _place(name, device):
    return {"device": device, "host": Host(), "node": Host(0)}[name]


@pytest.mark.parametrize("place", PLACES)
def test_prefetch_moves_the_pages_behind_earlier_work(device, buffer, stream, place):
    write(buffer.handle, b"\x07" * SIZE)
    with Gate(stream):
        buffer.prefetch(_place(place, device), stream=stream)
    stream.sync()
    kind, number = prefetched(buffer)
    assert kind == PLACES[place][0]
    assert PLACES[place][1] in (None, number)
    assert read(buffer.handle, SIZE) == b"\x07" * SIZE


@pytest.mark.parametrize("token", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "own"])
def test_the_default_streams_order_prefetches_too(device, buffer, token):
    buffer.prefetch(device, stream=token)
    prefetch_batch(token, [buffer, buffer], device)
    token.sync()
    assert prefetched(buffer) == ("DEVICE", 0)


@pytest.mark.parametrize("how", ["discard", "discard_prefetch", "discard_batch", "discard_prefetch_batch"])
def test_discarded_memory_can_be_written_again(device, buffer, stream, how):
    write(buffer.handle, b"\x07" * SIZE)
    if how == "discard":
        buffer.discard(stream=stream)
    elif how == "discard_batch":
        discard_batch(stream, [buffer])
    elif how == "discard_prefetch":
        buffer.discard_prefetch(device, stream=stream)
    else:
        discard_prefetch_batch(stream, [buffer], device)
    stream.sync()
    if "prefetch" in how:
        assert prefetched(buffer) == ("DEVICE", 0)
    buffer.fill(9, stream=stream)
    stream.sync()
    assert read(buffer.handle, SIZE) == b"\x09" * SIZE
    assert buffer.loans == 0


@pytest.mark.parametrize("operation", [prefetch_batch, discard_prefetch_batch])
@pytest.mark.parametrize("places", ["device", "host", "runs", "changing"])
def test_a_batch_moves_each_buffer_to_its_place(device, stream, managed, operation, places):
    buffers = [managed.allocate(SIZE) for _ in range(4)]
    wanted = {
        "device": [device] * 4,
        "host": [Host()] * 4,
        "runs": [device, device, Host(), Host()],
        "changing": [device, Host(), device, Host(0)],
    }[places]
    operation(stream, tuple(buffers), wanted if places in ("runs", "changing") else wanted[0])
    stream.sync()
    kinds = ["DEVICE" if place is device else "HOST" for place in wanted]
    assert [prefetched(buffer)[0].removesuffix("_NUMA") for buffer in buffers] == kinds
    for buffer in buffers:
        assert buffer.loans == 0
        buffer.close()


@pytest.mark.watched
def test_a_batch_is_one_call(device, stream, managed, driver_watch):
    buffers = [managed.allocate(SIZE) for _ in range(5)]
    for call, name in (
        (lambda: prefetch_batch(stream, buffers, device), "cuMemPrefetchBatchAsync"),
        (lambda: discard_batch(stream, buffers), "cuMemDiscardBatchAsync"),
        (lambda: discard_prefetch_batch(stream, buffers, device), "cuMemDiscardAndPrefetchBatchAsync"),
    ):
        calls = driver_watch.calls_of(call)
        assert {key: count for key, count in calls.items() if key.startswith("cuMem")} == {name: 1}
    for buffer in buffers:
        buffer.close()


def test_borrowed_managed_memory_goes_into_a_batch(device, stream, buffer):
    with Buffer.from_handle(buffer.handle, SIZE // 2, owner=buffer) as half, buffer[SIZE // 2 :] as rest:
        prefetch_batch(stream, [half, rest], device)
    stream.sync()
    assert prefetched(buffer) == ("DEVICE", 0)


def test_an_empty_buffer_has_nothing_to_advise(device, stream, driver_watch, managed):
    empty = ManagedBuffer.from_handle(0, 0, managed_empty := _NoMemory())
    with driver_watch.no_call():
        empty.read_mostly = True
        empty.preferred_location = device
        empty.prefetch(device, stream=stream)
        empty.discard(stream=stream)
        empty.discard_prefetch(Host(), stream=stream)
        prefetch_batch(stream, [empty], [device])
        discard_batch(stream, [empty])
        assert empty.read_mostly is False
        assert empty.preferred_location is None
        assert set(empty.accessed_by) == set()
        with pytest.raises(TypeError):
            empty.preferred_location = 0
    empty.close()
    full = managed.allocate(SIZE)
    again = ManagedBuffer.from_handle(0, 0, managed_empty)
    prefetch_batch(stream, [again, full], [Host(), device])
    stream.sync()
    assert prefetched(full) == ("DEVICE", 0)
    again.close()
    full.close()


class _NoMemory(MemoryResource):
    is_device_accessible = is_host_accessible = is_managed = True
    device_id = 0

    def deallocate(self, ptr, size, *, stream=None):
        assert (ptr, size) == (0, 0)


# --- man-02, man-03: order and batches ---------------------------------------------------------------------------


@pytest.mark.sim_only
def test_man_02_plain_managed_memory_is_freed_by_its_function_behind_the_recorded_work(device, stream):
    freed = []
    address = int(check(driver.cuMemAllocManaged(SIZE, 1)))

    def free(ptr, size, stream):
        stream.sync()
        freed.append((ptr, read(ptr, 4)))
        check(driver.cuMemFree(ptr))

    buffer = ManagedBuffer.from_handle(address, SIZE, deallocate=free, stream=stream)
    buffer.fill(5, stream=stream)
    buffer.close()
    assert freed == [(address, b"\x05" * 4)]


@pytest.mark.parametrize("how", ["closed", "detached", "moved", "loans"])
@pytest.mark.parametrize("operation", ["prefetch", "discard", "discard_prefetch"])
def test_man_03_a_batch_is_checked_as_a_whole_before_anything_starts(
    device, stream, driver_watch, managed, operation, how
):
    good, bad, last = (managed.allocate(SIZE) for _ in range(3))
    write(good.handle, b"\x07" * SIZE)
    prefetch_batch(stream, [good, last], Host())
    stream.sync()
    keep = {
        "closed": bad.close,
        "detached": bad.detach,
        "moved": lambda: bad.move_to(managed),
        "loans": lambda: bad[:16],
    }[how]()
    if how == "loans":
        bad.close()
    batch = [good, bad, last]
    with driver_watch.no_call():
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            if operation == "prefetch":
                prefetch_batch(stream, batch, device)
            elif operation == "discard":
                discard_batch(stream, batch)
            else:
                discard_prefetch_batch(stream, batch, [device] * 3)
    stream.sync()
    assert prefetched(good)[0] == prefetched(last)[0] == "HOST"
    assert read(good.handle, SIZE) == b"\x07" * SIZE
    assert good.loans == last.loans == 0
    good.close()
    last.close()
    if how == "detached":
        keep = Buffer.adopt(keep)
    if how != "closed":
        keep.close()
    assert managed.held == {}


OPERATIONS = {
    "prefetch": lambda b, s, d: b.prefetch(d, stream=s),
    "discard": lambda b, s, d: b.discard(stream=s),
    "discard_prefetch": lambda b, s, d: b.discard_prefetch(d, stream=s),
    "prefetch_batch": lambda b, s, d: prefetch_batch(s, [b, b], d),
    "discard_prefetch_batch": lambda b, s, d: discard_prefetch_batch(s, [b, b], d),
}


@pytest.mark.parametrize("call", OPERATIONS)
@pytest.mark.parametrize("mode", list(driver.CUstreamCaptureMode), ids=lambda mode: mode.name)
def test_a_stream_that_is_being_captured_is_refused_and_the_capture_goes_on(
    device, stream, buffer, call, mode
):
    check(driver.cuStreamBeginCapture(stream.handle, mode))
    try:
        with pytest.raises(CUDAError, match="STREAM_CAPTURE_UNSUPPORTED") as caught:
            OPERATIONS[call](buffer, stream, device)
    finally:
        graph = check(driver.cuStreamEndCapture(stream.handle))
    assert f"{call} cannot be captured" in str(caught.value)
    check(driver.cuGraphDestroy(graph))
    assert buffer.loans == 0
