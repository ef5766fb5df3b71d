# SPDX-License-Identifier: Apache-2.0
"""Failures with effect, several at once, logs at once, and requests for a failure that make no sense."""

import ctypes
import gc
import threading

import pytest

import cuda_driver_sim as sim
from sim_helpers import captured, cu, ok, read

driver = ctypes.CDLL("libcuda.so.1")  # cuda.bindings gives no pointer with an error


def fails(calls=6):
    """Return which of so many calls are answered with an error, counted from 1."""
    return [n for n in range(1, calls + 1) if cu.cuMemGetInfo()[0] != cu.CUresult.CUDA_SUCCESS]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
@pytest.mark.parametrize("second", [1, 2, 3, 4])
def test_two_on_one_function_each_count_every_call(first, second):
    with sim.fail("cuMemGetInfo", nth=first) as outer, sim.fail("cuMemGetInfo", nth=second) as inner:
        assert fails() == sorted({first, second})
    # A call that both match is the inner one's.
    assert (outer.fired, inner.fired) == (int(first != second), 1)


def test_each_counts_from_its_own_entering():
    with sim.fail("cuMemGetInfo", nth=4) as outer:
        assert fails(2) == []
        with sim.fail("cuMemGetInfo", nth=1) as inner:
            assert fails(3) == [1, 2]  # the inner one's first, the outer one's fourth
    assert (outer.fired, inner.fired) == (1, 1)


@pytest.mark.parametrize("sticky_is_outer", [True, False])
def test_beside_a_sticky_one(sticky_is_outer):
    sticky = sim.fail("cuMemGetInfo", nth=2, result="CUDA_ERROR_UNKNOWN", sticky=True)
    once = sim.fail("cuMemGetInfo", nth=3)
    outer, inner = (sticky, once) if sticky_is_outer else (once, sticky)
    with outer, inner:
        answers = [cu.cuMemGetInfo()[0].value for _ in range(4)]
    assert answers == ([0, 999, 2, 999] if sticky_is_outer else [0, 999, 999, 999])
    assert (sticky.fired, once.fired) == ((2, 1) if sticky_is_outer else (3, 0))


def test_disarmed_in_any_order():
    first, second = sim.fail("cuMemGetInfo", nth=2), sim.fail("cuMemGetInfo", nth=3)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert fails() == [3]
    second.__exit__(None, None, None)
    assert fails() == []


def test_reset_leaves_failures_and_logs_alone():
    with sim.logged() as log, sim.fail("cuMemGetInfo", nth=3) as failure:
        assert fails(2) == []
        sim.reset()
        assert fails(2) == [1]
        sim.reset()
        assert failure.fired == 1
    assert failure.fired == 1
    assert len(log.calls) == 4
    assert sim.calls() == {}
    assert not sim.refused()


def test_decorator_arms_anew_for_each_call():
    @sim.fail("cuMemGetInfo", nth=2)
    def decorated():
        return fails(3)

    assert (decorated(), decorated(), fails(3)) == ([2], [2], [])


def test_a_failure_is_armed_once():
    failure = sim.fail("cuMemGetInfo")
    with failure:
        with pytest.raises(RuntimeError, match="armed once"), failure:
            pass
        assert fails(2) == [1]
    with pytest.raises(RuntimeError, match="armed once"), failure:
        pass
    assert failure.fired == 1


def test_a_failure_without_with_is_warned_about():
    with pytest.warns(RuntimeWarning, match="cuMemGetInfo.*never armed"):
        sim.fail("cuMemGetInfo")
        gc.collect()
    assert fails(1) == []


def allocate(size=64):
    """Return the answer and what it has set the pointer to."""
    pointer = ctypes.c_uint64(0)
    return driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer.value


def allocations():
    return sim.live().get("device_allocation", 0)


def test_an_allocation_with_effect():
    before = allocations()
    with sim.fail("cuMemAlloc", effect=True) as failure:
        result, pointer = allocate()
        assert (result, failure.fired) == (2, 1)
        assert allocations() == before + 1
    assert sim.refused() == (sim.Call("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"),)
    ok(cu.cuMemsetD8(pointer, 3, 64))
    assert read(pointer, 64) == bytes([3] * 64)
    ok(cu.cuMemFree(pointer))
    assert allocations() == before


def test_a_launch_with_effect_runs(stream):
    pointer = ok(cu.cuMemAlloc(8))
    ok(cu.cuMemsetD8(pointer, 0, 8))
    graph = captured(stream, lambda: cu.cuMemsetD8Async(pointer, 1, 8, stream))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    for effect in False, True:
        with sim.fail("cuGraphLaunch", result="CUDA_ERROR_UNKNOWN", effect=effect):
            assert cu.cuGraphLaunch(executable, stream)[0] == cu.CUresult.CUDA_ERROR_UNKNOWN
        ok(cu.cuStreamSynchronize(stream))
        assert read(pointer, 8) == bytes([effect] * 8)
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuMemFree(pointer))


