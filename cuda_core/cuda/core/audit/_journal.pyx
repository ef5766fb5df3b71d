# SPDX-License-Identifier: Apache-2.0
"""The journal: from the events of the recorder to the life of each allocation.

A life begins when a record comes to own something, and ends when that was returned, lost or passed on. Memory is
bounded: the lives of what is still there are kept; of those that have ended, the youngest; of the loans on one
allocation, the first. What was left out is counted. Sums by resource and by place in the program hold for everything.

Compiled, because all of it runs while the program waits.
"""

import threading
from collections import deque

cimport cython

from cuda.core._memory._ownership cimport (
    EVENT_ABORT_RELEASE,
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_BEGIN_RELEASE,
    EVENT_COMMIT_RELEASE,
    EVENT_COMMIT_TRANSFER,
    EVENT_END_LOAN,
    EVENT_LEND,
    EVENT_LOSE,
    VERDICT_LAST_LOAN,
    VERDICT_LENT,
)

from cuda.core._memory._ownership import Event, TransferredTo, event_code

__all__ = ["Journal", "Life", "name_thread"]

# The codes of the recorder: events of the table, other changes, the queue, and what it says of threads and places.
cdef enum:
    _ALLOCATED = 0
    _BORROWED = 1
    _TAKEN_BACK = 30
    _GONE = 31
    _QUEUED = 40
    _RETURNED = 41
    _REFUSED = 42
    _JOB_LOST = 43
    _MADE = 50
    _THREAD = 51

    _EVENTS_OF_A_LIFE = 200         # loans beyond these are counted only
    _UNCLAIMED_ORIGINS = 100000     # records that have not begun to stand for anything

cdef dict _BEGIN_TRANSFERS = {event_code(Event.BEGIN_TRANSFER, taker): taker for taker in TransferredTo}
cdef dict _TAKERS = {taker.value: taker for taker in TransferredTo}

# Endings that are of no further interest, so that the oldest of them make room.
cdef object _ORDINARY = frozenset(
    ("returned", "collected", "grown", "moved", "adopted", "detached", "handed over", "graph")
)


@cython.no_gc  # it is in no circle, and collections need not look at a hundred thousand of them
cdef class Life:
    """What is known of one allocation in the hands of one record."""

    cdef readonly object serial  # type: int
    cdef readonly object address  # type: int
    cdef readonly object size  # type: int
    cdef readonly object origin  # type: int
    cdef readonly int resource
    cdef readonly int failures
    # None: before the recording, and not yet.
    cdef readonly object begun  # type: int | None
    cdef readonly object ended  # type: int | None
    cdef readonly object thread  # type: int | None
    cdef readonly object source  # type: int
    cdef readonly object taker  # type: int
    cdef readonly object ending  # type: str
    # Each of time and state, which lasts until the next; of time, thread, and what has happened.
    cdef readonly list states  # type: list[tuple[int, str]]
    cdef readonly list events  # type: list[tuple[int, int | None, str]]
    cdef readonly long loans
    cdef readonly long left_out     # events of loans
    cdef bint collected, queued, given_back, committed, counted
    cdef Sums of_resource, of_origin

    cdef str state(self):
        return self.states[-1][1]


@cython.no_gc
cdef class Sums:
    """Sums that hold for everything, whatever was left out."""

    cdef readonly long long count, bytes, live, live_count, peak, collected
    cdef readonly object peak_time  # type: int | None

    cdef int allocated(self, long long size) except -1:
        self.count += 1
        self.bytes += size
        return 0

    cdef int not_allocated(self, long long size) except -1:
        self.count -= 1
        self.bytes -= size
        return 0

    cdef int add(self, long long size, object time) except -1:
        self.live += size
        self.live_count += 1
        if self.live > self.peak:
            self.peak, self.peak_time = self.live, time
        return 0

    cdef int take(self, long long size) except -1:
        self.live -= size
        self.live_count -= 1
        return 0


