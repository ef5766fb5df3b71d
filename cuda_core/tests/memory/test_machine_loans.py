# SPDX-License-Identifier: Apache-2.0
"""Any order of allocating, lending, closing, detaching, adopting, moving, growing and dropping, against a model.

The model knows, for each piece of memory, who owns it, who looks at it and through which addresses. After every step
the bytes are read through all of them, and memory that nobody owns or looks at any more is gone.
"""

import contextlib
import warnings

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from buffer_kinds import SOURCES, free_raw
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Allocation,
    Buffer,
    CloseResult,
    CUDAWarning,
    Device,
    Ownership,
    OwnershipError,
)
from support import GRANULE, blocked, fill, free_addresses, given_back, holds, read, take

CHECKED = 256  # bytes looked at, at the start of the memory
pick = st.integers(min_value=0, max_value=1 << 16)


class Memory:
    """One allocation. ``owner`` is a Buffer or an Allocation, or None when it was closed to its user."""

    def __init__(self, source, buffer, seed):
        self.source = source
        self.owner = buffer
        self.address = buffer.handle
        self.size = buffer.size
        self.seed = seed
        self.left = []  # addresses that grows have left, and that loans may still look through
        self.loans = []
        fill(self.address, self.size, seed)
        self.resource = buffer.memory_resource

    def open_loans(self):
        return sum(loan.holds() for loan in self.loans)

    def is_held(self):
        return self.owner is not None or self.open_loans() > 0

    def all_loans(self):
        waiting = list(self.loans)
        while waiting:
            loan = waiting.pop()
            waiting.extend(loan.children)
            yield loan


