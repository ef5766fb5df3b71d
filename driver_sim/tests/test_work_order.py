# SPDX-License-Identifier: Apache-2.0
"""Work on streams: held back, run in order, ordered across streams, and caught when it comes too late."""

import contextlib
import ctypes
import os
import sys
import threading

import pytest

import cuda_driver_sim as sim
from sim_helpers import Mapped, cu, ok, read, run_python


@pytest.fixture
def pinned():
    address = int(ok(cu.cuMemAllocHost(4096)))
    ctypes.memset(address, 0, 4096)
    yield address
    ok(cu.cuMemFreeHost(address))


def byte(address):
    return ctypes.string_at(address, 1)[0]


def test_work_runs_when_submitted(pinned, stream):
    ok(cu.cuMemsetD8Async(pinned, 1, 16, stream))
    assert byte(pinned) == 1


@pytest.mark.parametrize("wait", ["stream", "event", "context", "run", "run all", "copy", "end"])
def test_held_work_runs_when_waited_for(wait, pinned, stream):
    event = ok(cu.cuEventCreate(2))
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 1, 16, stream))
        ok(cu.cuEventRecord(event, stream))
        assert byte(pinned) == 0
        assert cu.cuStreamQuery(stream)[0] == cu.cuEventQuery(event)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
        if wait == "stream":
            ok(cu.cuStreamSynchronize(stream))
        elif wait == "event":
            ok(cu.cuEventSynchronize(event))
        elif wait == "context":
            ok(cu.cuCtxSynchronize())
        elif wait == "run":
            sim.run(int(stream))
        elif wait == "run all":
            sim.run()
        elif wait == "copy":
            ok(cu.cuStreamWaitEvent(0, event, 0))
            read(pinned, 16)
        if wait != "end":
            assert byte(pinned) == 1
    assert byte(pinned) == 1
    ok(cu.cuEventDestroy(event))


def test_waiting_for_one_stream_leaves_the_other(pinned, stream, other_stream):
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 1, 1, stream))
        ok(cu.cuMemsetD8Async(pinned + 1, 1, 1, other_stream))
        ok(cu.cuStreamSynchronize(stream))
        assert (byte(pinned), byte(pinned + 1)) == (1, 0)


def test_events_order_across_streams(pinned, stream, other_stream):
    event = ok(cu.cuEventCreate(2))
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 5, 16, stream))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuStreamWaitEvent(other_stream, event, 0))
        ok(cu.cuMemcpyAsync(pinned + 64, pinned, 16, other_stream))
        ok(cu.cuStreamSynchronize(other_stream))
        assert byte(pinned + 64) == 5
    ok(cu.cuEventDestroy(event))


@pytest.mark.parametrize("flags", [0, 1])
def test_legacy_stream_waits_for_blocking_streams_only(flags, pinned):
    stream = ok(cu.cuStreamCreate(flags))
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 5, 16, stream))
        ok(cu.cuMemsetD8Async(pinned + 64, 6, 16, 0))
        ok(cu.cuStreamSynchronize(0))
        assert byte(pinned + 64) == 6
        assert byte(pinned) == (5 if flags == 0 else 0)
    ok(cu.cuStreamDestroy(stream))


def outcomes(pinned, ordered, interleave=sim.interleave):
    """Let two streams write the same bytes, for many seeds; with or without an event between them."""
    seen = []
    for seed in range(20):
        first, second = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
        event = ok(cu.cuEventCreate(2))
        with interleave(seed), sim.hold():
            ok(cu.cuMemsetD8Async(pinned, 1, 16, first))
            ok(cu.cuEventRecord(event, first))
            if ordered:
                ok(cu.cuStreamWaitEvent(second, event, 0))
            ok(cu.cuMemsetD8Async(pinned, 2, 16, second))
            ok(cu.cuCtxSynchronize())
        seen.append(byte(pinned))
        ok(cu.cuEventDestroy(event))
        ok(cu.cuStreamDestroy(first))
        ok(cu.cuStreamDestroy(second))
    return seen


def test_interleaving_shows_what_is_not_ordered(pinned):
    assert set(outcomes(pinned, ordered=False)) == {1, 2}
    assert set(outcomes(pinned, ordered=True)) == {2}


def test_the_same_seed_gives_the_same_order(pinned):
    assert outcomes(pinned, ordered=False) == outcomes(pinned, ordered=False)


