# SPDX-License-Identifier: Apache-2.0
"""Any order of operations while any driver calls fail: no byte is lost, nothing is freed twice, all comes back."""

import contextlib
import gc

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cuda.core import CloseResult, CUDAError, CUDAWarning, Device, Ownership, VirtualMemoryResource
from support import GRANULE, attempt, blocked, fill, free_memory, holds, warnings_seen

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals]

FUNCTIONS = (
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemRetainAllocationHandle",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuThreadExchangeStreamCaptureMode",
)
# Up to three failures at once, each of one call or of every call from one on.
FAILURES = st.lists(
    st.tuples(st.sampled_from(FUNCTIONS), st.integers(1, 4), st.booleans()),
    max_size=3,
    unique_by=lambda failure: failure[0],
)
MOST_GRANULES = 10
MARK = 4096  # bytes that are looked at, at the start and at the end of each granule


class Entry:
    """One buffer, what its granules hold, and whether a close of it has failed."""

    def __init__(self, buffer, resource, seeds):
        self.buffer, self.resource, self.seeds, self.half_closed = buffer, resource, seeds, False


class FailingMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        import cuda_driver_sim

        self.sim = cuda_driver_sim
        self.device = Device(0)
        self.device.set_current()
        gc.collect()
        self.stream = self.device.create_stream()
        self.resources = [VirtualMemoryResource(0), VirtualMemoryResource(0, {"reserve_size": 4 * GRANULE})]
        self.live, self.free = dict(self.sim.live()), free_memory()
        self.open = []
        self.next_seed = 0

    def entry(self, data, **wanted):
        entries = [e for e in self.open if all(getattr(e, k) == v for k, v in wanted.items())]
        return data.draw(st.sampled_from(entries)) if entries else None

    def under(self, failures, function):
        """Run a function while calls fail; return what it returned, its error, and the warnings seen."""
        self.sim.reset()
        with contextlib.ExitStack() as stack:
            seen = stack.enter_context(warnings_seen())
            armed = [
                stack.enter_context(self.sim.fail(name, nth=nth, sticky=sticky))
                for name, nth, sticky in failures
            ]
            result, error = attempt(function, CUDAError)
        fired = sum(failure.fired for failure in armed)
        refused = self.sim.refused()
        assert len(refused) == fired, f"the driver refused more than was injected: {refused}"
        assert fired or (error is None and not seen), f"nothing failed, and yet: {error!r} {seen}"
        if error is not None:
            assert any(name in str(error) for name, _, _ in failures), str(error)
        assert {warning.category for warning in seen} <= {CUDAWarning}
        assert len(seen) <= 1
        return result, error

    @rule(which=st.integers(0, 1), granules=st.integers(0, 3), with_stream=st.booleans(), failures=FAILURES)
    def allocate(self, which, granules, with_stream, failures):
        resource = self.resources[which]
        stream = self.stream if with_stream else None
        buffer, error = self.under(failures, lambda: resource.allocate(granules * GRANULE, stream=stream))
        if error is None:
            assert (buffer.ownership, buffer.size) == (Ownership.OWNED, granules * GRANULE)
            self.open.append(Entry(buffer, resource, [None] * granules))
            self.write(self.open[-1])

    def write(self, entry):
        for granule, seed in enumerate(entry.seeds):
            if seed is None:
                self.next_seed += 1
                entry.seeds[granule] = self.next_seed
                for place in self.marks(entry, granule):
                    fill(place, MARK, self.next_seed)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), granules=st.integers(0, MOST_GRANULES), block=st.booleans(), failures=FAILURES)
    def grow(self, data, granules, block, failures):
        entry = self.entry(data, half_closed=False)
        if entry is None:
            return
        old, address, size = entry.buffer, entry.buffer.handle, entry.buffer.size
        with blocked(old) if block and size else contextlib.nullcontext():
            new, error = self.under(
                failures, lambda: entry.resource.modify_allocation(old, granules * GRANULE)
            )
        if error is not None:
            assert (old.ownership, old.handle, old.size) == (Ownership.OWNED, address, size)
        elif granules * GRANULE <= size:
            assert new is old
        else:
            assert old.ownership is Ownership.TRANSFERRED
            assert (new.ownership, new.size) == (Ownership.OWNED, granules * GRANULE)
            entry.buffer = new
            entry.seeds += [None] * (granules - len(entry.seeds))
        self.check(entry)
        self.write(entry)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), failures=FAILURES)
    def close(self, data, failures):
        entry = self.entry(data)
        buffer, handle = entry.buffer, entry.buffer.handle
        result, error = self.under(failures, buffer.close)
        if error is None:
            assert result is CloseResult.DONE
            assert buffer.close() is CloseResult.NOTHING
            self.open.remove(entry)
        else:
            assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, handle)
            entry.half_closed = True

    @precondition(lambda self: any(e.half_closed for e in self.open))
    @rule(data=st.data())
    def grow_what_is_half_closed(self, data):
        """Refused, or, when the failed close had returned nothing yet, a whole buffer."""
        entry = self.entry(data, half_closed=True)
        granules = len(entry.seeds) + 1
        new, _ = attempt(lambda: entry.resource.modify_allocation(entry.buffer, granules * GRANULE))
        if new is None:
            assert entry.buffer.ownership is Ownership.OWNED
            return
        entry.buffer, entry.half_closed = new, False
        entry.seeds.append(None)
        self.check(entry)
        self.write(entry)

    @precondition(lambda self: any(not e.half_closed for e in self.open))
    @rule(data=st.data())
    def drop(self, data):
        """Without failures: what a failed collection leaves stays for good."""
        entry = self.entry(data, half_closed=False)
        if entry is not None:
            self.open.remove(entry)
            entry.buffer = None
            del entry
            gc.collect()

    def check(self, entry):
        for granule, seed in enumerate(entry.seeds):
            if seed is not None:
                assert all(holds(place, MARK, seed) for place in self.marks(entry, granule))

    @staticmethod
    def marks(entry, granule):
        start = entry.buffer.handle + granule * GRANULE
        return start, start + GRANULE - MARK

    @invariant()
    def every_buffer_that_is_whole_holds_its_bytes(self):
        for entry in self.open:
            if not entry.half_closed:
                self.check(entry)

    def teardown(self):
        for entry in self.open:
            assert entry.buffer.close() is CloseResult.DONE
        for resource in self.resources:
            resource.allocate(GRANULE).close()
        self.open.clear()
        assert dict(self.sim.live()) == self.live
        assert free_memory() == self.free
        self.stream.close()
        self.resources.clear()


FailingMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    phases=(
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ),  # shrinking such an example takes longer than reading it
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FailingMachine.TestCase.pytestmark = pytestmark
test_failing_machine = FailingMachine.TestCase
