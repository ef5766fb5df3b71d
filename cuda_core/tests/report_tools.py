# SPDX-License-Identifier: Apache-2.0
"""The report of what is live, without what was there before the test."""

import gc

import attrs

from cuda.core import memory_report
from cuda.core._memory import _inventory, _left_behind
from cuda.core._memory._queue import drain

_first = [0]  # number of the first buffer of the test


def begin_report():
    gc.collect()
    drain(20)
    _left_behind.entries.clear()  # what tests before it have left on purpose, and freed behind the package's back
    _first[0] = _inventory.newest() + 1


def report():
    whole = memory_report()
    resources = [
        attrs.evolve(one, allocations=tuple(it for it in one.allocations if it.serial >= _first[0]))
        for one in whole.resources
    ]
    return attrs.evolve(
        whole,
        resources=tuple(one for one in resources if one.allocations),
        queued=tuple(it for it in whole.queued if it.serial >= _first[0]),
    )
