# SPDX-License-Identifier: Apache-2.0
"""The journal: from the events of the recorder to the life of each allocation.

A life begins when a record comes to own something, and ends when that was returned, lost or passed on. Memory is
bounded: the lives of what is still there are kept; of those that have ended, the youngest; of the loans on one
allocation, the first. What was left out is counted. Sums by resource and by place in the program hold for everything.
"""

from __future__ import annotations

import threading
from collections import deque

from cuda.core._memory._ownership import Event, TransferredTo, Verdict, event_code

__all__ = ["Journal", "Life", "name_thread"]

_ALLOCATED, _BORROWED, _TAKEN_BACK, _GONE = 0, 1, 30, 31
_QUEUED, _RETURNED, _REFUSED, _JOB_LOST = 40, 41, 42, 43
_MADE, _THREAD = 50, 51

_BEGIN_RELEASE = event_code(Event.BEGIN_RELEASE)
_BEGIN_AUTOMATIC = event_code(Event.BEGIN_AUTOMATIC_RELEASE)
_COMMIT_RELEASE = event_code(Event.COMMIT_RELEASE)
_ABORT_RELEASE = event_code(Event.ABORT_RELEASE)
_COMMIT_TRANSFER = event_code(Event.COMMIT_TRANSFER)
_ABORT_TRANSFER = event_code(Event.ABORT_TRANSFER)
_LEND = event_code(Event.LEND)
_END_LOAN = event_code(Event.END_LOAN)
_LOSE = event_code(Event.LOSE)
_BEGIN_TRANSFERS = {event_code(Event.BEGIN_TRANSFER, taker): taker for taker in TransferredTo}
_LENT, _LAST_LOAN = Verdict.LENT.value, Verdict.LAST_LOAN.value
_TAKERS = {taker.value: taker for taker in TransferredTo}

_EVENTS_OF_A_LIFE = 200  # loans beyond these are counted only
_UNCLAIMED_ORIGINS = 100_000  # records that have not begun to stand for anything

# Endings that are of no further interest, so that the oldest of them make room.
_ORDINARY = frozenset(
    ("returned", "collected", "grown", "moved", "adopted", "detached", "handed over", "graph")
)


class Life:
    """What is known of one allocation in the hands of one record."""

    __slots__ = (
        "address",
        "begun",
        "collected",
        "committed",
        "counted",
        "ended",
        "ending",
        "events",
        "failures",
        "given_back",
        "left_out",
        "loans",
        "origin",
        "queued",
        "resource",
        "serial",
        "size",
        "source",
        "states",
        "taker",
        "thread",
    )

    def __init__(self, serial, address, size, resource, begun, thread, origin):
        self.serial = serial
        self.address = address
        self.size = size
        self.resource = resource
        self.begun = begun  # None: before the recording
        self.thread = thread
        self.origin = origin
        self.ended = None
        self.ending = None
        self.states = []  # of time and state; it lasts until the next
        self.events = []  # of time, thread, what has happened
        self.loans = 0
        self.left_out = 0  # events of loans
        self.failures = 0
        self.source = self.taker = 0
        self.collected = self.queued = self.given_back = self.committed = self.counted = False

    @property
    def state(self):
        return self.states[-1][1] if self.states else "OWNED"


class Sums:
    """Sums that hold for everything, whatever was left out."""

    __slots__ = ("bytes", "collected", "count", "live", "live_count", "peak", "peak_time")

    def __init__(self):
        self.count = self.bytes = self.live = self.live_count = self.peak = self.collected = 0
        self.peak_time = None

    def add(self, size, time):
        self.live += size
        self.live_count += 1
        if self.live > self.peak:
            self.peak, self.peak_time = self.live, time


