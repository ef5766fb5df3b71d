# SPDX-License-Identifier: Apache-2.0
"""Recordings: when the recorder runs, and who gets what it writes."""

from __future__ import annotations

import collections
import datetime
import functools
import itertools
import os
import platform
import sys
import threading
from types import TracebackType
from typing import Any

from cuda.core._memory import _inventory
from cuda.core._memory._memory_report import resource_name
from cuda.core._memory._queue import queued_releases
from cuda.core._memory._transfer import Allocation
from cuda.core._version import __version__
from cuda.core.audit import _recorder
from cuda.core.audit._journal import Journal, name_thread
from cuda.core.audit._report import (
    SIMULATOR,
    AuditedAllocation,
    AuditedResource,
    AuditReport,
    Frame,
    Step,
    is_own_file,
)
from cuda.core.audit._settings import Settings

__all__ = ["Recording", "record"]

_lock = threading.RLock()
_running = []  # recordings
_reading = False
_stacks: _recorder.Stacks | None = None
_thread_names = {}


def _read_table():
    """Give what the recorder has written to every recording. Quick to give up: another thread is at it then."""
    if _lock.acquire(blocking=False):
        try:
            _read_now()
        finally:
            _lock.release()


def _read_now():
    """The same, with the lock held. A finalizer that runs within may make a record, and must not read what is next."""
    global _reading
    if _reading:
        return
    _reading = True
    try:
        events, lost_loans, lost_others = _recorder.drain()
        for recording in _running:
            recording._journal.take(events, lost_loans, lost_others)
    finally:
        _reading = False


def _forget():
    """In the child of a fork: the recordings are the parent's."""
    global _lock, _reading
    _lock, _reading = threading.RLock(), False
    for recording in _running:
        recording._inherited = True
    _running.clear()


os.register_at_fork(after_in_child=_forget)


class Recording:
    """A recording of what happens to memory, made by :func:`record`.

    Leaving the ``with`` block ends it, writes the files that were asked for, and makes :attr:`report`.

    Notes
    -----
    Safe from any thread. Several may run at the same time, each with its own beginning and end; all threads are
    recorded. The child of a fork records nothing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._journal: Journal | None = None
        self._report: AuditReport | None = None
        self._inherited = False

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to record.

        Raises
        ------
        RuntimeError
            If it was begun before.
        """
        global _stacks
        with _lock:
            if self._journal is not None:
                raise RuntimeError("the recording was begun before; call record() again for another one")
            if _running:
                _read_now()  # what was before is of the others
            elif not _recorder.is_installed():
                _stacks = _recorder.Stacks(self._settings.depth)
                _recorder.install(_stacks, _read_table, functools.partial(name_thread, _thread_names))
            self._began = datetime.datetime.now().astimezone()
            self._journal = Journal(_recorder.monotonic(), self._settings.limit, _thread_names)
            self._frames = _stacks.frames
            _running.append(self)
            live = _live_now(self._journal)
            _read_now()
            for serial, facts in live.items():
                self._journal.seed(serial, *facts)
            self._journal.seeded = True

    def stop(self) -> None:
        """End the recording and write the files that were asked for. Ending it twice is harmless.

        Raises
        ------
        OSError
            If a file cannot be written. The report is there all the same.
        """
        with _lock:
            if self._report is not None or self._inherited or self._journal is None:
                return
            journal, looked = self._journal, _recorder.monotonic()
            live, queued = _live_now(journal), {facts[0] for facts in queued_releases()}
            _read_now()
            end = _recorder.monotonic()
            _running.remove(self)
            if not _running:
                _recorder.uninstall()
            journal.settle(looked, end, live, queued)
            self._report = _report_of(journal, self._frames, end, self._began)
        self._write()

    def _write(self):
        for name in ("text", "json", "html"):
            path = getattr(self._settings, name)
            if path is not None:
                with open(path.replace("%p", str(os.getpid())), "w", encoding="utf-8") as file:
                    file.write(self._in(name))
        found = not self._report.is_clean or self._report.failed
        say = self._settings.say or (self._settings.say_findings and found)
        if say and sys.stderr is not None:
            sys.stderr.write(self._in("text"))
            sys.stderr.flush()

    def _in(self, name):
        if name == "text":
            return self._report.to_text(all_frames=self._settings.all_frames)
        return self._report.to_html() if name == "html" else self._report.to_json()

    @property
    def report(self) -> AuditReport:
        """AuditReport: what was found.

        Raises
        ------
        RuntimeError
            If the recording has not ended, or is of the process that this one was forked from.
        """
        if self._inherited:
            raise RuntimeError("the recording is of the process that this one was forked from")
        if self._report is None:
            raise RuntimeError("the recording has not ended: leave its with block, or call stop()")
        return self._report


