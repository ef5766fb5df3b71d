# SPDX-License-Identifier: Apache-2.0
"""What is done with buffers on a stream works on every thread, also where the driver's call needs a current context."""

import pytest

from buffer_kinds import SOURCES
from context_places import PLACES, at
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, CloseResult, EventOptions, Host
from cuda.core.utils import copy_batch, discard_batch, discard_prefetch_batch, prefetch_batch
from managed_memory import Managed
from support import read, write

SIZE = 64 << 10


@pytest.fixture(params=PLACES)
def place(request, device):
    with at(request.param, device) as place:
        yield place


@pytest.fixture(params=["created", "foreign"])
def stream(request, device):
    from cuda.core import Stream

    own = device.create_stream()
    yield own if request.param == "created" else Stream.from_handle(int(own.handle))
    own.close()


@pytest.fixture
def managed(device):
    buffer = Managed().allocate(SIZE)
    yield buffer
    buffer.close()


@pytest.fixture
def pair(device):
    source = SOURCES["device"](device)
    one, other = source.allocate(SIZE), source.allocate(SIZE)
    write(one.handle, b"\x05" * SIZE)
    write(other.handle, b"\x09" * SIZE)
    yield one, other
    one.close()
    other.close()


COPIES = {
    "copy_to": lambda one, other, stream: one.copy_to(other, stream=stream),
    "copy_from": lambda one, other, stream: other.copy_from(one, stream=stream),
    "copy_batch": lambda one, other, stream: copy_batch(stream, [one], [other]),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies(place, stream, pair, how):
    place.run(lambda: COPIES[how](*pair, stream))
    stream.sync()
    assert read(pair[1].handle, SIZE) == b"\x05" * SIZE


@pytest.mark.parametrize("value", [b"\x07", b"\x07\x08", b"\x07\x08\x09\x0a"])
def test_fills(place, stream, pair, value):
    place.run(lambda: pair[0].fill(value, stream=stream))
    stream.sync()
    assert read(pair[0].handle, SIZE) == value * (SIZE // len(value))


OPERATIONS = {
    "prefetch": lambda buffer, device, stream: buffer.prefetch(device, stream=stream),
    "discard": lambda buffer, device, stream: buffer.discard(stream=stream),
    "discard_prefetch": lambda buffer, device, stream: buffer.discard_prefetch(Host(), stream=stream),
    "prefetch_batch": lambda buffer, device, stream: prefetch_batch(stream, [buffer, buffer], device),
    "discard_batch": lambda buffer, device, stream: discard_batch(stream, [buffer]),
    "discard_prefetch_batch": lambda buffer, device, stream: discard_prefetch_batch(stream, [buffer], device),
}


@pytest.mark.parametrize("how", OPERATIONS)
def test_managed_operations(device, place, stream, managed, how):
    place.run(lambda: OPERATIONS[how](managed, device, stream))
    stream.sync()


def test_advice(device, place, managed):
    def advise():
        managed.read_mostly = True
        managed.preferred_location = device
        managed.accessed_by.add(device)

    place.run(advise)
    assert managed.read_mostly is True
    assert managed.preferred_location == device
    assert device in managed.accessed_by

    def withdraw():
        assert (managed.read_mostly, managed.preferred_location, set(managed.accessed_by)) == (
            True,
            device,
            {device},
        )
        managed.read_mostly = False
        managed.preferred_location = None
        managed.accessed_by.discard(device)

    place.run(withdraw)
    assert (managed.read_mostly, managed.preferred_location, set(managed.accessed_by)) == (False, None, set())


def test_streams_and_events(device, place, stream):
    event = device.create_event(EventOptions(timing_enabled=True))

    def work():
        stream.record(event)
        mark = stream.record()
        stream.wait(event)
        stream.sync()
        mark.sync()
        assert (event.is_done, mark.is_done) == (True, True)
        mark.close()

    place.run(work)
    event.close()


@pytest.mark.parametrize("kind", SOURCES)
def test_the_streams_of_a_release(device, place, stream, kind):
    buffer = SOURCES[kind](device).allocate()

    def work():
        buffer.record_stream(stream)
        buffer.set_deallocation_stream(stream)
        return buffer.close()

    assert place.run(work) is CloseResult.DONE


def test_a_batch_on_the_per_thread_stream_takes_the_context_of_the_thread(device, pair):
    copy_batch(PER_THREAD_DEFAULT_STREAM, [pair[0]], [pair[1]])
    PER_THREAD_DEFAULT_STREAM.sync()
    assert read(pair[1].handle, SIZE) == b"\x05" * SIZE
    with pytest.raises(TypeError, match="LEGACY_DEFAULT_STREAM"):
        copy_batch(LEGACY_DEFAULT_STREAM, [pair[0]], [pair[1]])
