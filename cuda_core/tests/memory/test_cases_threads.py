# SPDX-License-Identifier: Apache-2.0
"""Failures with threads reported in the field, a test each, named by the id of its case (those without pools)."""

import ctypes
import gc
import sys
import threading

import pytest

from buffer_kinds import SOURCES, WAITING
from cuda.bindings import driver
from cuda.core import Allocation, Buffer, CloseResult, LegacyPinnedMemoryResource, Ownership, OwnershipError
from cuda.core._memory._queue import drain
from held_work import Waiting
from support import (
    GRANULE,
    blocked,
    check,
    fill_granules,
    free_memory,
    granules_hold,
    in_context,
    race,
    still_allocated,
)

ROUNDS = 50


@pytest.fixture
def switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Callback:
    """A host function in Python: the driver calls it in stream order, and it needs the GIL."""

    def __init__(self, stream):
        self.started, self.go_on, self.ran = threading.Event(), threading.Event(), False

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def call(_):
            self.started.set()
            self.go_on.wait(20)
            self.ran = True

        self.function = call
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        assert launch(ctypes.c_void_p(int(stream.handle)), call, None) == 0


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in WAITING for how in ("close", "with", "last loan", "close after a queued one")]
    + [("virtual", "moving grow")],
)
def test_thr_04_a_release_waits_without_the_gil(device, kind, how):
    source = SOURCES[kind](device)
    stream = device.create_stream()
    buffer = source.allocate(stream=stream)
    part = buffer[0:16]
    callback = Callback(stream)

    def release():
        device.set_current()
        if how == "moving grow":
            part.close()
            with blocked(buffer):
                source.resource.modify_allocation(buffer, 2 * GRANULE).close()
        elif how == "last loan":
            assert buffer.close() is CloseResult.LENT
            part.close()
            stream.sync()
        elif how == "close after a queued one":
            part.close()
            assert buffer.close(wait=False) is CloseResult.QUEUED
            source.allocate().close(stream)
        else:
            part.close()
            if how == "with":
                with buffer:
                    pass
            else:
                assert buffer.close() is CloseResult.DONE
        return callback.ran

    releasing = Waiting(release)
    assert callback.started.wait(20)
    assert releasing.waits(0.05)
    callback.go_on.set()
    assert releasing.result() is True
    assert drain(20)
    stream.close()


def outcome_of_transfer(outcome):
    return isinstance(outcome, (Buffer, Allocation))


@pytest.mark.usefixtures("switch_threads_often")
@pytest.mark.parametrize("other", ["close", "grow", "detach"])
@pytest.mark.parametrize("moving", [False, True], ids=["in place or moved", "moved"])
def test_thr_05_of_a_grow_and_another_transition_one_wins(resource, other, moving):
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        fill_granules(buffer)
        rivals = {
            "close": buffer.close,
            "grow": in_context(lambda b=buffer: resource.modify_allocation(b, 3 * GRANULE)),
            "detach": buffer.detach,
        }
        grow = in_context(lambda b=buffer: resource.modify_allocation(b, 2 * GRANULE))
        if moving:
            with blocked(buffer):
                outcomes = race(grow, rivals[other])
        else:
            outcomes = race(grow, rivals[other])
        owners = [outcome for outcome in outcomes if outcome_of_transfer(outcome)]
        assert len(owners) <= 1
        for outcome in outcomes:
            assert (
                outcome_of_transfer(outcome)
                or outcome in tuple(CloseResult)
                or isinstance(outcome, OwnershipError)
            ), repr(outcome)
        if owners:
            assert buffer.ownership is Ownership.TRANSFERRED
            assert outcomes.count(CloseResult.DONE) == 0
            new = owners[0] if isinstance(owners[0], Buffer) else Buffer.adopt(owners[0])
            assert granules_hold(new, 1)
            assert new.close() is CloseResult.DONE
        else:
            assert outcomes[1] is CloseResult.DONE
            assert buffer.ownership is Ownership.RELEASED
        assert free_memory() == free


@pytest.mark.usefixtures("switch_threads_often")
@pytest.mark.parametrize("export", ["memoryview", "sub-buffer", "array view"])
def test_thr_06_loans_are_counted_without_a_loss(device, export):
    resource = LegacyPinnedMemoryResource()
    buffer = resource.allocate(4096)
    address = buffer.handle

    def borrow():
        for round_ in range(500):
            if export == "memoryview":
                view = memoryview(buffer)
                view[0] = round_ % 256
                view.release()
            elif export == "sub-buffer":
                buffer[0 : 1 + round_].close()
            else:
                buffer.array_view().close()
            assert buffer.loans >= 0

    assert race(*[borrow] * 8) == [None] * 8
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.usefixtures("switch_threads_often")
def test_thr_06_the_last_of_many_loans_frees_once(device):
    """The buffer is closed while they are open; the threads end them in any order."""
    source = SOURCES["python"](device)
    for round_ in range(60):
        buffer = source.allocate()
        parts = [buffer[0:16] for _ in range(8)]
        enders = [lambda p=part: p.close() for part in parts]
        outcomes = race(buffer.close, *enders)
        assert outcomes[0] in (CloseResult.LENT, CloseResult.DONE)
        assert outcomes[1:] == [CloseResult.DONE] * 8
        assert buffer.loans == 0
        assert source.frees() == round_ + 1
    del buffer, parts
    gc.collect()
    assert source.frees() == 60
    assert source.resource.held == {}


@pytest.mark.usefixtures("switch_threads_often")
def test_thr_06_loans_that_are_dropped(device):
    resource = LegacyPinnedMemoryResource()
    for _ in range(40):
        buffer = resource.allocate(4096)
        address = buffer.handle
        boxes = [[memoryview(buffer)] for _ in range(8)]
        assert buffer.loans == 8
        assert buffer.close() is CloseResult.LENT
        assert race(*[box.clear for box in boxes]) == [None] * 8
        assert buffer.loans == 0
        assert drain(20)  # a collection never waits: the memory may go back by the reaper
        assert not still_allocated(address)
    assert int(check(driver.cuCtxGetCurrent())) != 0
