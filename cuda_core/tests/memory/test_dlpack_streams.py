# SPDX-License-Identifier: Apache-2.0
"""The stream handshake of DLPack: the consumer's stream behind the producer's, and both before the free."""

import ctypes
import itertools

import pytest

from buffer_kinds import POOLS, SOURCES
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    Device,
    LegacyPinnedMemoryResource,
    Ownership,
    Stream,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from dlpack_peer import CPU, take
from held_work import Gate, Waiting
from support import GRANULE, attempt, check, given_back, in_context, race, read, still_allocated, write

SUCCESS = driver.CUresult.CUDA_SUCCESS
NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
SIZE = 4096


@pytest.fixture
def streams(device):
    made = [device.create_stream() for _ in range(3)]
    yield made
    for stream in made:
        stream.close()


@pytest.fixture
def buffer(device, streams):
    """Device memory whose free is ordered by the first stream."""
    with _SynchronousMemoryResource(0).allocate(SIZE, stream=streams[0]) as buffer:
        write(buffer.handle, b"\0" * SIZE)
        yield buffer


def number(stream):
    return int(stream.handle)


def recorded(buffer):
    """Return the streams that order the release of a buffer, and a buffer that owns it."""
    allocation = buffer.detach()
    found = [number(stream) for stream in allocation.streams]
    return found, Buffer.adopt(allocation)


def is_busy(stream):
    result = driver.cuStreamQuery(stream)[0]
    assert result in (SUCCESS, NOT_READY)
    return result == NOT_READY


# --- the consumer behind the producer ----------------------------------------------------------------------------


@pytest.mark.parametrize("consumer", ["stream", 1, 2, None])
def test_dl_06_the_consumers_stream_sees_what_was_written_before(device, streams, buffer, consumer):
    asked = number(streams[1]) if consumer == "stream" else consumer
    runs_in = 1 if asked is None else asked
    with _SynchronousMemoryResource(0).allocate(SIZE, stream=streams[2]) as target:
        with Gate(streams[0]) as gate:
            check(driver.cuMemsetD8Async(buffer.handle, 7, SIZE, number(streams[0])))
            taken = take(buffer, stream=asked)
            assert is_busy(runs_in)
            check(driver.cuMemcpyAsync(target.handle, taken.data, SIZE, runs_in))
            gate.open()
        check(driver.cuStreamSynchronize(runs_in))
        assert read(target.handle, SIZE) == b"\7" * SIZE
        taken.delete()


def test_minus_one_orders_nothing(streams, buffer, driver_watch):
    with Gate(streams[0]) as gate:
        with driver_watch.no_call():
            taken = take(buffer, stream=-1)
        assert not is_busy(number(streams[1]))
        gate.open()
    taken.delete()


@pytest.mark.parametrize("stopped", [0, 1])
def test_the_consumer_waits_for_every_recorded_stream(streams, buffer, stopped):
    buffer.record_stream(streams[1])
    with Gate(streams[stopped]) as gate:
        taken = take(buffer, stream=number(streams[2]))
        assert is_busy(number(streams[2]))
        gate.open()
    check(driver.cuStreamSynchronize(number(streams[2])))
    taken.delete()


def test_a_slice_is_ordered_by_the_streams_of_the_whole(streams, buffer):
    with buffer[8:] as part, part[8:] as rest:
        with Gate(streams[0]) as gate:
            taken = take(rest, stream=number(streams[1]))
            assert is_busy(number(streams[1]))
            gate.open()
        taken.delete()
    found, again = recorded(buffer)
    assert found == [number(streams[0]), number(streams[1])]
    again.close()


@pytest.mark.parametrize("device_wanted", [None, (CPU, 0)])
def test_a_host_consumer_waits_itself(device, streams, device_wanted):
    with LegacyPinnedMemoryResource().allocate(SIZE, stream=streams[0]) as pinned:
        with Gate(streams[0]) as gate:
            check(driver.cuMemsetD8Async(pinned.handle, 7, SIZE, number(streams[0])))
            taken = take(pinned, stream=-1)
            taken.delete()
            exporting = Waiting(lambda: take(pinned, dl_device=device_wanted))
            assert exporting.waits()
            gate.open()
            taken = exporting.result()
        assert ctypes.string_at(taken.data, SIZE) == b"\7" * SIZE
        taken.delete()
        found, again = recorded(pinned)
        assert found == [number(streams[0])], "a consumer without a stream orders no free"
        again.close()