cdef class Journal:
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

    cdef readonly object begun  # type: int
    cdef object limit
    cdef public bint seeded         # with what was there before
    cdef readonly dict lives  # type: dict[int, Life]
    # Name, and device ordinal or None.
    cdef readonly list resources  # type: list[tuple[str, int | None]]
    cdef readonly dict threads  # type: dict[int, str]
    cdef readonly Sums total
    cdef readonly list by_resource  # type: list[Sums]
    cdef dict by_origin             # (stack, resource) -> Sums
    cdef readonly long left_out     # lives that have ended and made room
    cdef readonly object left_out_until  # type: int | None
    cdef readonly long long lost_events
    cdef readonly long long lost_loans
    cdef dict _numbers              # of resources
    cdef dict _made
    cdef object _ended
    cdef dict _links                # taker -> source, until the taker begins
    cdef set _unknown               # serials that something was said of before the seeds came

    def __init__(self, begun: int, limit: int, threads: dict[int, str]) -> None:
        self.begun = begun
        self.limit = limit
        self.seeded = False
        self.lives = {}
        self.resources = []
        self.threads = threads
        self.total = Sums()
        self.by_resource = []
        self.by_origin = {}
        self.left_out = 0
        self.left_out_until = None
        self.lost_events = self.lost_loans = 0
        self._numbers = {}
        self._made = {}
        self._ended = deque()
        self._links = {}
        self._unknown = set()

    # -- what comes in ---------------------------------------------------------------------------------------------

    def take(self, events: list[tuple[Any, ...]], lost_loans: int, lost_others: int) -> None:
        """Take up what the recorder has written."""
        self.lost_loans += lost_loans
        self.lost_events += lost_others
        for event in events:
            self._take(event)

    def seed(self, serial: int, address: int, size: int, resource: int, state: str, loans: int) -> None:
        """Take up an allocation that was there before the recording."""
        cdef Life life
        if serial in self.lives or serial in self._unknown:
            return  # it was seen to begin, or it has changed since it was looked at
        life = self._new(serial, address, size, resource, None, None, 0)
        life.states.append((self.begun, state))
        life.loans = loans
        self._count(life, True, self.begun)  # it was not allocated now

    def resource_number(self, name: str, device: int | None, identity: int) -> int:
        key = name, device, identity
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = number = len(self.resources)
            self.resources.append((name, device))
            self.by_resource.append(Sums())
        return number

    cdef int _take(self, tuple event) except -1:
        cdef int code = event[1]
        cdef object time = event[0]
        cdef object serial = event[3]
        cdef object thread = event[10]
        cdef Life life
        if code == _MADE:
            self._made[serial] = event[4]
            if len(self._made) > _UNCLAIMED_ORIGINS:  # of borrowed buffers, mostly
                for old in list(self._made)[: _UNCLAIMED_ORIGINS // 2]:
                    del self._made[old]
            return 0
        if code == _THREAD:
            name_thread(self.threads, thread, event[4])
            return 0
        if code == _ALLOCATED:
            return self._begin(event)
        if code == _BORROWED:
            self._made.pop(serial, None)
            return 0
        life = self.lives.get(serial)
        if life is None:  # borrowed, from before the recording, or its beginning was lost
            if not self.seeded:
                self._unknown.add(serial)
            return 0
        if _QUEUED <= code <= _JOB_LOST:
            return self._queue(life, time, code, thread)
        if life.ending is None:
            return self._change(life, code, event)
        return 0

    cdef int _begin(self, tuple event) except -1:
        _, _, _, serial, _, address, size, device, identity, kind, thread, _, _ = event
        cdef object time = event[0]
        cdef Life life, source
        cdef str name
        if kind.__name__ == "FreeFunction":
            name, device, identity = "function", None, 0
        else:
            name = kind.__name__
            if device < 0 and not kind.__module__.startswith("cuda.core."):
                device = None
        life = self._new(
            serial, address, size, self.resource_number(name, device, identity), time, thread, self._made.pop(serial, 0)
        )
        life.states.append((time, "OWNED"))
        self.total.allocated(size)
        life.of_resource.allocated(size)
        life.of_origin.allocated(size)
        self._count(life, True, time)
        source = self._links.pop(serial, None)
        if source is not None:
            self._link(source, life)
        life.events.append((time, thread, f"taken over from #{life.source}" if life.source else "allocated"))
        return 0

    cdef Life _new(self, serial, address, size, int resource, begun, thread, origin):
        cdef Life life = Life.__new__(Life)
        life.serial, life.address, life.size, life.resource = serial, address, size, resource
        life.begun, life.thread, life.origin = begun, thread, origin
        life.states, life.events = [], []
        life.source = life.taker = 0
        life.of_resource = self.by_resource[resource]
        key = origin, resource
        life.of_origin = self.by_origin.get(key)
        if life.of_origin is None:
            life.of_origin = self.by_origin[key] = Sums()
        self.lives[serial] = life
        return life

    cdef int _count(self, Life life, bint counted, object time) except -1:
        cdef long long size = life.size
        if life.counted == counted:
            return 0
        life.counted = counted
        if counted:
            self.total.add(size, time)
            life.of_resource.add(size, time)
            life.of_origin.add(size, time)
        else:
            self.total.take(size)
            life.of_resource.take(size)
            life.of_origin.take(size)
        return 0

    cdef int _link(self, Life source, Life taker) except -1:
        """Join two lives of one allocation, without a moment at which it is counted twice or not at all."""
        taker.source = source.serial
        cdef long long kept = min(taker.size, source.size)
        self.total.not_allocated(kept)  # it is no new allocation; of a grow, only what was added is
        taker.of_resource.not_allocated(kept)
        taker.of_origin.not_allocated(kept)
        if taker.begun is None:
            return 0
        joint = min(taker.begun, source.ended)
        taker.begun = source.ended = joint
        taker.states[0] = joint, "DETACHED" if source.ending == "detached" else taker.states[0][1]
        return 0

    cdef int _change(self, Life life, int code, tuple event) except -1:
        cdef object time = event[0]
        cdef object thread = event[10]
        cdef int verdict = event[2]
        cdef list events = life.events
        if code == EVENT_LEND or code == EVENT_END_LOAN:
            self._loan(life, time, code, verdict, thread)
        elif code == EVENT_BEGIN_RELEASE or code == EVENT_BEGIN_AUTOMATIC_RELEASE:
            life.collected = event[12]
            how = "a collection" if life.collected else "close" if code == EVENT_BEGIN_RELEASE else "leaving with"
            if verdict == VERDICT_LENT:
                life.states.append((time, "LENT"))
                events.append((time, thread, f"{how} while lent: passes to the loans"))
            else:
                events.append((time, thread, f"{how}: release begins"))
        elif code == EVENT_COMMIT_RELEASE:
            life.committed = True
            if life.queued and not life.given_back:
                events.append((time, thread, "closed; the queue has the memory"))
            else:
                self._end(life, time, "collected" if life.collected else "returned", thread, "returned")
        elif code == EVENT_ABORT_RELEASE:
            life.failures += 1
            life.collected = False
            life.states.append((time, "FAILED"))
            events.append((time, thread, "the release failed"))
        elif code in _BEGIN_TRANSFERS:
            self._count(life, False, time)  # it is the taker's from the moment that the taker begins
            events.append((time, thread, f"transfer to {_BEGIN_TRANSFERS[code].name} begins"))
        elif code == EVENT_ABORT_TRANSFER:
            self._count(life, True, time)
            events.append((time, thread, "the transfer was given up"))
        elif code == EVENT_COMMIT_TRANSFER:
            self._pass_on(life, time, _TAKERS.get(event[11]), event[4], thread)
        elif code == EVENT_LOSE:
            self._end(life, time, "lost", thread, "lost with its context")
        elif code == _GONE:
            life.states.append((time, "GONE"))
            life.ending = "gone"  # and it goes on being counted: nobody returns it
            events.append((time, thread, "dropped; nobody returns it"))
        elif code == _TAKEN_BACK:
            self._end(life, time, "taken back", thread, "taken back")
            self.total.not_allocated(life.size)
            life.of_resource.not_allocated(life.size)
            life.of_origin.not_allocated(life.size)
            del self.lives[life.serial]
        return 0

    cdef int _loan(self, Life life, object time, int code, int verdict, object thread) except -1:
        life.loans = max(0, life.loans + (1 if code == EVENT_LEND else -1))
        if verdict == VERDICT_LAST_LOAN:
            life.events.append((time, thread, "the last loan ends: release begins"))
        elif len(life.events) >= _EVENTS_OF_A_LIFE:
            life.left_out += 1
        else:
            life.events.append((time, thread, "loan begins" if code == EVENT_LEND else "loan ends"))
        return 0

    cdef int _pass_on(self, Life life, object time, object taker, object other, object thread) except -1:
        ending = {
            TransferredTo.GROWN: "grown",
            TransferredTo.DETACHED: "detached" if other else "handed over",
            TransferredTo.MOVED: "adopted" if life.state() == "DETACHED" else "moved",
            TransferredTo.GRAPH: "graph",
        }.get(taker, "moved")
        life.taker = other
        self._end(life, time, ending, thread, f"{ending}, to #{other}" if other else ending)
        if other in self.lives:
            self._link(life, self.lives[other])
        elif other:
            self._links[other] = life
        return 0

    cdef int _queue(self, Life life, object time, int code, object thread) except -1:
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
        return 0

    cdef int _end(self, Life life, object time, str ending, object thread, str text) except -1:
        cdef Life old
        life.ended, life.ending = time, ending
        life.events.append((time, thread, text))
        self._count(life, False, time)
        if ending == "collected":
            self.total.collected += 1
            life.of_resource.collected += 1
            life.of_origin.collected += 1
        if ending in _ORDINARY:
            self._ended.append(life.serial)
            if len(self._ended) > self.limit:
                old = self.lives.pop(self._ended.popleft(), None)
                if old is not None:
                    self.left_out += 1
                    self.left_out_until = old.ended
        return 0

    # -- the end ---------------------------------------------------------------------------------------------------

    def settle(self, looked: int, time: int, live: dict[int, tuple[Any, ...]], queued: set[int]) -> None:
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
        cdef Life life
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


def name_thread(names: dict[int, str], number: int, ident: int) -> None:
    """Note what a thread is called, once."""
    if not names.get(number):
        # Not threading.enumerate(): this may run where the thread holds the lock that it takes.
        thread = getattr(threading, "_active", {}).get(ident)
        names[number] = thread.name if thread is not None else ""
