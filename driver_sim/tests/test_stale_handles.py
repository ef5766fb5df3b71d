# SPDX-License-Identifier: Apache-2.0
"""A destroyed stream or event is told from one that never was, as the H200 does, and harms nothing."""

import pytest

import cuda_driver_sim as sim
from sim_helpers import cu, ok

Result = cu.CUresult
NEVER_ONE = 0xDEAD0000


def stream_calls(handle, event, pointer):
    return {
        "synchronize": cu.cuStreamSynchronize(handle),
        "query": cu.cuStreamQuery(handle),
        "record": cu.cuEventRecord(event, handle),
        "wait": cu.cuStreamWaitEvent(handle, event, 0),
        "set": cu.cuMemsetD8Async(pointer, 1, 16, handle),
        "allocate": cu.cuMemAllocAsync(16, handle),
        "free": cu.cuMemFreeAsync(pointer, handle),
        "capture": cu.cuStreamBeginCapture(handle, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED),
        "destroy": cu.cuStreamDestroy(handle),
    }


def event_calls(handle, stream):
    return {
        "synchronize": cu.cuEventSynchronize(handle),
        "query": cu.cuEventQuery(handle),
        "record": cu.cuEventRecord(handle, stream),
        "wait": cu.cuStreamWaitEvent(stream, handle, 0),
        "destroy": cu.cuEventDestroy(handle),
    }


def results(calls):
    return {name: answer[0] for name, answer in calls.items()}


@pytest.fixture
def event():
    handle = ok(cu.cuEventCreate(2))
    yield handle
    ok(cu.cuEventDestroy(handle))


@pytest.fixture
def pointer():
    address = ok(cu.cuMemAlloc(16))
    yield address
    ok(cu.cuMemFree(address))


def test_destroyed_stream(event, pointer):
    stream = ok(cu.cuStreamCreate(1))
    ok(cu.cuStreamDestroy(stream))
    answers = results(stream_calls(stream, event, pointer))
    assert set(answers.values()) == {Result.CUDA_ERROR_INVALID_CONTEXT}, answers


def test_destroyed_stream_with_work_left(event, pointer):
    stream = ok(cu.cuStreamCreate(1))
    with sim.hold():
        ok(cu.cuMemsetD8Async(pointer, 1, 16, stream))
        ok(cu.cuStreamDestroy(stream))
        answers = results(stream_calls(stream, event, pointer))
    assert set(answers.values()) == {Result.CUDA_ERROR_INVALID_CONTEXT}, answers


def test_destroyed_event(stream):
    event = ok(cu.cuEventCreate(2))
    ok(cu.cuEventDestroy(event))
    answers = results(event_calls(event, stream))
    assert set(answers.values()) == {Result.CUDA_ERROR_CONTEXT_IS_DESTROYED}, answers


def test_what_never_was_one(stream, event, pointer):
    never = {
        *results(stream_calls(NEVER_ONE, event, pointer)).values(),
        *results(event_calls(NEVER_ONE, stream)).values(),
    }
    assert never == {Result.CUDA_ERROR_INVALID_HANDLE}


def test_a_new_handle_is_not_a_stale_one():
    stale = set()
    for _ in range(1000):
        stream, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(2))
        assert not {int(stream), int(event)} & stale
        stale |= {int(stream), int(event)}
        ok(cu.cuStreamDestroy(stream))
        ok(cu.cuEventDestroy(event))
