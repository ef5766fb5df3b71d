# SPDX-License-Identifier: Apache-2.0
"""Any order of operations on several buffers, against a model in plain Python: bytes, states, memory."""

import gc
import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cuda.core import (
    Buffer,
    CloseResult,
    Device,
    Ownership,
    TransferredTo,
    VirtualMemoryResource,
)
from support import GRANULE, blocked, fill, free_memory, holds, rights_of_granules, still_allocated

MOST_GRANULES = 12


class Entry:
    """One open virtual buffer and what its granules hold: a seed each, None where nothing was written.

    ``kept`` are the buffers that moved and kept their addresses, with these.
    """

    def __init__(self, buffer, resource, seeds):
        self.buffer, self.resource, self.seeds, self.kept = buffer, resource, seeds, []

    def let_go(self):
        for old, _ in self.kept:
            old.close()
        assert not any(still_allocated(address) for _, address in self.kept)
        self.kept.clear()


class MemoryMachine(RuleBasedStateMachine):
    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        Device(0).set_current()
        gc.collect()
        self.free = free_memory()
        self.resources = [
            VirtualMemoryResource(0),
            VirtualMemoryResource(0, {"reserve_size": 4 * GRANULE}),
            VirtualMemoryResource(0, {"growth": "geometric"}),
        ]
        self.open = []
        self.ended = []
        self.next_seed = 0

    @rule(target=entries, which=st.integers(0, 2), granules=st.integers(0, 4))
    def allocate(self, which, granules):
        resource = self.resources[which]
        entry = Entry(resource.allocate(granules * GRANULE), resource, [None] * granules)
        self.open.append(entry)
        return entry

    @rule(entry=entries, data=st.data())
    def write(self, entry, data):
        if entry.seeds:
            granule = data.draw(st.integers(0, len(entry.seeds) - 1))
            self.next_seed += 1
            fill(entry.buffer.handle + granule * GRANULE, GRANULE, self.next_seed)
            entry.seeds[granule] = self.next_seed

    def grown(self, entry, granules, keep_old=False):
        old, covered = entry.buffer, granules <= len(entry.seeds)
        address = old.handle
        new = entry.resource.modify_allocation(old, granules * GRANULE, keep_old=keep_old)
        if covered:
            assert new is old
        else:
            assert (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
            self.ended.append((old, hash(old)))
            entry.seeds += [None] * (granules - len(entry.seeds))
            entry.buffer = new
            if keep_old and address and new.handle != address:
                entry.kept.append((old, address))
            assert new.loans == len(entry.kept)

    @rule(entry=entries, granules=st.integers(0, MOST_GRANULES))
    def grow(self, entry, granules):
        self.grown(entry, granules)

    @rule(entry=entries, granules=st.integers(1, MOST_GRANULES), keep_old=st.booleans())
    def grow_blocked(self, entry, granules, keep_old):
        if not entry.buffer.capacity:
            return self.grown(entry, granules)
        address, capacity = entry.buffer.handle, entry.buffer.capacity // GRANULE
        with blocked(entry.buffer):
            self.grown(entry, granules, keep_old)
            assert (entry.buffer.handle == address) == (granules <= capacity)

    @rule(entry=entries)
    def let_old_addresses_go(self, entry):
        entry.let_go()
        assert entry.buffer.loans == 0

    @rule(entry=entries, granules=st.integers(0, MOST_GRANULES), split=st.booleans())
    def shrink(self, entry, granules, split):
        old, granules = entry.buffer, min(granules, len(entry.seeds))
        if granules == len(entry.seeds):
            assert entry.resource.shrink(old, granules * GRANULE, split=split) is old
            return
        if entry.kept:
            with pytest.raises(BufferError):
                entry.resource.shrink(old, granules * GRANULE, split=split)
            assert old.ownership is Ownership.OWNED
            entry.let_go()
        before = (old.handle, old.capacity)
        entry.buffer = entry.resource.shrink(old, granules * GRANULE, split=split)
        assert old.ownership is Ownership.TRANSFERRED
        assert (entry.buffer.handle, entry.buffer.capacity) == before
        assert not split or entry.buffer.mapped_size == entry.buffer.size
        self.ended.append((old, hash(old)))
        del entry.seeds[granules:]

    @rule(entry=entries, split=st.booleans())
    def trim(self, entry, split):
        buffer, before = entry.buffer, entry.buffer.mapped_size
        split = split and not entry.kept
        assert entry.resource.trim(buffer, split=split) == before - buffer.mapped_size
        assert buffer.size <= buffer.mapped_size
        assert not split or buffer.mapped_size == buffer.size

    @rule(entry=entries, access=st.sampled_from(["rw", "r", None]))
    def change_access_and_back(self, entry, access):
        for wanted in (access, "rw"):
            entry.resource.set_access(entry.buffer, 0, wanted)
            rights = {"rw": 3, "r": 1, None: 0}[wanted]
            assert rights_of_granules(entry.buffer) == [rights] * len(entry.seeds)
            assert entry.resource.get_access(entry.buffer, 0) == (
                wanted if entry.buffer.mapped_size else None
            )

    @rule(target=entries, entry=consumes(entries))
    def view(self, entry):
        """A borrowed look at the buffer changes nothing and ends alone."""
        if entry.seeds:
            with Buffer.from_handle(entry.buffer.handle, entry.buffer.size, owner=entry.buffer) as view:
                assert view == entry.buffer
                assert view.ownership is Ownership.BORROWED
        return entry

    @rule(entry=consumes(entries))
    def close(self, entry):
        self.check(entry)
        if entry.kept:
            assert entry.buffer.close() is CloseResult.LENT
            self.check_kept(entry)
            entry.let_go()
        else:
            assert entry.buffer.close() is CloseResult.DONE
        assert entry.buffer.close() is CloseResult.NOTHING
        self.ended.append((entry.buffer, hash(entry.buffer)))
        self.open.remove(entry)

    @rule(entry=consumes(entries))
    def drop(self, entry):
        self.check(entry)
        entry.let_go()
        self.open.remove(entry)
        entry.buffer = None

    @rule(entry=consumes(entries))
    def drop_in_a_cycle(self, entry):
        entry.let_go()
        self.open.remove(entry)
        cycle = [entry.buffer]
        cycle.append(cycle)
        entry.buffer = None
        del cycle
        gc.collect()

    def check(self, entry):
        buffer = entry.buffer
        assert buffer.ownership is Ownership.OWNED
        assert buffer.size == len(entry.seeds) * GRANULE
        for granule, seed in enumerate(entry.seeds):
            if seed is not None:
                assert holds(buffer.handle + granule * GRANULE, GRANULE, seed)
        self.check_kept(entry)

    def check_kept(self, entry):
        """Old addresses show the same memory."""
        for _, address in entry.kept:
            if entry.seeds[0] is not None:
                assert holds(address, GRANULE, entry.seeds[0])

    @invariant()
    def the_open_ones_take_all_the_memory_that_is_taken(self):
        assert free_memory() == self.free - sum(entry.buffer.mapped_size for entry in self.open)

    @invariant()
    def no_two_share_an_address(self):
        spans = sorted((e.buffer.handle, e.buffer.capacity) for e in self.open if e.buffer.capacity)
        for (first, size), (second, _) in itertools.pairwise(spans):
            assert first + size <= second

    @invariant()
    def what_has_ended_stays_ended(self):
        for buffer, value in self.ended:
            assert buffer.is_closed
            assert (buffer.handle, buffer.size, hash(buffer)) == (0, 0, value)

    def teardown(self):
        for entry in self.open:
            self.check(entry)
            entry.let_go()
            entry.buffer.close()
        self.open.clear()
        self.resources.clear()
        gc.collect()
        assert free_memory() == self.free


MemoryMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_memory_machine = MemoryMachine.TestCase
