# SPDX-License-Identifier: Apache-2.0
"""Eight threads, ten thousand rounds of every pair of operations on one buffer: one owner, one free, no loan lost.

A round is one allocation on which all eight threads work, four with one operation and four with the other. The
threads walk along a row of allocations together; where one of them waits in the driver, the others catch up.
"""

import gc
import itertools
import os
import sys
import threading
import time

import pytest

from cuda.core import Allocation, Buffer, CloseResult, LegacyPinnedMemoryResource, Ownership, OwnershipError
from cuda.core import VirtualMemoryResource as Virtual
from support import GRANULE, JOIN_SECONDS, check, driver, free_memory

THREADS = 8
ROUNDS = int(os.environ.get("CUDA_CORE_RACE_ROUNDS", "10000"))  # fewer under a sanitizer
ROW = 50  # allocations at a time; short, so that no thread runs far ahead
REFUSED, LENT = "refused", "lent and returned"
LOSSES = (REFUSED, CloseResult.NOTHING, CloseResult.IN_PROGRESS)


class Round:
    """One allocation. ``buffer`` is what the operations work on; an adopted one takes the place of the first."""

    def __init__(self, resource, size, detached):
        self.resource, self.size = resource, size
        self.buffer = self.first = resource.allocate(size)
        self.allocation = self.buffer.detach() if detached else None


def close(round_):
    return round_.buffer.close()


def detach(round_):
    return round_.buffer.detach()


def grow(round_):
    return round_.resource.modify_allocation(round_.buffer, 2 * round_.size)


def lend(round_):
    part = round_.buffer[0:8]
    assert part.handle
    assert part.close() is CloseResult.DONE
    return LENT


def adopt(round_):
    round_.buffer = buffer = Buffer.adopt(round_.allocation)
    return buffer


OPERATIONS = (close, detach, grow, lend, adopt)
PAIRS = list(itertools.combinations_with_replacement(OPERATIONS, 2))


def walk(row, operation, outcomes, start, awake):
    start.wait()
    # Who comes last to the barrier goes on at once, and could be through before the others have woken.
    awake.append(True)
    while len(awake) < THREADS:
        time.sleep(0)
    for round_ in row:
        try:
            outcomes.append(operation(round_))
        except (OwnershipError, BufferError):
            outcomes.append(REFUSED)


def judge(round_, found):
    """Check what became of one allocation, and give it back if it was not."""
    made = [outcome for outcome in found if isinstance(outcome, (Buffer, Allocation))]
    holders = {
        id(holder): holder for holder in (round_.first, round_.allocation, *made) if holder is not None
    }
    owners = [holder for holder in holders.values() if holder.ownership is Ownership.OWNED]
    # Sub-buffers are closed inside `lend`, so these are closes of the allocation itself.
    returned = found.count(CloseResult.DONE) + found.count(CloseResult.LENT)
    assert len(owners) + returned == 1, found
    for holder in holders.values():
        assert holder.loans == 0, found
    for owner in owners:
        buffer = Buffer.adopt(owner) if isinstance(owner, Allocation) else owner
        assert buffer.close() is CloseResult.DONE


@pytest.fixture
def switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("switch_threads_often")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].__name__} and {pair[1].__name__}")
def test_of_two_operations_one_wins(device, pair):
    # Only virtual memory grows. Elsewhere the cheaper pinned memory lets the threads meet more often.
    resource, size = (Virtual(device), GRANULE) if grow in pair else (LegacyPinnedMemoryResource(), 64)
    context = check(driver.cuCtxGetCurrent())
    free, winners = free_memory(), set()
    for _ in range(ROUNDS // ROW):
        row = [Round(resource, size, adopt in pair) for _ in range(ROW)]
        outcomes, start, awake = [[] for _ in range(THREADS)], threading.Barrier(THREADS), []

        def work(number, row=row, outcomes=outcomes, start=start, awake=awake):
            check(driver.cuCtxSetCurrent(context))
            walk(row, pair[number % 2], outcomes[number], start, awake)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        assert {len(found) for found in outcomes} == {ROW}, "a thread has ended with an error"
        for number, round_ in enumerate(row):
            found = [thread_found[number] for thread_found in outcomes]
            judge(round_, found)
            winners.update(number for number in range(THREADS) if found[number] not in LOSSES)
        del row, outcomes, round_, found
    gc.collect()
    assert free_memory() == free
    assert len(winners) > 1, "the threads never met"