def test_with_effect_from_the_nth_call_on():
    before = allocations()
    pointers = [ok(cu.cuMemAlloc(8)) for _ in range(4)]
    with sim.fail("cuMemFree", 2, "CUDA_ERROR_UNKNOWN", sticky=True, effect=True) as failure:
        answers = [cu.cuMemFree(pointer)[0].value for pointer in pointers]
    assert (answers, failure.fired) == ([0, 999, 999, 999], 3)
    assert allocations() == before


def test_with_effect_what_the_driver_refuses_itself_is_answered_so_too():
    before = allocations()
    with sim.fail("cuMemAlloc", result="CUDA_ERROR_UNKNOWN", effect=True):
        assert allocate(0) == (999, 0)
    assert allocations() == before
    assert allocate(0) == (1, 0)


@pytest.mark.parametrize("effects", [(True, False), (False, True), (True, True), (False, False)])
def test_the_one_that_answers_says_whether_the_call_is_made(effects):
    outer = sim.fail("cuMemAlloc", nth=2, result="CUDA_ERROR_UNKNOWN", sticky=True, effect=effects[0])
    inner = sim.fail("cuMemAlloc", nth=3, effect=effects[1])
    with outer, inner:
        made = [allocate() for _ in range(4)]
    assert [result for result, _ in made] == [0, 999, 2, 999]
    assert [pointer != 0 for _, pointer in made] == [True, effects[0], effects[1], effects[0]]
    assert (outer.fired, inner.fired) == (2, 1)
    for _, pointer in made:
        if pointer:
            ok(cu.cuMemFree(pointer))


def test_decorator_with_effect():
    @sim.fail("cuMemAlloc", effect=True)
    def decorated():
        return allocate()

    for _ in range(2):
        result, pointer = decorated()
        assert result == 2
        ok(cu.cuMemFree(pointer))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((cu.cuMemAlloc,), TypeError, "name must be .* a str"),
        ((b"cuMemAlloc",), TypeError, "name must be .* a str"),
        (("cuMemAlloc", "2"), TypeError, "nth must be an integer, not '2'"),
        (("cuMemAlloc", 1.0), TypeError, "nth must be an integer, not 1.0"),
        (("cuMemAlloc", 0), ValueError, "not 0"),
        (("cuMemAlloc", -1), ValueError, "not -1"),
        (("cuMemAlloc", 1 << 70), ValueError, "64 bits"),
        (("cuMemAlloc", 1, cu.CUresult.CUDA_ERROR_UNKNOWN), TypeError, "result must be .* a str"),
        (("cuMemAlloc", 1, "CUDA_SUCCESS"), ValueError, "'CUDA_SUCCESS' is not the name of an error"),
        (("cuMemAlloc_v2",), ValueError, "did you mean 'cuMemAlloc'"),
        (("cuMemAllocAsync_ptsz",), ValueError, "did you mean 'cuMemAllocAsync'"),
        (("cuMemAlocAsync",), ValueError, "did you mean 'cuMemAllocAsync'"),
        (("typo",), ValueError, "'typo' is not a function of the simulated driver$"),
        (("cuMemAlloc\0",), ValueError, "not a function"),
        (("",), ValueError, "not a function"),
    ],
)
def test_bad_requests_are_refused_without_a_with_block(arguments, error, text):
    with pytest.raises(error, match=text):
        sim.fail(*arguments)


def test_nested_logs_have_their_own_calls():
    with sim.logged() as outer:
        ok(cu.cuMemGetInfo())
        with sim.logged() as inner:
            ok(cu.cuCtxGetDevice())
            with sim.logged() as innermost:
                pass
        ok(cu.cuCtxSynchronize())
        assert len(inner.calls) == 1
    names = [[call.name for call in log.calls] for log in (outer, inner, innermost)]
    assert names == [["cuMemGetInfo", "cuCtxGetDevice", "cuCtxSynchronize"], ["cuCtxGetDevice"], []]
    assert outer.calls.total == 3


def test_logs_overlap_in_any_way(context):
    entered, left = threading.Event(), threading.Event()
    seen = []

    def other():
        with sim.logged() as log:
            ok(cu.cuDeviceGetCount())
            entered.set()
            left.wait(30)
        seen.extend(call.name for call in log.calls)

    thread = threading.Thread(target=other)
    with sim.logged() as log:
        thread.start()
        entered.wait(30)
        ok(cu.cuMemGetInfo())
    left.set()
    thread.join()
    assert seen == [call.name for call in log.calls] == ["cuDeviceGetCount", "cuMemGetInfo"]


def test_the_log_without_a_block():
    assert sim.log() == ()
    sim.start_log()
    ok(cu.cuMemGetInfo())
    with sim.logged():
        ok(cu.cuCtxGetDevice())
    assert [call.name for call in sim.log()] == ["cuMemGetInfo", "cuCtxGetDevice"]
    assert len(sim.stop_log()) == 2
    ok(cu.cuMemGetInfo())
    assert len(sim.log()) == len(sim.stop_log()) == 2
    sim.start_log()
    assert sim.stop_log() == ()