def test_a_thread_without_a_context_exports_for_a_default_stream(device, streams, buffer):
    with Gate(streams[0]) as gate:
        [taken] = race(lambda: take(buffer, stream=1))
        assert is_busy(1)
        gate.open()
    taken.delete()
    check(driver.cuStreamSynchronize(1))


@pytest.mark.two_devices
def test_the_default_stream_of_a_consumer_is_that_of_the_memorys_device(devices, streams, buffer):
    with Gate(streams[0]) as gate:  # made in its stream's context
        devices[1].set_current()
        taken = take(buffer, stream=1)
        assert not is_busy(1), "the one of the current device has nothing to do with it"
        devices[0].set_current()
        assert is_busy(1)
        gate.open()
    taken.delete()
    check(driver.cuStreamSynchronize(1))


def test_the_per_thread_stream_of_another_thread(device, buffer):
    """It cannot be named here; the legacy stream, which waits for it, takes its place."""
    other = device.create_stream()
    made = []

    def allocate():
        Device(0).set_current()
        made.append(_SynchronousMemoryResource(0).allocate(SIZE, stream=PER_THREAD_DEFAULT_STREAM))

    assert race(allocate) == [None]
    take(made[0], stream=number(other)).delete()
    check(driver.cuStreamSynchronize(number(other)))
    made.pop().close()
    other.close()


# --- the consumer before the free --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [kind for kind in SOURCES if kind not in POOLS]
)  # which free behind it, at once
def test_the_free_waits_for_the_consumers_stream(device, streams, kind):
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=streams[0])
    address = buffer.handle
    taken = take(buffer, stream=number(streams[1]))
    taken.delete()
    if not source.built_in:
        with Gate(streams[1]) as gate:
            # Asked at once, with a stream that is ordered behind the others.
            gate.open()
        assert buffer.close() is CloseResult.DONE
        return
    with Gate(streams[1]) as gate:
        closing = Waiting(buffer.close)
        assert closing.waits()
        assert still_allocated(address)
        gate.open()
        assert closing.result() is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.parametrize("first", ["stream", 1, 2])
def test_a_python_resource_is_asked_on_a_thread_without_a_context(device, streams, first):
    """The default stream that has joined is that of the context in which it was meant."""
    source = SOURCES["python"](device)
    stream = {"stream": streams[0], 1: LEGACY_DEFAULT_STREAM, 2: PER_THREAD_DEFAULT_STREAM}[first]
    buffer = source.allocate(stream=stream)
    for consumer in (number(streams[1]), 1, 2):
        take(buffer, stream=consumer).delete()
    address = buffer.handle
    free = in_context(lambda: type(source.resource).give_back(source.resource, address))
    source.resource.give_back = lambda ptr: free()  # plain memory is freed in a context
    assert race(buffer.close) == [CloseResult.DONE]
    assert source.frees() == 1


@pytest.mark.parametrize("kind", ["virtual", "pinned", "device"])
def test_the_last_loan_waits_for_the_consumers_stream(device, streams, kind):
    buffer = SOURCES[kind](device).allocate(stream=streams[0])
    address = buffer.handle
    taken = take(buffer, stream=number(streams[1]))
    assert buffer.close() is CloseResult.LENT
    with Gate(streams[1]) as gate:
        taken.delete()
        assert still_allocated(address)
        gate.open()
    assert given_back(address)


def test_a_consumer_joins_once(streams, buffer):
    for stream in (streams[0], streams[1], streams[1], streams[0]):
        take(buffer, stream=number(stream)).delete()
    found, again = recorded(buffer)
    assert found == [number(streams[0]), number(streams[1])]
    for default in (1, 2, 1, 2):
        take(again, stream=default).delete()
    found, again = recorded(again)
    assert found == [number(streams[0]), number(streams[1]), 1, 2]
    again.close()


@pytest.mark.parametrize("stream", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM])
def test_a_default_stream_joins_its_own_buffer_once(device, stream):
    buffer = _SynchronousMemoryResource(0).allocate(SIZE, stream=stream)
    take(buffer, stream=number(stream)).delete()
    found, again = recorded(buffer)
    assert found == [number(stream)]
    again.close()


