# SPDX-License-Identifier: Apache-2.0
"""Any order of operations on buffers of a resource, against a model in plain Python."""

import gc
import itertools
import threading

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cuda.core import Buffer, Device
from cuda.core.testing._bytes import get, pattern, put
from cuda.core.testing._contract import require, shown
from cuda.core.testing._watch import Asked

__all__ = ["MachineCheck", "MemoryResourceMachine"]

WINDOW = 8192  # larger buffers are looked at in their first and last so many bytes


class _Entry:
    """An open buffer and the bytes that its first and its last window must have."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.recipe = (buffer.handle, buffer.size)  # with which it is to be freed
        self.bytes = {}  # begin of the window -> bytes, of what was written

    def windows(self):
        size = self.buffer.size
        if size <= WINDOW:
            return [(0, size)] if size else []
        return [(0, WINDOW), (size - WINDOW, size)]


class MemoryResourceMachine(RuleBasedStateMachine):
    """Allocates, writes, lends, hands over, fails and ends, in any order; a model knows what must be true.

    The model is the oracle: which buffers are open, what bytes they have, and with which address and size each
    allocation has to be freed, once. Used by :class:`MemoryResourceTests`; derive from it to add rules.

    Parameters
    ----------
    tests : MemoryResourceTests
        Says how a resource is made and which sizes to ask for.
    """

    entries = Bundle("entries")

    def __init__(self, tests):
        super().__init__()
        self.device = Device(0)
        self.device.set_current()
        self.tests = tests
        self.resource = tests.make_resource()
        self.asked = Asked(self.resource)
        self.stream = self.device.create_stream()
        self.open = []
        self.expected = []  # what must have been freed, in any order
        self.seeds = itertools.count(1)

    # -- rules -----------------------------------------------------------------------------------------------------

    @rule(target=entries, which=st.integers(0, 63))
    def allocate(self, which):
        sizes = self.tests.sizes
        entry = _Entry(self.tests.take(self.resource, sizes[which % len(sizes)], self.stream))
        self.open.append(entry)
        return entry

    @rule(entry=entries)
    def write(self, entry):
        for begin, end in entry.windows():
            entry.bytes[begin] = pattern(end - begin, next(self.seeds))
            with entry.buffer[begin:end] as part:
                put(part, entry.bytes[begin], self.stream)

    @rule(entry=entries)
    def read(self, entry):
        for begin, wanted in entry.bytes.items():
            with entry.buffer[begin : begin + len(wanted)] as part:
                require(
                    get(part, self.stream) == wanted,
                    "bytes stay as they were written while the buffer is open",
                    f"others came back from {shown(entry.buffer)}",
                )

    @rule(entry=entries)
    def hand_over(self, entry):
        """The memory goes to another buffer; the recipe stays."""
        entry.buffer = Buffer.adopt(entry.buffer.detach())

    @rule(target=entries, entry=consumes(entries))
    def fail_to_close(self, entry):
        """A deallocate that raises has freed nothing, and the buffer can be used on."""
        if self.asked.possible:
            self.asked.fail_next(LookupError("on purpose"))
            try:
                entry.buffer.close()
            except LookupError:
                return entry
            require(False, "close() raises what deallocate raises", "it returned")
        return entry

    @rule(entry=consumes(entries))
    def close(self, entry):
        self.read(entry)
        self.tests.close(entry.buffer)
        self.end(entry)

    @rule(entry=consumes(entries))
    def close_on_another_thread(self, entry):
        self.read(entry)
        wrong = []

        def work():
            try:
                self.tests.close(entry.buffer)
            except Exception as error:
                wrong.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if wrong:
            raise wrong[0]
        self.end(entry)

    @rule(entry=consumes(entries))
    def close_while_lent(self, entry):
        buffer = entry.buffer
        part = buffer[: buffer.size]
        self.tests.close(buffer)
        for begin, wanted in entry.bytes.items():
            with part[begin : begin + len(wanted)] as window:
                require(
                    get(window, self.stream) == wanted,
                    "bytes stay as they were while they are lent",
                    f"others came back from {shown(buffer)}",
                )
        part.close()
        self.end(entry)

    @rule(entry=consumes(entries), cycle=st.booleans())
    def drop(self, entry, cycle):
        self.read(entry)
        if self.asked.calls and any(
            call.raised and call.address == entry.recipe[0] for call in self.asked.calls
        ):
            self.tests.close(entry.buffer)  # the collector never asks again what has raised once
        elif cycle:
            box = [entry.buffer]
            box.append(box)
            del box
        entry.buffer = None
        gc.collect()
        self.end(entry)

    @rule(entries=st.lists(consumes(entries), max_size=3))
    def close_several(self, entries):
        for entry in entries:
            self.close(entry)

    def end(self, entry):
        entry.buffer = None
        self.open.remove(entry)
        if self.asked.possible:
            self.expected.append(entry.recipe)

    # -- what is true at any time ----------------------------------------------------------------------------------

    @invariant()
    def each_end_asked_once(self):
        if self.asked.possible:
            seen = sorted(self.asked.successes())
            require(
                seen == sorted(self.expected),
                "deallocate is called once for each allocation, with its address and the size of its buffer",
                lambda: f"freed were {seen}, and should have been {sorted(self.expected)}",
            )

    @invariant()
    def open_buffers_do_not_overlap(self):
        spans = sorted(
            (entry.buffer.handle, entry.buffer.handle + entry.buffer.size)
            for entry in self.open
            if entry.recipe[1]
        )
        for (_, end), (begin, _) in itertools.pairwise(spans):
            require(
                end <= begin, "buffers that are open at once have no byte in common", f"two have {begin:#x}"
            )

    def teardown(self):
        for entry in list(self.open):
            self.close(entry)
        self.each_end_asked_once()
        del self.asked.calls[:]
        self.stream.close()
        self.resource = None
        gc.collect()


class MachineCheck:
    """The check that runs the machine."""

    machine = MemoryResourceMachine

    def test_any_order_of_operations(self, device, after_the_others):
        """Hypothesis tries many orders of operations, and shows the shortest that fails.

        It takes the longest and says the least, so it comes last, and not at all where another check has failed.
        """
        run_state_machine_as_test(
            lambda: self.machine(self),
            settings=settings(
                self.machine_settings,
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            ),
        )
