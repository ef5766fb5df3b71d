# SPDX-License-Identifier: Apache-2.0
"""Counts, refused calls, the log, and failures on request."""

import threading

import pytest

import cuda_driver_sim as sim
from sim_helpers import GRANULE, Mapped, cu, ok


def test_live_counts_each_kind(stream, pool):
    before = sim.live()
    memory = Mapped()
    plain = ok(cu.cuMemAlloc(16))
    host = ok(cu.cuMemAllocHost(16))
    event = ok(cu.cuEventCreate(0))
    pooled = ok(cu.cuMemAllocFromPoolAsync(16, pool, stream))
    new = {kind: count - before.get(kind, 0) for kind, count in sim.live().items()}
    assert {kind: count for kind, count in new.items() if count} == {
        "address_reservation": 1,
        "physical_allocation": 1,
        "mapping": 1,
        "device_allocation": 1,
        "host_allocation": 1,
        "event": 1,
        "pool_allocation": 1,
    }
    memory.close()
    ok(cu.cuMemFree(plain))
    ok(cu.cuMemFreeHost(host))
    ok(cu.cuEventDestroy(event))
    ok(cu.cuMemFreeAsync(pooled, stream))
    assert sim.live() == before


def test_implicit_objects_are_not_counted():
    before = sim.live()
    ok(cu.cuDeviceGetDefaultMemPool(0))
    ok(cu.cuStreamSynchronize(0))
    ok(cu.cuStreamSynchronize(2))
    assert sim.live() == before


def test_calls_have_no_version_suffix():
    sim.reset()
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(16))))
    cu.cuMemFree(77)
    assert sim.calls() == {"cuMemAlloc": 1, "cuMemFree": 2}
    sim.reset()
    assert sim.calls() == {}


@pytest.mark.simulation
def test_refused_leaves_out_not_ready(stream):
    sim.reset()
    assert cu.cuMemAlloc(0)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    with sim.hold():
        pointer = ok(cu.cuMemAlloc(16))
        ok(cu.cuMemsetD8Async(pointer, 1, 16, stream))
        assert cu.cuStreamQuery(stream)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    ok(cu.cuMemFree(pointer))
    assert sim.refused() == (sim.Call("cuMemAlloc", "CUDA_ERROR_INVALID_VALUE"),)
    assert sim.refused().total == 1


def test_refused_is_bounded_and_has_a_total():
    sim.reset()
    for _ in range(100_050):
        cu.cuMemAlloc(0)
    refused = sim.refused()
    assert (len(refused), refused.total) == (100_000, 100_050)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nth_call_fails_without_effect(nth):
    before = sim.live()
    with sim.fail("cuMemAlloc", nth=nth) as failure:
        answers = [cu.cuMemAlloc(16) for _ in range(4)]
        assert failure.fired == 1
    failed = [error == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY for error, _ in answers]
    assert failed == [i + 1 == nth for i in range(4)]
    assert sim.live()["device_allocation"] == before.get("device_allocation", 0) + 3
    for error, pointer in answers:
        if error == 0:
            ok(cu.cuMemFree(pointer))
    assert failure.fired == 1


def test_sticky_failure_lasts_until_the_end():
    with sim.fail("cuMemGetInfo", nth=2, result="CUDA_ERROR_UNKNOWN", sticky=True) as failure:
        results = [cu.cuMemGetInfo()[0] for _ in range(4)]
    assert results == [0, 999, 999, 999]
    assert failure.fired == 3
    ok(cu.cuMemGetInfo())


def test_failed_free_can_be_tried_again():
    pointer = ok(cu.cuMemAlloc(16))
    with sim.fail("cuMemFree", result="CUDA_ERROR_INVALID_VALUE"):
        assert cu.cuMemFree(pointer)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        ok(cu.cuMemFree(pointer))


def test_failures_are_process_wide(context):
    results = []

    def other():
        cu.cuCtxSetCurrent(context)
        results.append(cu.cuMemGetInfo()[0])

    with sim.fail("cuMemGetInfo"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert results == [2]


@pytest.mark.parametrize(
    "arguments", [("cuNoSuchFunction",), ("cuMemAlloc_v2",), ("cuMemAlloc", 1, "CUDA_NOTHING")]
)
def test_unknown_names(arguments):
    with pytest.raises(ValueError, match=arguments[-1]), sim.fail(*arguments):
        pass


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"nth": 0}, ValueError),
        ({"nth": -1}, ValueError),
        ({"nth": 2**64}, ValueError),
        ({"nth": 1.5}, TypeError),
        ({"nth": "1"}, TypeError),
        ({"result": "CUDA_SUCCESS"}, ValueError),
        ({"result": 2}, TypeError),
        ({"name": "cuMemAlloc\0"}, ValueError),
        ({"name": b"cuMemAlloc"}, TypeError),
        ({"name": None}, TypeError),
    ],
)
def test_failures_that_are_none(bad, error):
    with pytest.raises(error), sim.fail(**{"name": "cuMemAlloc", **bad}):
        pass
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(8))))


@pytest.mark.parametrize("measure", [sim.time_pool_pair, sim.time_virtual_round])
@pytest.mark.parametrize("bad", [{"rounds": 0}, {"rounds": -1}, {"size": 0}])
def test_nothing_is_measured_in_no_rounds(measure, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        measure(**bad)


def test_log_keeps_the_order():
    with sim.logged() as log:
        memory = Mapped()
        cu.cuMemAddressFree(memory.base, GRANULE)
        memory.close()
    assert [call.name for call in log.calls] == [
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAddressFree",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
    ]
    assert [call.result for call in log.calls].count("CUDA_ERROR_INVALID_VALUE") == 1


@pytest.mark.simulation
def test_absent_functions_are_absent():
    assert "cuMemMap" in sim.functions()
    assert "cuGetExportTable" not in sim.functions()
    with pytest.raises(RuntimeError):
        cu.cuMemAllocPitch(16, 16, 4)
