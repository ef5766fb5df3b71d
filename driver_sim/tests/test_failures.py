# SPDX-License-Identifier: Apache-2.0
"""Several failures at once, several logs at once, and requests for a failure that make no sense."""

import gc
import threading

import pytest

import cuda_driver_sim as sim
from sim_helpers import cu, ok


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
