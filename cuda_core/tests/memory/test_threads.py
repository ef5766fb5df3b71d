# SPDX-License-Identifier: Apache-2.0
"""Threads that close, grow and use one buffer at the same time: one wins, nothing is freed twice."""

import sys
import threading
import time

import pytest

from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from python_resources import Plain
from support import (
    GRANULE,
    blocked,
    fill_granules,
    free_memory,
    granules_hold,
    in_context,
    race,
)

ROUNDS = 100


@pytest.fixture(autouse=True)
def switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def is_refusal(outcome):
    return isinstance(outcome, OwnershipError)


@pytest.mark.parametrize("threads", [2, 4])
def test_of_racing_closes_one_frees(resource, threads):
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        outcomes = race(*[buffer.close] * threads)
        assert outcomes.count(CloseResult.DONE) == 1
        assert set(outcomes) <= {CloseResult.DONE, CloseResult.IN_PROGRESS, CloseResult.NOTHING}
        assert buffer.ownership is Ownership.RELEASED
    assert free_memory() == free


def test_of_racing_closes_of_a_python_resource_one_asks(device):
    resource = Plain()
    for _ in range(ROUNDS):
        buffer = resource.allocate(512)
        outcomes = race(*[buffer.close] * 4)
        assert outcomes.count(CloseResult.DONE) == 1
        assert len(resource.asked) == 1
        resource.asked.clear()


def test_of_racing_closes_of_a_borrowed_buffer_one_drops_the_owner(device):
    for _ in range(ROUNDS):
        buffer = Buffer.from_handle(4096, 16, owner=object())
        outcomes = race(*[buffer.close] * 4)
        assert outcomes.count(CloseResult.DONE) == 1
        assert outcomes.count(CloseResult.NOTHING) == 3


@pytest.mark.parametrize("moving", [False, True], ids=["in place or moved", "moved"])
def test_close_against_grow(resource, moving):
    free = free_memory()
    winners = set()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        fill_granules(buffer)

        def grow(buffer=buffer):
            return resource.modify_allocation(buffer, 2 * GRANULE)

        if moving:
            with blocked(buffer):
                closed, grown = race(buffer.close, grow)
        else:
            closed, grown = race(buffer.close, grow)
        if isinstance(grown, Buffer):
            winners.add("grow")
            assert closed is CloseResult.NOTHING or is_refusal(closed), repr(closed)
            assert (buffer.ownership, buffer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
            assert granules_hold(grown, 1)
            assert grown.close() is CloseResult.DONE
        else:
            winners.add("close")
            assert is_refusal(grown), repr(grown)
            assert closed is CloseResult.DONE
            assert buffer.ownership is Ownership.RELEASED
        assert free_memory() == free


def test_grow_against_grow(resource):
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        fill_granules(buffer)
        outcomes = race(
            lambda b=buffer: resource.modify_allocation(b, 2 * GRANULE),
            lambda b=buffer: resource.modify_allocation(b, 3 * GRANULE),
            lambda b=buffer: resource.modify_allocation(b, 4 * GRANULE),
        )
        grown = [outcome for outcome in outcomes if isinstance(outcome, Buffer)]
        assert len(grown) == 1
        assert sum(map(is_refusal, outcomes)) == 2
        assert (buffer.ownership, buffer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
        assert granules_hold(grown[0], 1)
        grown[0].close()
        assert free_memory() == free


def test_growing_on_while_others_hold_the_old_buffers(resource):
    """One thread grows again and again; others close every buffer that was left behind, and read its state."""
    left_behind, done = [], threading.Event()

    def grower():
        try:
            buffer = resource.allocate(GRANULE)
            fill_granules(buffer)
            for granules in range(2, 40):
                left_behind.append(buffer)
                buffer = resource.modify_allocation(buffer, granules * GRANULE)
            return buffer
        finally:
            done.set()

    def closer():
        while not done.is_set():
            for buffer in left_behind[:-1]:
                assert buffer.close() is CloseResult.NOTHING
                assert buffer.ownership is Ownership.TRANSFERRED
                assert (buffer.handle, buffer.size) == (0, 0)
                repr(buffer)
            time.sleep(0)

    buffer, *others = race(in_context(grower), closer, closer)
    assert others == [None, None]
    assert granules_hold(buffer, 1)
    buffer.close()


def test_many_threads_use_one_resource(resource):
    free = free_memory()

    def work(seed):
        for round_ in range(15):
            buffer = resource.allocate(GRANULE)
            fill_granules(buffer, seed=seed + round_)
            buffer = resource.modify_allocation(buffer, 3 * GRANULE)
            assert granules_hold(buffer, 1, seed=seed + round_)
            assert buffer.close() is CloseResult.DONE

    assert race(*[in_context(lambda s=seed: work(s * 1000)) for seed in range(4)]) == [None] * 4
    assert free_memory() == free


def test_reading_a_buffer_that_is_being_closed(resource):
    """Whatever a reader sees, it sees no mixture that would name freed memory as open."""
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        address = buffer.handle

        def read(buffer=buffer, address=address):
            for _ in range(20):
                handle, size = buffer.handle, buffer.size
                assert handle in (0, address)
                assert size in (0, GRANULE)
                assert buffer.ownership in (Ownership.OWNED, Ownership.RELEASED)
                repr(buffer)
                hash(buffer)

        assert race(buffer.close, read) == [CloseResult.DONE, None]


def test_stream_changes_against_close(resource, device):
    """A close goes on with the stream that it began with, also when that is let go of meanwhile."""
    created = [device.create_stream() for _ in range(2)]
    for round_ in range(ROUNDS):
        buffer = resource.allocate(GRANULE, stream=created[round_ % 2])

        def change(buffer=buffer):
            for stream in (*created, LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM) * 3:
                try:
                    buffer.set_deallocation_stream(stream)
                except OwnershipError:
                    return "refused"
            return "changed"

        closed, *changed = race(in_context(buffer.close), in_context(change), in_context(change))
        assert closed is CloseResult.DONE
        assert set(changed) <= {"refused", "changed"}
    for stream in created:
        stream.close()
