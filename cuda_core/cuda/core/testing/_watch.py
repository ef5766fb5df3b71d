# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a resource from outside: the calls of its ``deallocate``, and of the driver."""

import contextlib
import sys
import threading
import time

import attrs

from cuda.core import memory_report

__all__ = ["Asked", "DriverCalls", "settled"]


# Of a type that is compiled into the package, nobody's deallocate is asked: it frees in C. A subclass is asked.
_MADE_BY_A_CLASS_STATEMENT = 1 << 9  # Py_TPFLAGS_HEAPTYPE

# What the driver hands out that is memory. A resource may keep streams and events for its own purposes.
_MEMORY = frozenset(
    {
        "address_reservation",
        "device_allocation",
        "graph_allocation",
        "host_allocation",
        "host_registration",
        "managed_allocation",
        "mapping",
        "physical_allocation",
        "pool_allocation",
        "pool_destroyed_in_use",
    }
)


@attrs.frozen
class Call:
    """One call of ``deallocate``."""

    address: int
    size: int
    stream: object
    stream_handle: int
    stream_was_open: bool
    thread: int
    raised: object


class Asked:
    """Notes the calls of a resource's ``deallocate`` from now on, and can let the next one fail before it is made.

    Nothing is noted for what is freed in C, where nobody is asked: ``possible`` is False then.
    """

    def __init__(self, resource):
        self.calls = []
        self._fail_next = []
        self.possible = False
        inherited = resource.deallocate
        if not type(resource).__flags__ & _MADE_BY_A_CLASS_STATEMENT or not hasattr(resource, "__dict__"):
            return
        calls, fail_next = self.calls, self._fail_next

        def deallocate(ptr, size, *order, **keywords):  # the author may call it, too, in any way that works
            stream = order[0] if order else keywords.get("stream")
            error = fail_next.pop() if fail_next else None
            handle = getattr(stream, "handle", None)
            seen = (
                ptr,
                size,
                stream,
                0 if handle is None else int(handle),
                not getattr(stream, "is_closed", True),
                threading.get_ident(),
            )
            try:
                if error is not None:
                    raise error
                inherited(ptr, size, *order, **keywords)
            except BaseException as raised:
                error = raised
                raise
            finally:
                calls.append(Call(*seen, type(error) if error is not None else None))

        resource.deallocate = deallocate
        self.possible = True

    def fail_next(self, error):
        """Let the next call raise ``error`` instead of freeing."""
        self._fail_next.append(error)

    def successes(self):
        """Return (address, size) of the calls that returned, in order."""
        return [(call.address, call.size) for call in self.calls if call.raised is None]

    def freed_instead_of(self, expected):
        """Say what was freed in the place of ``expected``, and what was asked and raised."""
        text = f"freed were {self.successes()}, and should have been {expected}"
        raised = [
            f"{call.raised.__name__} for {call.address:#x}" for call in self.calls if call.raised is not None
        ]
        return f"{text}; deallocate raised {', '.join(raised)}" if raised else text


class DriverCalls:
    """The simulated driver's module, where it is loaded or stands in front of a real one; else nothing is seen."""

    def __init__(self):
        sim = sys.modules.get("cuda_driver_sim")
        self.sim = sim if sim is not None and sim.is_active() else None

    @property
    def seen(self):
        """Whether calls are counted and can be made to fail."""
        return self.sim is not None

    def live(self):
        """How much memory the driver has handed out, by kind; None where nobody counts."""
        if self.sim is None:
            return None
        return {kind: number for kind, number in self.sim.live().items() if kind in _MEMORY}

    def refused(self):
        """The calls that the driver has refused so far, as texts."""
        return [f"{entry.name}: {entry.result}" for entry in self.sim.refused()] if self.sim else []

    def of(self, function):
        """Call a function; return what it returned, and (name, n-th call of that name) of each driver call it made."""
        with self.sim.logged() as log:
            result = function()
        counts, calls = {}, []
        for entry in log.calls:
            counts[entry.name] = counts.get(entry.name, 0) + 1
            if not entry.name.startswith("cuGetError"):
                calls.append((entry.name, counts[entry.name]))
        return result, calls

    def fail(self, name, nth, result):
        """Let the n-th call of a function fail inside a ``with`` block."""
        return self.sim.fail(name, nth=nth, result=result)

    def hold(self):
        """Hold back work on streams inside a ``with`` block, where that is possible."""
        return self.sim.hold() if self.sim and self.sim.can_hold() else contextlib.nullcontext()


def settled(measure, wanted, seconds=10, quiet=0.3):
    """Return what ``measure()`` gives, as soon as that is ``wanted``; at the latest after so many seconds.

    What a collection frees may be on its way in another thread, which the report of the package tells. Where nothing
    is, and nothing has changed for the time ``quiet``, it will not come: a resource that leaks fails many checks, and
    each would take the whole time.
    """
    begin = changed = time.monotonic()
    before = now = measure()
    while now != wanted and time.monotonic() < begin + seconds:
        if now != before or any(release.state == "WAITING" for release in memory_report().queued):
            changed, before = time.monotonic(), now
        elif time.monotonic() > changed + quiet:
            break
        time.sleep(0.005)
        now = measure()
    return now
