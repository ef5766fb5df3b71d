# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C between any two instructions of an author's ``deallocate``: the buffer says what became of its memory."""

import gc
import sys

import pytest

from cuda.core import Buffer, LegacyPinnedMemoryResource, MemoryResource, Ownership
from cuda.core.adaptors import (
    LimitAdaptor,
    LoggingAdaptor,
    MemoryResourceAdaptor,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from support import given_back, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")
SIZE = 4096


class Overriding(LegacyPinnedMemoryResource):
    def deallocate(self, ptr, size, *, stream=None):
        super().deallocate(ptr, size, stream=stream)


class Inside(MemoryResource):
    """As the guide for authors has it."""

    is_device_accessible, is_host_accessible, device_id = True, True, -1

    def __init__(self):
        self.inner, self.buffers = LegacyPinnedMemoryResource(), {}

    def allocate(self, size, *, stream=None):
        buffer = self.inner.allocate(size, stream=stream)
        self.buffers[buffer.handle] = buffer
        return Buffer.from_handle(buffer.handle, size, mr=self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        buffer = self.buffers[ptr]
        try:
            del self.buffers[ptr]
            buffer.close(stream)
        except BaseException:
            if not buffer.is_closed:
                self.buffers[ptr] = buffer
            raise


def around(adaptor, *arguments):
    return lambda: adaptor(LegacyPinnedMemoryResource(), *arguments)


RESOURCES = {
    "override": Overriding,
    "wrapper": Inside,
    "adaptor": around(MemoryResourceAdaptor),
    "statistics": around(StatisticsAdaptor),
    "limit": around(LimitAdaptor, 1 << 20),
    "tracking": around(TrackingAdaptor),
    "logging": around(LoggingAdaptor),
    "two adaptors": lambda: StatisticsAdaptor(around(TrackingAdaptor)()),
    "function": None,
}


def make(kind):
    """Return a buffer, and what must stay alive beside it."""
    if kind != "function":
        resource = RESOURCES[kind]()
        return resource.allocate(SIZE), resource
    pinned = LegacyPinnedMemoryResource()
    allocation = pinned.allocate(SIZE).detach()
    taken = allocation.handle, allocation.size
    allocation.handed_over()

    def free(ptr, size, stream):
        pinned.deallocate(ptr, size)

    return Buffer.from_handle(*taken, deallocate=free), pinned


def interrupted(function, n):
    """Call a function, with an interrupt before the n-th instruction of what Python code it calls.

    Returns whether it came, and whether it was raised out of the call.
    """
    left, came, raised = n, False, False

    def trace(frame, event, argument):
        nonlocal left, came
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if not left:
                came = True
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = (
        True  # Python 3.12 looks here, when tracing begins, whether anybody wants them
    )
    try:
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
    except KeyboardInterrupt:
        raised = True
    return came, raised


@pytest.mark.parametrize("kind", RESOURCES)
def test_an_interrupt_anywhere_leaves_the_truth(kind):
    outcomes = set()
    n = 0
    came = True
    while came:
        n += 1
        buffer, resource = make(kind)
        address = buffer.handle
        came, raised = interrupted(buffer.close, n)
        assert raised == came, n
        outcomes.add(buffer.ownership)
        if buffer.ownership is Ownership.OWNED:
            assert still_allocated(address), n
            assert buffer.close().name == "DONE", n
        assert buffer.ownership is Ownership.RELEASED
        assert given_back(address), n
        del buffer, resource
    gc.collect()
    assert n > 5
    assert outcomes == {Ownership.OWNED, Ownership.RELEASED}


@pytest.mark.parametrize("kind", ["statistics", "limit", "tracking", "two adaptors"])
def test_adaptors_count_what_an_interrupt_has_let_go(kind):
    """An interrupt right behind the free, where the inner resource is one in Python, too."""

    class Interrupting(Inside):
        def deallocate(self, ptr, size, *, stream=None):
            super().deallocate(ptr, size, stream=stream)
            raise KeyboardInterrupt

    inner = Interrupting()
    resource = {
        "statistics": lambda: StatisticsAdaptor(inner),
        "limit": lambda: LimitAdaptor(inner, SIZE),
        "tracking": lambda: TrackingAdaptor(inner),
        "two adaptors": lambda: StatisticsAdaptor(TrackingAdaptor(inner)),
    }[kind]()
    for _ in range(3):
        buffer = resource.allocate(SIZE)
        with pytest.raises(KeyboardInterrupt):
            buffer.close()
        assert buffer.ownership is Ownership.RELEASED
        if kind in ("statistics", "two adaptors"):
            assert resource.statistics.current_count == 0
        if kind == "limit":
            assert resource.used == 0
        if kind == "tracking":
            assert resource.open_allocations() == []


class Leaving(Overriding):
    def deallocate(self, ptr, size, *, stream=None):
        super().deallocate(ptr, size, stream=stream)
        raise SystemExit(3)


class Finalized:
    """An owner whose end runs Python code, in which an interrupt that waits would be raised, and lost."""

    def __del__(self):
        for _ in range(1000):
            pass


@pytest.mark.parametrize("lent", [False, True])
def test_an_exit_behind_the_free_ends_the_release(lent):
    """``sys.exit()`` of an author is an interrupt like the other; an error behind the free is a broken promise."""
    inner, resource = LegacyPinnedMemoryResource(), Leaving()
    taken = inner.allocate(SIZE)

    def free(ptr, size, stream):
        taken.close()
        raise SystemExit(3)

    for buffer in (
        resource.allocate(SIZE),
        Buffer.from_handle(taken.handle, SIZE, owner=Finalized(), deallocate=free),
    ):
        address = buffer.handle
        part = buffer[:8] if lent else buffer
        if lent:
            buffer.close()
        with warnings_seen() as seen, pytest.raises(SystemExit) as raised:
            part.close()
        assert raised.value.code == 3
        assert seen == []
        assert given_back(address)
        assert (part.ownership, part.close().name) == (Ownership.RELEASED, "NOTHING")


def test_an_exit_behind_the_free_of_what_was_dropped_comes_soon():
    """A collection cannot raise; nothing is reported as kept that is not."""
    resource = Leaving()
    buffer = resource.allocate(SIZE)
    address = buffer.handle
    with warnings_seen() as seen, pytest.raises(SystemExit) as raised:
        del buffer
        for _ in range(1000):
            gc.collect(0)
    assert raised.value.code == 3
    assert seen == []
    assert given_back(address)
