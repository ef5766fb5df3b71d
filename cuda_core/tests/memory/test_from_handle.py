# SPDX-License-Identifier: Apache-2.0
"""Owning memory that exists already: with a plain free function, with a resource, and never twice."""

import ctypes
import functools
import gc
import weakref

import pytest

from buffer_kinds import BUILT_IN, ENDINGS, SOURCES, end, raw_memory
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    Ownership,
    Stream,
)
from python_resources import Plain
from support import attempt, check, fill, given_back, holds, name_of, race, still_allocated, warnings_seen

SIZE = 4096

pytestmark = pytest.mark.usefixtures("device")


class Owner:
    """Something that can be seen to die."""


class Free:
    """A free function that remembers each call, and raises as often as it is told to."""

    def __init__(self, refusals=0):
        self.calls = []
        self.refusals = refusals

    def __call__(self, *arguments, **keywords):
        self.calls.append((arguments, keywords))
        if self.refusals:
            self.refusals -= 1
            raise LookupError("not now")
        check(driver.cuMemFree(arguments[0]))


def memory(size=SIZE):
    return int(check(driver.cuMemAlloc(size)))


# --- deallocate= -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
def test_the_function_is_called_once_with_pointer_size_and_stream(how):
    free, address = Free(), memory()
    box = [Buffer.from_handle(address, SIZE, deallocate=free)]
    assert (box[0].ownership, box[0].handle, box[0].size) == (Ownership.OWNED, address, SIZE)
    assert (box[0].memory_resource, box[0].owner) == (None, None)
    assert free.calls == []
    end(box, how)
    ((arguments, keywords),) = free.calls
    assert arguments[:2] == (address, SIZE)
    assert [type(argument) for argument in arguments] == [int, int, Stream]
    assert keywords == {}
    assert given_back(address)


def test_the_recorded_stream_is_handed_over_even_when_it_was_closed(device):
    free, stream = Free(), device.create_stream()
    handle = int(stream.handle)
    buffer = Buffer.from_handle(memory(), SIZE, deallocate=free, stream=stream)
    stream.close()
    buffer.close()
    handed = free.calls[0][0][2]
    assert int(handed.handle) == handle
    assert not handed.is_closed
    handed.sync()


def test_without_a_stream_the_default_stream_is_handed_over(device):
    free = Free()
    Buffer.from_handle(memory(), SIZE, deallocate=free).close()
    handed = free.calls[0][0][2]
    assert int(handed.handle) == int(device.default_stream.handle)


def test_a_close_with_a_stream_hands_that_over(device):
    free, first, second = Free(), device.create_stream(), device.create_stream()
    Buffer.from_handle(memory(), SIZE, deallocate=free, stream=first).close(second)
    assert int(free.calls[0][0][2].handle) == int(second.handle)
    free.calls.clear()
    first.close()
    second.close()


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_the_owner_lives_until_the_call_has_returned(how):
    owner, seen = Owner(), []
    gone = weakref.ref(owner)
    address = memory()

    def free(ptr, size, stream):
        seen.append(gone() is not None)
        check(driver.cuMemFree(ptr))

    box = [Buffer.from_handle(address, SIZE, owner=owner, deallocate=free)]
    assert box[0].owner is owner
    assert box[0].ownership is Ownership.OWNED
    del owner
    gc.collect()
    assert gone() is not None
    if how == "close":
        buffer = box[0]
        buffer.close()
        assert gone() is None, "right after the call, without a collection"
        assert buffer.owner is None
    else:
        end(box, how)
    assert seen == [True]
    assert gone() is None


def test_an_owner_in_a_cycle_is_whole_when_the_function_is_called():
    """The collector has cleared the weak references by then, so what the owner holds must tell."""
    owner, seen = Owner(), []
    owner.memory = memory()

    def make(owner):
        def free(ptr, size, stream):
            seen.append((ptr, owner.memory))
            check(driver.cuMemFree(ptr))

        owner.buffer = Buffer.from_handle(owner.memory, SIZE, owner=owner, deallocate=free)

    make(owner)
    address = owner.memory
    del owner
    gc.collect()
    assert seen == [(address, address)]
    assert given_back(address)


def test_the_function_is_let_go_after_the_call():
    free = Free()
    gone = weakref.ref(free)
    buffer = Buffer.from_handle(memory(), SIZE, deallocate=free)
    del free
    gc.collect()
    assert gone() is not None
    buffer.close()
    assert gone() is None