def test_the_copy_orders_the_free_of_what_was_copied(streams, buffer):
    write(buffer.handle, b"copied")
    with Gate(streams[1]) as gate:
        taken = take(buffer, copy=True, stream=number(streams[1]))
        closing = Waiting(buffer.close)
        assert closing.waits()
        gate.open()
        assert closing.result() is CloseResult.DONE
    check(driver.cuStreamSynchronize(number(streams[1])))
    assert read(taken.data, 6) == b"copied"
    taken.delete()


# --- a consumer's stream that ends before the memory --------------------------------------------------------------


@pytest.fixture
def short_lived():
    """A blocking stream as other libraries make them, and what ends it. The gate's work runs on when it has ended."""
    stream = check(driver.cuStreamCreate(0))
    ended = []

    def end():
        ended.append(check(driver.cuStreamDestroy(stream)))

    yield stream, end
    if not ended:
        end()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("order", ["stream, array, buffer", "stream, buffer, array", "array, stream, buffer"])
def test_a_consumers_stream_may_end_first(device, streams, short_lived, kind, order):
    """A local variable of a stream often ends before that of the array; using it then would crash in the driver."""
    stream, end = short_lived
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=streams[0])
    address = buffer.handle
    taken = take(buffer, stream=int(stream))
    steps = {"stream": end, "array": taken.delete, "buffer": buffer.close}
    for step in order.split(", "):
        steps[step]()
    assert given_back(address)


@pytest.mark.parametrize("kind", ["virtual", "pinned", "device"])
def test_the_free_waits_for_what_an_ended_stream_was_given(device, streams, short_lived, kind):
    stream, end = short_lived
    buffer = SOURCES[kind](device).allocate(stream=streams[0])
    address = buffer.handle
    taken = take(buffer, stream=int(stream))
    with Gate(Stream.from_handle(int(stream))) as gate:
        end()
        taken.delete()
        closing = Waiting(buffer.close)
        assert closing.waits()
        assert still_allocated(address)
        gate.open()
        assert closing.result() is CloseResult.DONE
    assert given_back(address)


def test_a_copy_outlives_the_stream_that_made_it(buffer, short_lived):
    stream, end = short_lived
    write(buffer.handle, b"copied")
    taken = take(buffer, copy=True, stream=int(stream))
    check(driver.cuStreamSynchronize(stream))
    end()
    assert read(taken.data, 6) == b"copied"
    taken.delete()
    assert buffer.close() is CloseResult.DONE
    assert given_back(taken.data)


def test_blocking_streams_join_as_one(streams, buffer):
    made = [check(driver.cuStreamCreate(0)) for _ in range(20)]
    for stream in made:
        take(buffer, stream=int(stream)).delete()
        check(driver.cuStreamDestroy(stream))
    found, again = recorded(buffer)
    assert found == [number(streams[0]), number(LEGACY_DEFAULT_STREAM)]
    again.close()


# --- captures ----------------------------------------------------------------------------------------------------


class Capture:
    """Captures a stream; other streams join. Ending it must give a graph: nothing has broken the capture."""

    def __init__(self, stream):
        self.stream = stream
        self.joined = []
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(driver.cuStreamBeginCapture(number(stream), mode))

    def join(self, stream):
        self._edge(self.stream, stream)
        self.joined.append(stream)

    def _edge(self, first, second):
        event = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(event, number(first)))
        check(driver.cuStreamWaitEvent(number(second), event, 0))
        check(driver.cuEventDestroy(event))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        for stream in self.joined:
            self._edge(stream, self.stream)
        graph = check(driver.cuStreamEndCapture(number(self.stream)))
        assert int(graph) != 0
        check(driver.cuGraphDestroy(graph))


def refused(buffer, **keywords):
    with pytest.raises(CUDAError, match=r"CAPTURE_ISOLATION.*same capture"):
        buffer.__dlpack__(**keywords)
    assert (buffer.loans, buffer.ownership) == (0, Ownership.OWNED)


@pytest.mark.parametrize("consumer", ["stream", 1, 2, None])
def test_a_captured_producer_draws_no_consumer_into_the_capture(streams, buffer, consumer):
    with Capture(streams[0]):
        refused(buffer, stream=number(streams[1]) if consumer == "stream" else consumer)
        take(buffer, stream=-1).delete()
    take(buffer, stream=number(streams[1])).delete()