def record(
    *,
    text: str | os.PathLike[str] | None = None,
    json: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    depth: int = 24,
    limit: int = 100_000,
) -> Recording:
    """Record what happens to memory within a ``with`` block.

    Parameters
    ----------
    text, json, html : path, optional
        Files to write at the end: plain text; everything as JSON; one page for a browser that needs nothing else.
        ``%p`` in a name stands for the number of the process.
    depth : int, optional
        How many frames are kept of where each allocation was made, the innermost ones.
    limit : int, optional
        How many allocations are kept after they have ended; older ones make room, and are counted.

    Returns
    -------
    Recording
        To be used with ``with``; its ``report`` is there once the block was left.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or a file cannot be written.

    Notes
    -----
    All threads are recorded. What was live before the block is in the report, without its origin. Recording makes an
    allocation and its close several times as slow; without a recording the cost is not measurable.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource, audit
    >>> Device(0).set_current()
    >>> with audit.record() as recording:
    ...     kept = LegacyPinnedMemoryResource().allocate(4096)
    >>> [(one.size, one.ending) for one in recording.report.leaked]
    [(4096, 'open')]
    >>> kept.close().name
    'DONE'
    """
    settings: Any = {"text": text, "json": json, "html": html}  # paths become texts
    return Recording(Settings(**settings, depth=depth, limit=limit))


def _live_now(journal):
    """Return what is live, by serial number, in the words of the journal."""
    found = {}
    for (
        serial,
        address,
        size,
        device_id,
        resource,
        kind,
        state,
        loans,
        *_,
    ) in _inventory.live_allocations():
        name = resource_name(resource)
        if name.startswith("function "):
            number = journal.resource_number("function", None, 0)
        else:
            device = (
                device_id if device_id >= 0 or type(resource).__module__.startswith("cuda.core.") else None
            )
            number = journal.resource_number(name, device, id(resource))
        if state == "OWNED" and issubclass(kind, Allocation):
            state = "DETACHED"
        found[serial] = address, size, number, state, loans
    return found


def _report_of(journal, stacks, end, began):
    def seconds(time):
        return None if time is None else (time - journal.begun) / 1e9

    names = journal.threads
    threads = {number: name or f"thread {number}" for number, name in names.items()}
    made = {}

    def frames(number):
        if number not in made:
            made[number] = tuple(
                Frame(file=file, line=line, function=function, own=is_own_file(file))
                for file, line, function in stacks[number]
            )
        return made[number]

    def thread_of(number):
        return "" if number is None else threads.get(number, f"thread {number}")

    allocations = tuple(
        AuditedAllocation(
            serial=life.serial,
            address=life.address,
            size=life.size,
            resource=life.resource,
            ending=life.ending,
            begun=seconds(life.begun),
            ended=seconds(life.ended),
            thread=thread_of(life.thread),
            origin=frames(life.origin),
            states=tuple((seconds(time), state) for time, state in life.states),
            steps=tuple(
                Step(time=seconds(time), thread=thread_of(thread), text=text)
                for time, thread, text in life.events
            ),
            steps_left_out=life.left_out,
            loans=life.loans,
            failures=life.failures,
            source=life.source,
            taker=life.taker,
        )
        for life in sorted(journal.lives.values(), key=lambda life: (life.begun or 0, life.serial))
    )
    seen = collections.Counter()
    resources = []
    for (name, device), sums in zip(journal.resources, journal.by_resource, strict=True):
        seen[name, device] += 1
        resources.append(
            AuditedResource(
                resource=name,
                device_id=device,
                number=seen[name, device],
                count=sums.count,
                size=sums.bytes,
                peak=sums.peak,
                live=sums.live,
            )
        )
    return AuditReport(
        program=_program(),
        pid=os.getpid(),
        python=platform.python_version(),
        version=__version__,
        started=began.isoformat(sep=" ", timespec="seconds"),
        seconds=seconds(end),
        resources=tuple(resources),
        allocations=allocations,
        count=journal.total.count,
        size=journal.total.bytes,
        peak=journal.total.peak,
        peak_time=seconds(journal.total.peak_time),
        left_out=journal.left_out,
        left_out_until=seconds(journal.left_out_until),
        lost_events=journal.lost_events,
        lost_loans=journal.lost_loans,
    )


def _program():
    """Return the command line as a user would write it, without the interpreter and the simulated driver."""
    words = sys.orig_argv[1:]
    if words[:2] == ["-m", SIMULATOR]:
        words = list(itertools.dropwhile(lambda word: word.startswith("--"), words[2:]))
    return " ".join(words) or "an interactive program"