class Journal:
    """The lives of one recording.

    Parameters
    ----------
    begun : int
        When the recording began, in nanoseconds of the recorder's clock.
    limit : int
        How many lives are kept that have ended.
    threads : dict of int to str
        Names by number, also of earlier recordings.
    """

    def __init__(self, begun, limit, threads):
        self.begun = begun
        self.limit = limit
        self.seeded = False  # with what was there before
        self.lives = {}
        self.resources = []  # name, device ordinal or None
        self.threads = threads
        self.total = Sums()
        self.by_resource = []
        self.by_origin = {}  # (stack, resource) -> Sums
        self.left_out = 0  # lives that have ended and made room
        self.left_out_until = None
        self.lost_events = self.lost_loans = 0
        self._numbers = {}  # of resources
        self._made = {}
        self._ended = deque()
        self._links = {}  # taker -> source, until the taker begins
        self._unknown = set()  # serials that something was said of before the seeds came

    # -- what comes in ---------------------------------------------------------------------------------------------

    def take(self, events, lost_loans, lost_others):
        """Take up what the recorder has written."""
        self.lost_loans += lost_loans
        self.lost_events += lost_others
        for event in events:
            self._take(*event)

    def seed(self, serial, address, size, resource, state, loans):
        """Take up an allocation that was there before the recording."""
        if serial in self.lives or serial in self._unknown:
            return  # it was seen to begin, or it has changed since it was looked at
        life = Life(serial, address, size, resource, None, None, 0)
        life.states.append((self.begun, state))
        life.loans = loans
        self._open(life, self.begun)
        for sums in self._sums(life):  # it was not allocated now
            sums.count -= 1
            sums.bytes -= life.size

    def resource_number(self, name, device, identity):
        key = name, device, identity
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = number = len(self.resources)
            self.resources.append((name, device))
            self.by_resource.append(Sums())
        return number

    def _take(
        self,
        time,
        code,
        verdict,
        serial,
        other,
        address,
        size,
        device,
        identity,
        kind,
        thread,
        taker,
        collected,
    ):
        if code == _MADE:
            self._made[serial] = other
            if len(self._made) > _UNCLAIMED_ORIGINS:  # of borrowed buffers, mostly
                for old in list(self._made)[: _UNCLAIMED_ORIGINS // 2]:
                    del self._made[old]
            return
        if code == _THREAD:
            name_thread(self.threads, thread, other)
            return
        if code == _ALLOCATED:
            self._begin(time, serial, address, size, device, identity, kind, thread)
            return
        if code == _BORROWED:
            self._made.pop(serial, None)
            return
        life = self.lives.get(serial)
        if life is None:  # borrowed, from before the recording, or its beginning was lost
            if not self.seeded:
                self._unknown.add(serial)
            return
        if code in (_QUEUED, _RETURNED, _REFUSED, _JOB_LOST):
            self._queue(life, time, code, thread)
        elif life.ending is None:
            self._change(life, time, code, verdict, serial, other, thread, taker, collected)

    def _begin(self, time, serial, address, size, device, identity, kind, thread):
        name = "function" if kind.__name__ == "FreeFunction" else kind.__name__
        device = None if name == "function" or (device < 0 and not _is_built_in(kind)) else device
        number = self.resource_number(name, device, 0 if name == "function" else identity)
        life = Life(serial, address, size, number, time, thread, self._made.pop(serial, 0))
        life.states.append((time, "OWNED"))
        self._open(life, time)
        source = self._links.pop(serial, None)
        if source is not None:
            self._link(source, life)
        life.events.append((time, thread, f"taken over from #{life.source}" if life.source else "allocated"))

    def _open(self, life, time):
        self.lives[life.serial] = life
        life.counted = True
        for sums in self._sums(life):
            sums.count += 1
            sums.bytes += life.size
            sums.add(life.size, time)

    def _sums(self, life):
        yield self.total
        yield self.by_resource[life.resource]
        key = life.origin, life.resource
        if key not in self.by_origin:
            self.by_origin[key] = Sums()
        yield self.by_origin[key]

    def _count(self, life, counted, time):
        if life.counted == counted:
            return
        life.counted = counted
        for sums in self._sums(life):
            if counted:
                sums.add(life.size, time)
            else:
                sums.live -= life.size
                sums.live_count -= 1

    def _link(self, source, taker):
        """Join two lives of one allocation, without a moment at which it is counted twice or not at all."""
        taker.source = source.serial
        for sums in self._sums(taker):  # it is no new allocation; of a grow, only what was added is
            sums.count -= 1
            sums.bytes -= min(taker.size, source.size)
        if taker.begun is None:
            return
        joint = min(taker.begun, source.ended)
        taker.begun = source.ended = joint
        taker.states[0] = joint, "DETACHED" if source.ending == "detached" else taker.states[0][1]

    def _change(self, life, time, code, verdict, serial, other, thread, taker, collected):
        say = life.events.append
        if code in (_LEND, _END_LOAN):
            self._loan(life, time, code, verdict, thread)
        elif code in (_BEGIN_RELEASE, _BEGIN_AUTOMATIC):
            life.collected = bool(collected)
            how = "a collection" if collected else "close" if code == _BEGIN_RELEASE else "leaving with"
            if verdict == _LENT:
                life.states.append((time, "LENT"))
                say((time, thread, f"{how} while lent: passes to the loans"))
            else:
                say((time, thread, f"{how}: release begins"))
        elif code == _COMMIT_RELEASE:
            life.committed = True
            if life.queued and not life.given_back:
                say((time, thread, "closed; the queue has the memory"))
            else:
                self._end(life, time, "collected" if life.collected else "returned", thread, "returned")
        elif code == _ABORT_RELEASE:
            life.failures += 1
            life.collected = False
            life.states.append((time, "FAILED"))
            say((time, thread, "the release failed"))
        elif code in _BEGIN_TRANSFERS:
            self._count(life, False, time)  # it is the taker's from the moment that the taker begins
            say((time, thread, f"transfer to {_BEGIN_TRANSFERS[code].name} begins"))
        elif code == _ABORT_TRANSFER:
            self._count(life, True, time)
            say((time, thread, "the transfer was given up"))
        elif code == _COMMIT_TRANSFER:
            self._pass_on(life, time, _TAKERS.get(taker), other, thread)
        elif code == _LOSE:
            self._end(life, time, "lost", thread, "lost with its context")
        elif code == _GONE:
            life.states.append((time, "GONE"))
            life.ending = "gone"  # and it goes on being counted: nobody returns it
            say((time, thread, "dropped; nobody returns it"))
        elif code == _TAKEN_BACK:
            self._end(life, time, "taken back", thread, "taken back")
            for sums in self._sums(life):
                sums.count -= 1
                sums.bytes -= life.size
            del self.lives[serial]

    def _loan(self, life, time, code, verdict, thread):
        life.loans = max(0, life.loans + (1 if code == _LEND else -1))
        if verdict == _LAST_LOAN:
            life.events.append((time, thread, "the last loan ends: release begins"))
        elif len(life.events) >= _EVENTS_OF_A_LIFE:
            life.left_out += 1
        else:
            life.events.append((time, thread, "loan begins" if code == _LEND else "loan ends"))

    def _pass_on(self, life, time, taker, other, thread):
        ending = {
            TransferredTo.GROWN: "grown",
            TransferredTo.DETACHED: "detached" if other else "handed over",
            TransferredTo.MOVED: "adopted" if life.state == "DETACHED" else "moved",
            TransferredTo.GRAPH: "graph",
        }.get(taker, "moved")
        life.taker = other
        self._end(life, time, ending, thread, f"{ending}, to #{other}" if other else ending)
        if other in self.lives:
            self._link(life, self.lives[other])
        elif other:
            self._links[other] = life

    def _queue(self, life, time, code, thread):
        if code == _QUEUED:
            life.queued, life.given_back = True, False
            life.states.append((time, "QUEUED"))
            life.events.append((time, thread, "queued"))
        elif code == _REFUSED:
            life.queued = True
            life.failures += 1
            life.states.append((time, "REFUSED"))
            life.events.append((time, thread, "refused by the driver; the queue keeps it"))
        elif code == _JOB_LOST:
            if life.ending is None:
                self._end(life, time, "lost", thread, "lost with its context")
        else:
            life.given_back = True
            if not self.threads.get(thread):
                self.threads[thread] = "release queue"
            if life.committed and life.ending is None:
                self._end(
                    life, time, "collected" if life.collected else "returned", thread, "returned by the queue"
                )
            else:
                life.events.append((time, thread, "returned by the queue"))

    def _end(self, life, time, ending, thread, text):
        life.ended, life.ending = time, ending
        life.events.append((time, thread, text))
        self._count(life, False, time)
        if ending == "collected":
            for sums in self._sums(life):
                sums.collected += 1
        if ending in _ORDINARY:
            self._ended.append(life.serial)
            if len(self._ended) > self.limit:
                old = self.lives.pop(self._ended.popleft(), None)
                if old is not None:
                    self.left_out += 1
                    self.left_out_until = old.ended

    # -- the end ---------------------------------------------------------------------------------------------------

    def settle(self, looked, time, live, queued):
        """Compare with what was live when it was looked at, and end the journal.

        Parameters
        ----------
        looked, time : int
            When that was, and now. In between more may have begun and ended, which was recorded.
        live : dict of int to tuple
            By serial number, what :meth:`seed` takes.
        queued : set of int
            Serial numbers of what the queue answers for.
        """
        known = set(self.lives)
        for serial, facts in live.items():
            if serial not in known and self.lost_events:  # its beginning was lost
                self.seed(serial, *facts)
        for life in list(self.lives.values()):
            if life.ending is None:
                if life.serial in live or (life.begun or 0) >= looked:
                    life.ending = "open"
                elif life.serial in queued:
                    life.ending = "queued"
                elif life.committed and life.queued:
                    life.ending = "queued"  # it was a moment ago
                else:
                    self._end(life, time, "not known", None, "its end was not recorded")


def _is_built_in(kind):
    return kind.__module__.startswith("cuda.core.")


def name_thread(names, number, ident):
    """Note what a thread is called, once."""
    if not names.get(number):
        # Not threading.enumerate(): this may run where the thread holds the lock that it takes.
        thread = getattr(threading, "_active", {}).get(ident)
        names[number] = thread.name if thread is not None else ""
