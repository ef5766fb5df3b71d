# SPDX-License-Identifier: Apache-2.0
"""The driver itself costs little, also with many live objects. Bounds leave room for a busy machine."""

import cuda_driver_sim as sim
from sim_helpers import cu, ok


def best(measure):
    return min(measure() for _ in range(7))


def test_pool_pair():
    assert best(lambda: sim.time_pool_pair(200_000)) < 1.0


def test_virtual_round():
    assert best(lambda: sim.time_virtual_round(2000)) < 30


def test_a_million_live_allocations_cost_no_more_than_a_thousand(stream):
    pointers = []
    times = {}
    for count in (1_000, 1_000_000):
        while len(pointers) < count:
            pointers.append(ok(cu.cuMemAllocAsync(256, stream)))
        times[count] = best(lambda: sim.time_pool_pair(100_000))
    for pointer in pointers:
        ok(cu.cuMemFreeAsync(pointer, stream))
    assert times[1_000_000] < 2 * times[1_000]