def test_anything_that_can_be_called_will_do():
    freed = []

    class Method:
        def free(self, ptr, size, stream):
            freed.append(ptr)
            check(driver.cuMemFree(ptr))

        @staticmethod
        def free_statically(ptr, size, stream):
            freed.append(ptr)
            check(driver.cuMemFree(ptr))

    def with_more(log, ptr, size, stream):
        log.append(ptr)
        check(driver.cuMemFree(ptr))

    callables = [
        Method().free,
        Method.free_statically,
        functools.partial(with_more, freed),
        lambda *arguments: (freed.append(arguments[0]), check(driver.cuMemFree(arguments[0]))),
    ]
    for free in callables:
        address = memory()
        Buffer.from_handle(address, SIZE, deallocate=free).close()
        assert freed.pop() == address
        assert given_back(address)


def test_what_the_function_returns_means_nothing():
    for answer in (False, 0, "failed", NotImplemented):

        def free(ptr, size, stream, answer=answer):
            check(driver.cuMemFree(ptr))
            return answer

        buffer = Buffer.from_handle(memory(), SIZE, deallocate=free)
        assert buffer.close() is CloseResult.DONE
        assert buffer.ownership is Ownership.RELEASED


def test_memory_of_the_host_that_no_driver_knows():
    freed = []
    block = ctypes.create_string_buffer(b"host memory", 64)
    buffer = Buffer.from_handle(
        ctypes.addressof(block), 64, owner=block, deallocate=lambda ptr, size, stream: freed.append(ptr)
    )
    assert (buffer.is_host_accessible, buffer.is_device_accessible) == (True, False)
    assert bytes(buffer)[:11] == b"host memory"
    buffer.close()
    assert freed == [ctypes.addressof(block)]


def closing_what_it_frees():
    """A buffer whose function keeps it and closes it, and the list of what those closes answered."""
    inner, box = [], []

    def free(ptr, size, stream):
        inner.extend(buffer.close() for buffer in box)
        check(driver.cuMemFree(ptr))

    box.append(Buffer.from_handle(memory(), SIZE, deallocate=free))
    return box[0], inner


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_function_that_closes_the_buffer_it_frees(how):
    buffer, inner = closing_what_it_frees()
    gone = weakref.ref(buffer)
    if how == "close":
        assert buffer.close() is CloseResult.DONE
    elif how == "with":
        with buffer:
            pass
    del buffer  # it keeps the function, and the function keeps it: dropped, only the collector ends them
    gc.collect()
    assert gone() is None
    assert inner == [CloseResult.NOTHING]


def test_a_function_that_raises_has_freed_nothing():
    free, owner = Free(refusals=2), Owner()
    gone = weakref.ref(owner)
    address = memory()
    fill(address, SIZE, seed=1)
    buffer = Buffer.from_handle(address, SIZE, owner=owner, deallocate=free)
    del owner
    for _ in range(2):
        with pytest.raises(LookupError, match="not now"):
            buffer.close()
        assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
        assert holds(address, SIZE, seed=1)
        gc.collect()
        assert gone() is not None, "the next call still needs it"
    assert buffer.close() is CloseResult.DONE
    assert len(free.calls) == 3
    assert gone() is None
    assert given_back(address)


def test_leaving_with_asks_a_failed_function_no_more():
    free = Free(refusals=1)
    address = memory()
    buffer = Buffer.from_handle(address, SIZE, deallocate=free)
    with buffer:
        with pytest.raises(LookupError):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert len(free.calls) == 1
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("closed_before", [False, True], ids=["never closed", "close failed"])
@pytest.mark.parametrize("how", ["drop", "cycle"])
def test_a_collection_reports_a_function_that_raises_once(how, closed_before):
    free = Free(refusals=1)
    address = memory()
    box = [Buffer.from_handle(address, SIZE, deallocate=free)]
    if closed_before:
        with pytest.raises(LookupError):
            box[0].close()
    with warnings_seen() as seen:
        end(box, how)
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert f"{address:x}" in str(seen[0].message).lower()
    assert len(free.calls) == 1
    check(driver.cuMemFree(address))


def test_a_detached_function_travels_with_the_allocation():
    free, owner = Free(), Owner()
    gone = weakref.ref(owner)
    address = memory()
    allocation = Buffer.from_handle(address, SIZE, owner=owner, deallocate=free).detach()
    assert (allocation.owner, allocation.memory_resource) == (owner, None)
    del owner
    adopted = Buffer.adopt(allocation)
    del allocation
    gc.collect()
    assert adopted.owner is gone()
    assert free.calls == []
    adopted.close()
    assert [call[0][:2] for call in free.calls] == [(address, SIZE)]
    assert gone() is None