class Loan:
    """An export, or an export of a sub-buffer (its parent is that loan)."""

    def __init__(self, memory, parent, kind, thing, offset, size):
        self.memory = memory
        self.parent = parent
        self.kind = kind
        self.thing = thing
        self.address = (parent.address if parent else memory.address) + offset
        self.offset = (parent.offset if parent else 0) + offset
        self.size = size
        self.children = []

    def holds(self):
        return self.thing is not None or any(child.holds() for child in self.children)


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        device = Device(0)
        device.set_current()
        self.sources = [kind(device) for kind in SOURCES.values()]
        self.seed = 0
        self.memories = []

    # -- what there is to choose from ------------------------------------------------------------------------------

    def owners(self, kind):
        return [memory for memory in self.memories if isinstance(memory.owner, kind)]

    def open_loans(self):
        return [loan for memory in self.memories for loan in memory.all_loans() if loan.thing is not None]

    def lenders(self):
        """Whoever can lend: open buffers, and open sub-buffers."""
        parts = [loan for loan in self.open_loans() if loan.kind == "sub-buffer"]
        return self.owners(Buffer) + parts

    def settle(self, memory):
        """After an end: what nobody holds must be gone, the addresses that a grow has left too."""
        if not memory.open_loans():
            assert all(map(given_back, memory.left))
            memory.left.clear()
        if not memory.is_held():
            assert given_back(memory.address)
            self.memories.remove(memory)

    # -- rules -----------------------------------------------------------------------------------------------------

    @rule(which=pick)
    def allocate(self, which):
        if len(self.memories) > 6:
            return
        self.seed += 1
        source = self.sources[which % len(self.sources)]
        self.memories.append(Memory(source, source.allocate(), self.seed))

    @precondition(lambda self: self.lenders())
    @rule(
        which=pick, how=st.sampled_from(["sub-buffer", "array view", "memoryview"]), start=pick, length=pick
    )
    def lend(self, which, how, start, length):
        lenders = self.lenders()
        lender = lenders[which % len(lenders)]
        parent = lender if isinstance(lender, Loan) else None
        memory = lender.memory if parent else lender
        buffer = parent.thing if parent else memory.owner
        if how == "memoryview" and not memory.source.at_host:
            with pytest.raises(BufferError):
                memoryview(buffer)
            return
        offset, size = 0, buffer.size
        if how == "sub-buffer":
            offset = start % (size + 1)
            size = length % (size - offset + 1)
            thing = buffer[offset : offset + size]
        else:
            thing = memoryview(buffer) if how == "memoryview" else buffer.array_view()
        loan = Loan(memory, parent, how, thing, offset, size)
        (parent.children if parent else memory.loans).append(loan)

    @precondition(lambda self: self.open_loans())
    @rule(which=pick, drop=st.booleans())
    def end_loan(self, which, drop):
        loans = self.open_loans()
        loan = loans[which % len(loans)]
        thing, loan.thing = loan.thing, None
        if not drop:
            if loan.kind == "memoryview":
                thing.release()
            else:
                result = thing.close()
                if loan.kind == "sub-buffer":
                    expected = CloseResult.LENT if any(c.holds() for c in loan.children) else CloseResult.DONE
                    assert result is expected
        del thing
        self.settle(loan.memory)

    @precondition(lambda self: self.owners(Buffer))
    @rule(which=pick, how=st.sampled_from(["close", "with", "drop"]))
    def end_buffer(self, which, how):
        memories = self.owners(Buffer)
        memory = memories[which % len(memories)]
        buffer, memory.owner = memory.owner, None
        if how == "close":
            expected = CloseResult.LENT if memory.open_loans() else CloseResult.DONE
            assert buffer.close() is expected
            assert buffer.close() is CloseResult.NOTHING
            assert buffer.loans == memory.open_loans()
        elif how == "with":
            with buffer:
                pass
        del buffer
        self.settle(memory)

    @precondition(lambda self: self.owners(Buffer))
    @rule(which=pick, how=st.sampled_from(["detach", "move_to"]))
    def give(self, which, how):
        memories = self.owners(Buffer)
        memory = memories[which % len(memories)]
        buffer = memory.owner
        if how == "move_to" and memory.resource is None:
            with pytest.raises(ValueError):
                buffer.move_to(self.sources[0].resource)
            return

        def give():
            return buffer.detach() if how == "detach" else buffer.move_to(memory.resource)

        if memory.open_loans():
            with pytest.raises(BufferError):
                give()
            assert buffer.ownership is Ownership.OWNED
            return
        memory.owner = give()
        assert buffer.close() is CloseResult.NOTHING
        with pytest.raises(OwnershipError):
            buffer.detach()

    @precondition(lambda self: self.owners(Allocation))
    @rule(which=pick, how=st.sampled_from(["adopt", "elsewhere", "hand over", "deallocate", "drop"]))
    def take_up(self, which, how):
        memories = self.owners(Allocation)
        memory = memories[which % len(memories)]
        allocation, source = memory.owner, memory.source
        if how in ("adopt", "elsewhere") or (how == "deallocate" and not source.built_in):
            if how == "elsewhere" and source.built_in:
                memory.resource = source.make()
                memory.owner = Buffer.adopt(allocation, memory.resource)
            else:
                memory.owner = Buffer.adopt(allocation)
            assert memory.owner.memory_resource is memory.resource
            for again in (lambda: Buffer.adopt(allocation), allocation.handed_over):
                with pytest.raises(OwnershipError):
                    again()
            return
        if memory.size != source.size:
            return  # a grown range of several mappings: only this package knows how to free it
        memory.owner = None
        if how == "drop":
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                del allocation
            assert [warning.category for warning in seen] == [CUDAWarning]
        elif how == "hand over":
            allocation.handed_over()
        else:
            memory.resource.deallocate(memory.address, memory.size, stream=LEGACY_DEFAULT_STREAM)
        if how != "deallocate":
            assert holds(memory.address, CHECKED, memory.seed)
            free_raw(source.name, memory.address, memory.size)
            if source.name == "python":
                del source.resource.held[memory.address]
        self.settle(memory)

    @precondition(lambda self: [m for m in self.owners(Buffer) if m.source.name == "virtual"])
    @rule(which=pick, move=st.booleans())
    def grow(self, which, move):
        memories = [memory for memory in self.owners(Buffer) if memory.source.name == "virtual"]
        memory = memories[which % len(memories)]
        if memory.size >= 4 * GRANULE:
            return
        old = memory.owner
        with blocked(old) if move else contextlib.nullcontext():
            memory.owner = memory.resource.modify_allocation(old, memory.size + GRANULE)
        assert old.close() is CloseResult.NOTHING
        if memory.owner.handle != memory.address:
            if memory.open_loans():
                memory.left.append(memory.address)
            else:
                assert given_back(memory.address)
        memory.address, memory.size = memory.owner.handle, memory.owner.size

    @precondition(lambda self: self.owners(Buffer))
    @rule(which=pick)
    def own_twice(self, which):
        memories = [memory for memory in self.owners((Buffer, Allocation)) if memory.source.built_in]
        if not memories:
            return
        memory = memories[which % len(memories)]
        with pytest.raises(OwnershipError):
            Buffer.from_handle(memory.address, memory.size, memory.resource)
        with pytest.raises((OwnershipError, ValueError)):
            memory.resource.deallocate(memory.address, memory.size + 1, stream=LEGACY_DEFAULT_STREAM)

    @rule()
    def occupy(self):
        """Somebody else's addresses come and go."""
        for memory in self.owners(Buffer):
            if memory.source.name == "virtual":
                taken = take(memory.address + memory.size, GRANULE)
                if taken is not None:
                    free_addresses(taken, GRANULE)

    # -- what must be true after every step ------------------------------------------------------------------------

    @invariant()
    def everything_is_where_it_should_be(self):
        for memory in getattr(self, "memories", ()):
            assert memory.is_held()
            expected = None
            for address in (memory.address, *memory.left):
                assert holds(address, CHECKED, memory.seed)
            if memory.owner is not None:
                assert memory.owner.ownership is Ownership.OWNED
                assert (memory.owner.handle, memory.owner.size) == (memory.address, memory.size)
            if isinstance(memory.owner, Buffer):
                assert memory.owner.loans == memory.open_loans()
            for loan in memory.all_loans():
                if loan.thing is None:
                    continue
                size = min(loan.size, max(CHECKED - loan.offset, 0))
                if expected is None:
                    expected = read(memory.address, CHECKED)
                if size:
                    assert read(loan.address, size) == expected[loan.offset : loan.offset + size]
                if loan.kind == "sub-buffer":
                    assert loan.thing.loans == sum(child.holds() for child in loan.children)

    def teardown(self):
        for memory in list(getattr(self, "memories", ())):
            if isinstance(memory.owner, Allocation):
                memory.owner = Buffer.adopt(memory.owner)
            if memory.owner is not None:
                memory.owner.close()
                memory.owner = None
            for loan in list(memory.all_loans()):
                if loan.thing is not None and loan.kind != "memoryview":
                    loan.thing.close()
                loan.thing = None
            self.settle(memory)


@pytest.mark.usefixtures("device")
def test_any_order():
    run_state_machine_as_test(
        Machine,
        settings=hypothesis.settings(
            max_examples=60, stateful_step_count=40, suppress_health_check=list(hypothesis.HealthCheck)
        ),
    )
