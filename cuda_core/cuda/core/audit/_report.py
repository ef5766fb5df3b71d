# SPDX-License-Identifier: Apache-2.0
"""What a recording has found, as a tree of values."""

from __future__ import annotations

import json
import os
import sysconfig
from typing import Any

import attrs

__all__ = ["AuditReport", "AuditedAllocation", "AuditedResource", "Frame", "Step"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = tuple(
    {os.path.realpath(path) for path in map(sysconfig.get_path, ("stdlib", "platstdlib")) if path}
    | {path for path in map(sysconfig.get_path, ("stdlib", "platstdlib")) if path}
)

#: The module that runs a program on the simulated driver: its frames are around all of the program's.
SIMULATOR = "cuda_driver_sim"

#: Endings of an allocation that was given back, or is in other hands.
WELL_ENDED = frozenset(
    (
        "returned",
        "collected",
        "grown",
        "moved",
        "adopted",
        "detached",
        "handed over",
        "graph",
        "queued",
        "not known",
    )
)


def is_own_file(file: str) -> bool:
    """Tell whether a file is part of the program: not of this package, Python's library, or the simulated driver."""
    if file.startswith(("<frozen ", _PACKAGE + os.sep)) or f"{os.sep}{SIMULATOR}{os.sep}" in file:
        return False
    return not any(
        file.startswith(path + os.sep) and "site-packages" not in file and "dist-packages" not in file
        for path in _LIBRARY
    )


@attrs.frozen
class Frame:
    """One line of a stack.

    Attributes
    ----------
    file, function : str
        Where the code is.
    line : int
        The line that was running.
    own : bool
        Whether it is the program's; False for this package, Python's library and the simulated driver.
    """

    file: str
    line: int
    function: str
    own: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@attrs.frozen
class Step:
    """One thing that has happened to an allocation.

    Attributes
    ----------
    time : float
        Seconds since the recording began.
    thread : str
        Name of the thread.
    text : str
        What has happened.
    """

    time: float
    thread: str
    text: str


@attrs.frozen
class AuditedResource:
    """A resource (or, as one, all functions that free memory) and what it had out.

    Attributes
    ----------
    resource : str
        Name of its type.
    device_id : int or None
        Ordinal of the device; -1 for the host; None where nobody knows.
    number : int
        Which of the resources of that type and device it is, from 1.
    count, size : int
        Allocations, and their bytes, over the whole recording.
    peak : int
        The most bytes at one moment.
    live : int
        Bytes that were not back at the end.
    """

    resource: str
    device_id: int | None
    number: int
    count: int
    size: int
    peak: int
    live: int

    @property
    def place(self) -> str:
        """str: the device in words; empty where nobody knows."""
        if self.device_id is None:
            return ""
        return "host" if self.device_id < 0 else f"device {self.device_id}"

    def __str__(self) -> str:
        text = f"{self.resource}, {self.place}" if self.place else self.resource
        return text if self.number == 1 else f"{text} ({self.number})"


@attrs.frozen
class AuditedAllocation:
    """The life of an allocation in the hands of one buffer or ``Allocation``.

    Attributes
    ----------
    serial : int
        Its number, as in the ``repr`` of the buffer.
    address, size : int
        Where it is, and its bytes.
    resource : int
        Index into :attr:`AuditReport.resources`.
    ending : str
        ``"returned"``; ``"collected"``: returned by a collection, nobody has closed it; ``"grown"``, ``"moved"``,
        ``"detached"``, ``"adopted"``: the memory went on to allocation ``taker``; ``"handed over"`` to foreign
        code; ``"graph"``; ``"lost"`` with its context; ``"gone"``: dropped, and nobody returns it; ``"open"`` when the
        recording ended, also where loans hold what was closed; ``"queued"``: a release was waiting then;
        ``"not known"``.
    begun, ended : float or None
        Seconds since the recording began; None: before it, or not yet.
    thread : str
        Name of the thread that has allocated it.
    origin : tuple of Frame
        Where it was allocated, the innermost frame first; empty where nobody knows.
    states : tuple of tuple
        Time and name of each state: ``OWNED``, ``DETACHED``, ``LENT`` (closed, and held by loans), ``FAILED`` (a
        release failed), ``QUEUED``, ``REFUSED`` (the queue could not return it), ``GONE``.
    steps : tuple of Step
        What has happened to it.
    steps_left_out : int
        Loans that were only counted.
    loans : int
        Open loans at the end.
    failures : int
        How many attempts to return it failed.
    source, taker : int
        The allocation that it came from, and the one that it went on to; 0 for none.
    """

    serial: int
    address: int
    size: int
    resource: int
    ending: str
    begun: float | None
    ended: float | None
    thread: str
    origin: tuple[Frame, ...]
    states: tuple[tuple[float, str], ...]
    steps: tuple[Step, ...]
    steps_left_out: int
    loans: int
    failures: int
    source: int
    taker: int

    @property
    def is_detached(self) -> bool:
        """bool: whether an ``Allocation`` had it, and not a buffer."""
        return any(state == "DETACHED" for _, state in self.states)

    @property
    def own_origin(self) -> tuple[Frame, ...]:
        """tuple of Frame: the program's own frames of the origin; all of them where none is its own."""
        return tuple(frame for frame in self.origin if frame.own) or self.origin


@attrs.frozen
class AuditReport:
    """What a recording has found.

    Attributes
    ----------
    program : str
        The command line.
    pid : int
        The process.
    python, version : str
        Versions of Python and of this package.
    started : str
        When the recording began, in local time.
    seconds : float
        How long it took.
    resources : tuple of AuditedResource
        In the order of their first allocation.
    allocations : tuple of AuditedAllocation
        In the order of their beginning.
    count, size, peak : int
        Allocations and bytes of the whole recording; the most bytes at one moment.
    peak_time : float or None
        When that was.
    left_out, left_out_until : int, float or None
        Allocations that had ended and were left out to bound the memory, and until when.
    lost_events, lost_loans : int
        What could not be recorded, because too much happened at once.
    """

    program: str
    pid: int
    python: str
    version: str
    started: str
    seconds: float
    resources: tuple[AuditedResource, ...]
    allocations: tuple[AuditedAllocation, ...]
    count: int
    size: int
    peak: int
    peak_time: float | None
    left_out: int
    left_out_until: float | None
    lost_events: int
    lost_loans: int

    @property
    def leaked(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: never returned: open at the end, or dropped with nobody to return them."""
        return self._those(lambda one: one.ending in ("open", "gone") and not one.is_detached)

    @property
    def detached(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: detached, and never adopted nor declared as handed over."""
        return self._those(lambda one: one.ending in ("open", "gone") and one.is_detached)

    @property
    def collected(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: never closed; a collection has returned them."""
        return self._those(lambda one: one.ending == "collected")

    @property
    def lost(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: lost with their context."""
        return self._those(lambda one: one.ending == "lost")

    @property
    def waiting(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: closed, and not back yet when the recording ended."""
        return self._those(lambda one: one.ending == "queued")

    @property
    def failed(self) -> tuple[AuditedAllocation, ...]:
        """tuple of AuditedAllocation: those of which an attempt to return them failed, however they ended."""
        return self._those(lambda one: one.failures > 0)

    @property
    def shared(self) -> tuple[tuple[AuditedAllocation, AuditedAllocation], ...]:
        """tuple of pairs of AuditedAllocation: two owners of one address of one resource at the same time.

        A resource may count references to an address by itself, and then this is right; else it is freed twice.
        """
        owners = {}
        for one in self.allocations:
            if one.address and one.size:
                owners.setdefault((one.resource, one.address), []).append(one)
        pairs = []
        for ones in owners.values():
            for index, one in enumerate(ones):
                end = self.seconds if one.ended is None else one.ended
                pairs += [(one, other) for other in ones[index + 1 :] if (other.begun or 0) < end]
        return tuple(pairs)

    def _those(self, fits):
        return tuple(one for one in self.allocations if fits(one))

    @property
    def is_clean(self) -> bool:
        """bool: whether nothing leaked, was left detached, or was lost."""
        return not (self.leaked or self.detached or self.lost)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, texts and numbers."""
        whole = attrs.asdict(self)
        for name in ("leaked", "detached", "collected", "lost", "waiting", "failed"):
            whole[name] = [one.serial for one in getattr(self, name)]
        whole["shared"] = [[one.serial, other.serial] for one, other in self.shared]
        return whole

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self, *, all_frames: bool = False) -> str:
        """Return what was found in plain text.

        Parameters
        ----------
        all_frames : bool, optional
            Show every frame of an origin, not only the program's own.
        """
        from cuda.core.audit._text import text_of

        return text_of(self, all_frames)

    def to_html(self) -> str:
        """Return one HTML page that needs nothing else, not even a network."""
        from cuda.core.audit._html import page_of

        return page_of(self)

    def __str__(self) -> str:
        return self.to_text()