# --- a call that raises has taken nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mr": Plain()}, ValueError),
        ({"mr": Plain(), "owner": Owner()}, ValueError),
        ({"mr": "resource"}, (ValueError, TypeError)),
        ({"stream": 7}, TypeError),
        ({"stream": "stream"}, TypeError),
        ({"size": -1}, ValueError),
        ({"size": 1.0}, TypeError),
        ({"size": 2**64}, OverflowError),
        ({"ptr": "0"}, TypeError),
        ({"ptr": -1}, (ValueError, OverflowError)),
        ({"ptr": 2**64 - SIZE + 1}, ValueError),
        ({"ptr": 2**63 + 2, "size": 2**63 - 1}, ValueError),
        ({"deallocate": 7}, TypeError),
        ({"deallocate": "free"}, TypeError),
        ({"deallocate": (lambda: None,)}, TypeError),
        ({"deallocate": 7, "owner": Owner()}, TypeError),
    ],
    ids=name_of,
)
def test_refused_arguments_take_nothing(driver_watch, arguments, error):
    free, address = Free(), memory()
    call = {"ptr": address, "size": SIZE, "deallocate": free, **arguments}
    with driver_watch.no_call():
        with pytest.raises(error):
            Buffer.from_handle(**call)
    gc.collect()
    assert free.calls == []
    assert still_allocated(address)
    owner = call.get("owner")
    del call
    if owner is not None:
        assert not [holder for holder in gc.get_referrers(owner) if isinstance(holder, Buffer)]
    Buffer.from_handle(address, SIZE, deallocate=free).close()
    assert len(free.calls) == 1


@pytest.mark.parametrize(
    ("ptr", "size"), [(2**64 - 16, 16), (2**64 - 1, 1), (2**64 - 1, 0), (2**63 + 1, 2**63 - 1)]
)
def test_memory_may_end_with_the_address_space(ptr, size):
    with Buffer.from_handle(ptr, size) as buffer:
        assert (buffer.handle, buffer.size) == (ptr, size)


def test_a_closed_stream_takes_nothing(device):
    free, address, stream = Free(), memory(), device.create_stream()
    stream.close()
    with pytest.raises(RuntimeError):
        Buffer.from_handle(address, SIZE, deallocate=free, stream=stream)
    gc.collect()
    assert free.calls == []
    Buffer.from_handle(address, SIZE, deallocate=free).close()
    assert len(free.calls) == 1


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", ["function", "python", *BUILT_IN])
@pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
def test_every_driver_call_of_from_handle_fails(device, driver_watch, kind, with_stream):
    stream = device.create_stream() if with_stream else None
    source = SOURCES[kind](device)
    size = source.size
    free = Free()

    def take(address):
        if kind == "function":
            return Buffer.from_handle(address, size, deallocate=free, stream=stream)
        return Buffer.from_handle(address, size, source.resource, stream=stream)

    def fresh():
        if kind == "python":
            return source.resource.take(size)
        return raw_memory("device" if kind == "function" else kind, size)

    address = fresh()
    with driver_watch.sim.logged() as log:
        buffer = take(address)
    buffer.close()
    counts = {}
    for entry in log.calls:
        counts[entry.name] = counts.get(entry.name, 0) + 1
        address = fresh()
        with driver_watch.fail(entry.name, nth=counts[entry.name]) as failure:
            buffer, error = attempt(lambda at=address: take(at), (CUDAError, RuntimeError))
        assert failure.fired
        assert buffer is None, f"{entry.name} failed and nobody was told"
        assert entry.name in str(error)
        del error
        gc.collect()
        assert still_allocated(address), "a call that raises has taken nothing"
        take(address).close()
        assert given_back(address)
    if stream is not None:
        stream.close()


def test_without_a_context_and_a_stream_a_function_still_gets_a_stream():
    """Memory of the host may be meant, and no CUDA be there at all."""
    freed, block = [], ctypes.create_string_buffer(64)

    def work():
        buffer = Buffer.from_handle(
            ctypes.addressof(block), 64, owner=block, deallocate=lambda *arguments: freed.append(arguments)
        )
        return buffer.close()

    assert race(work) == [CloseResult.DONE]
    ((ptr, size, stream),) = freed
    assert (ptr, size) == (ctypes.addressof(block), 64)
    assert isinstance(stream, Stream)


def test_without_a_context_a_given_stream_is_recorded(device):
    free, stream = Free(), device.create_stream()
    address = memory()
    (buffer,) = race(lambda: Buffer.from_handle(address, SIZE, deallocate=free, stream=stream))
    assert free.calls == []
    assert buffer.close() is CloseResult.DONE
    assert int(free.calls[0][0][2].handle) == int(stream.handle)
    free.calls.clear()
    stream.close()


def test_without_a_context_and_a_stream_a_resource_has_nothing_to_order_by(device):
    plain = Plain()
    address = plain.take(SIZE)
    (error,) = race(lambda: Buffer.from_handle(address, SIZE, plain))
    assert isinstance(error, RuntimeError)
    assert plain.asked == []
    Buffer.from_handle(address, SIZE, plain).close()
    assert len(plain.asked) == 1
