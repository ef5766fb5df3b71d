# SPDX-License-Identifier: Apache-2.0
"""Failures with threads reported in the field, a test each, named by the id of its case."""

import ctypes
import gc
import sys
import threading
import time

import pytest

from buffer_kinds import SOURCES, WAITING
from cuda.bindings import driver
from cuda.core import Allocation, Buffer, CloseResult, LegacyPinnedMemoryResource, Ownership, OwnershipError
from cuda.core._memory._queue import drain
from held_work import Waiting
from peer_process import Peer
from shared_pools import SIZE, make, opened
from support import (
    GRANULE,
    blocked,
    check,
    child_output,
    fill_granules,
    free_memory,
    granules_hold,
    in_context,
    race,
    read,
    still_allocated,
    write,
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


@pytest.fixture
def shared(device, stream):
    """A buffer with a pattern, and its pool as it is opened by others."""
    pool = make()
    buffer = pool.allocate(SIZE, stream=stream)
    stream.sync()
    write(buffer.handle, b"pattern")
    there = opened(pool)
    yield buffer, there
    there.close()
    buffer.close()
    pool.close()


@pytest.mark.usefixtures("switch_threads_often")
def test_thr_01_threads_import_and_drop_one_descriptor(device, shared, stream):
    """No lock of the library is waited for with the GIL held, nor is Python run under one."""
    buffer, there = shared
    name = buffer.ipc_descriptor

    class Noisy:
        def __del__(self):  # Python runs where a buffer is dropped, and comes back into the library
            Buffer.from_ipc_descriptor(there, name, stream=stream).close()

    def work():
        for number in range(ROUNDS):
            imported = Buffer.from_ipc_descriptor(there, name, stream=stream)
            cycle = [imported, Noisy()]
            cycle.append(cycle)
            del imported, cycle
            if number % 10 == 0:
                gc.collect()
        return "done"

    assert race(*[in_context(work)] * 5) == ["done"] * 5
    gc.collect()


@pytest.mark.usefixtures("switch_threads_often")
def test_thr_02_an_import_in_hand_is_always_mapped(device, shared):
    buffer, there = shared
    name = buffer.ipc_descriptor

    def work(seed):
        own = device.create_stream()
        for number in range(4 * ROUNDS):
            imported = Buffer.from_ipc_descriptor(there, name, stream=own)
            assert read(imported.handle, 7) == b"pattern"
            if (number + seed) % 3:
                imported.close()
            del imported
        own.close()
        return "done"

    threads = [in_context(lambda seed=seed: work(seed)) for seed in range(4)]
    assert race(*threads) == ["done"] * 4


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.usefixtures("switch_threads_often")
def test_thr_02_the_last_close_against_an_import(device, shared, count):
    """Few threads that do nothing else: one share or none most of the time, so that nearly every close frees."""
    buffer, there = shared
    name = buffer.ipc_descriptor
    until = time.monotonic() + 1.5

    def work():
        own = device.create_stream()
        number = 0
        while time.monotonic() < until:
            imported = Buffer.from_ipc_descriptor(there, name, stream=own)
            check(driver.cuMemsetD8(imported.handle, 1, 1))
            imported.close()
            number += 1
        own.close()
        return number

    done = race(*[in_context(work)] * count)
    assert all(isinstance(number, int) and number > 20 for number in done), done


def test_thr_02_an_import_in_hand_is_always_mapped_in_another_process(shared):
    buffer, _ = shared
    peer = Peer("spawn")
    peer.call("start")
    peer.call("keep", "pool", buffer.memory_resource)
    before = peer.call("held")
    assert peer.call("race_imports", buffer.memory_resource, buffer.ipc_descriptor, 1.5, b"pattern") > 20
    assert peer.call("held") == before
    peer.call("drop", "pool")
    assert peer.end() == 0


POOLS_IN_THREADS = """
import gc, sys, threading, time
from cuda.bindings import driver
from cuda.core import Buffer, Device
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from shared_pools import descriptors, make, opened
from support import check
sys.setswitchinterval(1e-5)
Device(0).set_current()
context = check(driver.cuCtxGetCurrent())
make().close()
before = len(descriptors())
until = time.monotonic() + 2.5
failures, rounds = [], []

def work(number):
    try:
        check(driver.cuCtxSetCurrent(context))
        stream = Device(0).create_stream()
        count = 0
        while time.monotonic() < until:
            pool = make(("device", "pinned")[number % 2])
            handle = pool.allocation_handle
            buffer = pool.allocate(4096, stream=stream)
            there = opened(pool)
            imported = Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream)
            if count % 2:
                there.close()
                pool.close()
            if count % 3:
                imported.close()
                buffer.close()
            del pool, there, handle, buffer, imported
            count += 1
        stream.close()
        rounds.append(count)
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert min(rounds) > 5, rounds
gc.collect()
assert drain(20)
assert len(descriptors()) == before, (len(descriptors()), before)
print({kind: number for kind, number in _counters.live().items()})
"""


def test_thr_03_shareable_pools_are_made_and_destroyed_in_four_threads():
    assert child_output(POOLS_IN_THREADS) == "{}\n"


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