def test_pageable_memory_is_read_at_once(pinned, stream):
    source = ctypes.create_string_buffer(b"first")
    with sim.hold():
        ok(cu.cuMemcpyAsync(pinned, ctypes.addressof(source), 5, stream))
        source.value = b"other"
    assert ctypes.string_at(pinned, 5) == b"first"


def test_host_function_may_wait_for_the_submitting_thread(pinned, stream):
    program = """
import ctypes, threading
import cuda_driver_sim as sim; sim.activate()
from cuda.bindings import driver as cu
cu.cuInit(0); cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
gate = threading.Event(); order = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (gate.wait(20), order.append("callback"))[1])
stream = cu.cuStreamCreate(1)[1]
assert cu.cuLaunchHostFunc(stream, cu.CUhostFn(_ptr=ctypes.addressof(callback)), 0)[0] == 0
assert cu.cuStreamQuery(stream)[0] == 600
order.append("main"); gate.set()
assert cu.cuStreamSynchronize(stream)[0] == 0
print(order)
"""
    done = run_python(program)
    assert done.stdout == "['main', 'callback']\n", done.stderr


@pytest.mark.parametrize("wait", [True, False])
def test_a_free_before_the_last_use_is_caught(wait):
    program = """
import sys
import cuda_driver_sim as sim; sim.activate()
from sim_helpers import *
ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
stream = ok(cu.cuStreamCreate(1)); memory = Mapped()
with sim.hold():
    ok(cu.cuMemsetD8Async(memory.base, 1, 16, stream))
    if sys.argv[1] == "True":
        ok(cu.cuStreamSynchronize(stream))
    memory.close()
    print(cu.cuStreamSynchronize(stream)[0].name)
print(cu.cuMemAlloc(16)[0].name)
"""
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = run_python(program, str(wait), env=env)
    expected = "CUDA_SUCCESS" if wait else "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert done.stdout == f"{expected}\n{expected}\n", done.stderr


def test_frees_of_plain_and_host_memory_wait(pinned, stream):
    for allocate, free in ((cu.cuMemAlloc, cu.cuMemFree), (cu.cuMemAllocHost, cu.cuMemFreeHost)):
        ctypes.memset(pinned, 0, 16)
        memory = int(ok(allocate(64)))
        with sim.hold():
            ok(cu.cuMemsetD8Async(pinned, 1, 16, stream))
            ok(free(memory))
            assert byte(pinned) == 1


def test_unmapping_does_not_wait(pinned, stream):
    memory = Mapped()
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 1, 16, stream))
        memory.close()
        assert byte(pinned) == 0


def test_threads_have_their_own_default_stream(pinned, context):
    seen = []

    def other():
        cu.cuCtxSetCurrent(context)
        ok(cu.cuMemsetD8Async(pinned, 1, 1, 2))
        seen.append(ok(cu.cuStreamGetId(2)))

    with sim.hold():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        ok(cu.cuStreamSynchronize(2))
        assert byte(pinned) == 0
        seen.append(ok(cu.cuStreamGetId(2)))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("bad", [sys.maxsize, -1, 2**64, 2**64 + 1])
def test_run_wants_a_stream(bad):
    with pytest.raises(ValueError, match=str(bad)):
        sim.run(bad)


def test_null_is_the_legacy_stream_to_run(pinned, stream):
    with sim.hold():
        ok(cu.cuMemsetD8Async(pinned, 1, 1, stream))
        sim.run(0)
        assert byte(pinned) == 0
        sim.run(None)
        assert byte(pinned) == 1


def test_a_stream_that_cannot_be_used_is_one_all_the_same(context):
    ok(cu.cuCtxSetCurrent(0))
    with pytest.raises(RuntimeError, match="stream 0 cannot be run: CUDA_ERROR_INVALID_CONTEXT"):
        sim.run(0)
    ok(cu.cuCtxSetCurrent(context))


def test_nested_interleaving_goes_back_to_the_outer_one(pinned):
    alone = outcomes(pinned, ordered=False)

    @contextlib.contextmanager
    def nested(seed):
        with sim.interleave(seed):
            with sim.interleave(seed + 1):
                pass
            yield

    assert outcomes(pinned, ordered=False, interleave=nested) == alone


@pytest.mark.parametrize(("bad", "error"), [("a", TypeError), (1.5, TypeError), (2**64, ValueError)])
def test_seeds_that_are_none(bad, error):
    with pytest.raises(error, match="seed"), sim.interleave(bad):
        pass