def test_a_captured_consumer_needs_an_idle_producer(streams, buffer):
    with Capture(streams[1]):
        take(buffer, stream=number(streams[1])).delete()
        with Gate(streams[0]) as gate:
            refused(buffer, stream=number(streams[1]))
            gate.open()


def test_both_in_one_capture_are_ordered_there(streams, buffer):
    with Capture(streams[0]) as capture:
        capture.join(streams[1])
        check(driver.cuMemsetD8Async(buffer.handle, 7, SIZE, number(streams[0])))
        take(buffer, stream=number(streams[1])).delete()


def test_two_captures_are_not_joined(streams, buffer):
    with Capture(streams[0]), Capture(streams[1]):
        refused(buffer, stream=number(streams[1]))


def test_a_host_consumer_breaks_no_capture(device, streams):
    with LegacyPinnedMemoryResource().allocate(SIZE, stream=streams[0]) as pinned:
        with Capture(streams[0]):
            for keywords in (
                {},
                {"dl_device": (CPU, 0)},
                {"dl_device": (CPU, 0), "copy": True},
                {"copy": True},
            ):
                with pytest.raises(CUDAError, match="being captured"):
                    pinned.__dlpack__(**keywords)
                assert pinned.loans == 0
            take(pinned, stream=-1).delete()


# --- failures ----------------------------------------------------------------------------------------------------

EXPORTS = {
    "for a stream": lambda streams: {"stream": number(streams[1])},
    "for the legacy stream": lambda streams: {"stream": 1},
    "for nobody in particular": lambda streams: {},
    "a copy": lambda streams: {"stream": number(streams[1]), "copy": True},
    "a copy for nobody in particular": lambda streams: {"copy": True},
    "a copy for the host": lambda streams: {"stream": number(streams[1]), "dl_device": (CPU, 0)},
    "a copy for the host, unordered": lambda streams: {"stream": -1, "dl_device": (CPU, 0)},
}
# A failed pop would leave the thread in the wrong context, and a failed destroy leaves an event: the driver's own.
NOT_TO_FAIL = {"cuCtxPopCurrent", "cuEventDestroy"}


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("current", [True, False], ids=["in its context", "without a context"])
@pytest.mark.parametrize("how", EXPORTS)
@pytest.mark.parametrize("kind", ["virtual", "pinned", "device", "python"])
def test_every_call_of_an_export_fails(device, streams, driver_watch, kind, how, current):
    source = SOURCES[kind](device)
    buffer = source.allocate(stream=streams[0])
    keywords = EXPORTS[how](streams)
    address = buffer.handle
    write(address, b"kept")
    if not current and kind in ("pinned", "python") and how in ("a copy", "a copy for nobody in particular"):
        buffer.close()
        return  # these two allocate in the current context

    def export():
        return take(buffer, **keywords)

    def attempt_export():
        taken, error = attempt(export) if current else race(lambda: attempt(export))[0]
        made.append(taken)
        return error

    def end_exports():
        while made:
            taken = made.pop()
            if taken is not None:
                taken.delete()

    made, failed = [], 0
    calls = driver_watch.calls_of(attempt_export)
    end_exports()
    for name in sorted(calls.keys() - NOT_TO_FAIL):
        for nth in range(1, calls[name] + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN"):
                error = attempt_export()
            assert error is None or isinstance(error, (CUDAError, RuntimeError)), error
            failed += error is not None
            end_exports()
            assert (buffer.loans, buffer.ownership) == (0, Ownership.OWNED), name
            assert read(address, 4) == b"kept"
    assert failed or not calls
    assert attempt_export() is None
    end_exports()
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


# --- threads -----------------------------------------------------------------------------------------------------


def test_threads_export_for_their_own_streams(device, streams, resource):
    buffer = resource.allocate(GRANULE, stream=streams[0])
    address = buffer.handle

    def work(stream):
        def run():
            for keywords in itertools.islice(itertools.cycle([{}, {"max_version": (1, 0)}]), 50):
                take(buffer, stream=number(stream), **keywords).delete()

        return run

    assert race(*map(work, streams), work(LEGACY_DEFAULT_STREAM)) == [None] * 4
    found, buffer = recorded(buffer)
    assert sorted(found) == sorted([number(stream) for stream in streams] + [1])
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)
