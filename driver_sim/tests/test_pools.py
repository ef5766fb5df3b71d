# SPDX-License-Identifier: Apache-2.0
"""Pools in the order of streams: who may use freed memory again, and when it is counted."""

import bisect
from random import Random

import pytest

import cuda_driver_sim as sim
from sim_helpers import cu, ok, run_test_program

ATTRIBUTE = cu.CUmemPool_attribute


def used(pool):
    return int(ok(cu.cuMemPoolGetAttribute(pool, ATTRIBUTE.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))


def reserved(pool):
    return int(ok(cu.cuMemPoolGetAttribute(pool, ATTRIBUTE.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)))


def test_used_memory_falls_with_the_call_and_memory_returns_with_the_work(pool, stream):
    pointer = ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream))
    with sim.hold():
        ok(cu.cuMemFreeAsync(pointer, stream))
        assert used(pool) == 0
        assert sim.live()["pool_allocation"] == 1
        sim.run(int(stream))
        assert "pool_allocation" not in sim.live()


@pytest.mark.parametrize("who", ["same stream", "other stream", "behind an event"])
def test_reuse_of_memory_whose_free_waits(who, pool, stream, other_stream):
    event = ok(cu.cuEventCreate(2))
    first = int(ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream)))
    with sim.hold():
        ok(cu.cuMemFreeAsync(first, stream))
        ok(cu.cuEventRecord(event, stream))
        taker = stream if who == "same stream" else other_stream
        if who == "behind an event":
            ok(cu.cuStreamWaitEvent(other_stream, event, 0))
        second = int(ok(cu.cuMemAllocFromPoolAsync(4096, pool, taker)))
        assert (second == first) == (who != "other stream")
    ok(cu.cuMemFreeAsync(second, taker))
    ok(cu.cuEventDestroy(event))


def test_an_event_before_the_free_does_not_help(pool, stream, other_stream):
    event = ok(cu.cuEventCreate(2))
    first = int(ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream)))
    with sim.hold():
        ok(cu.cuMemsetD8Async(first, 1, 16, stream))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuMemFreeAsync(first, stream))
        ok(cu.cuStreamWaitEvent(other_stream, event, 0))
        second = int(ok(cu.cuMemAllocFromPoolAsync(4096, pool, other_stream)))
        assert second != first
    ok(cu.cuMemFreeAsync(second, other_stream))
    ok(cu.cuEventDestroy(event))


def test_blocks_never_overlap(pool, stream):
    import random

    random.seed(1)
    live = {}
    for step in range(5000):
        if live and random.random() < 0.5:
            pointer = random.choice(list(live)) if step % 50 == 0 else next(iter(live))
            del live[pointer]
            ok(cu.cuMemFreeAsync(pointer, stream))
        else:
            size = random.choice([1, 255, 256, 257, 5000, 70_000, 3 << 20])
            pointer = int(ok(cu.cuMemAllocFromPoolAsync(size, pool, stream)))
            live[pointer] = size
    ends = sorted((pointer, pointer + size) for pointer, size in live.items())
    assert all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
    for pointer in live:
        ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (used(pool), reserved(pool)) == (0, 0)


def test_memory_runs_out_and_comes_back(pool, stream):
    total = int(ok(cu.cuMemGetInfo())[1])
    pointers = []
    while True:
        error, pointer = cu.cuMemAllocFromPoolAsync(512 << 20, pool, stream)
        if error != 0:
            break
        pointers.append(pointer)
    assert error == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert len(pointers) == total // (512 << 20)
    for pointer in pointers:
        ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert int(ok(cu.cuMemGetInfo())[0]) == total


def test_hundreds_of_pools():
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pools = [ok(cu.cuMemPoolCreate(properties)) for _ in range(500)]
    assert len({int(pool) for pool in pools}) == 500
    for pool in pools:
        ok(cu.cuMemPoolDestroy(pool))


@pytest.mark.parametrize("seed", range(3))
def test_allocations_never_overlap_and_every_byte_comes_back(seed, pool, stream):
    # Sizes repeat on purpose: a block that was freed last is given out again as it is.
    random = Random(seed)
    sizes = [1, 256, 257, 4096, 70_000, 3 << 20]
    starts, size_at = [], {}
    for _ in range(8000):
        if len(starts) < 200 and random.random() < 0.52:
            size = random.choice(sizes)
            start = int(ok(cu.cuMemAllocFromPoolAsync(size, pool, stream)))
            at = bisect.bisect(starts, start)
            assert at == 0 or starts[at - 1] + size_at[starts[at - 1]] <= start
            assert at == len(starts) or start + size <= starts[at]
            starts.insert(at, start)
            size_at[start] = size
        elif starts:
            start = starts.pop(random.randrange(len(starts)))
            del size_at[start]
            ok(cu.cuMemFreeAsync(start, stream))
            assert cu.cuMemFreeAsync(start, stream)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    for start in starts:
        ok(cu.cuMemFreeAsync(start, stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert (used(pool), reserved(pool)) == (0, 0)


FREE_AND_RESET = """
from sim_helpers import *
start()
pool = make_pool(); stream = ok(cu.cuStreamCreate(1))
pointer = ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream))
with sim.hold():
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuDevicePrimaryCtxReset(0))
ok(cu.cuMemPoolDestroy(pool))
print(sim.live())
"""


def test_a_free_that_waits_when_its_context_ends_has_happened():
    assert run_test_program(FREE_AND_RESET) == "{}\n"


def test_memory_of_a_managed_pool_takes_no_advice(stream):
    """As an H200 answers; for a node of the host it says yes and does nothing."""
    kinds = cu.CUmemLocationType
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    properties.location.type = kinds.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ok(cu.cuMemPoolCreate(properties))
    pointer = ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream))
    preferred = cu.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
    prefer = cu.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
    answers = {
        kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA: cu.CUresult.CUDA_SUCCESS,
        kinds.CU_MEM_LOCATION_TYPE_HOST: cu.CUresult.CUDA_ERROR_NOT_SUPPORTED,
        kinds.CU_MEM_LOCATION_TYPE_DEVICE: cu.CUresult.CUDA_ERROR_NOT_SUPPORTED,
    }
    for kind, answer in answers.items():
        place = cu.CUmemLocation()
        place.type = kind
        assert cu.cuMemAdvise(pointer, 4096, prefer, place)[0] == answer
        assert ok(cu.cuMemRangeGetAttribute(4, preferred, pointer, 4096)) == kinds.CU_MEM_LOCATION_TYPE_DEVICE
    for name in ("SET_READ_MOSTLY", "UNSET_READ_MOSTLY", "SET_ACCESSED_BY", "UNSET_PREFERRED_LOCATION"):
        advice = getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{name}")
        assert cu.cuMemAdvise(pointer, 4096, advice, place)[0] == cu.CUresult.CUDA_ERROR_NOT_SUPPORTED
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuMemPoolDestroy(pool))
