# SPDX-License-Identifier: Apache-2.0
"""``memory_report``: what is live, by resource and device, as a tree of values, a table, or JSON."""

import json
from typing import Any

import attrs

from cuda.core._memory import _inventory, _left_behind
from cuda.core._memory._allocation import FreeFunction, is_left
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._memory._queue import queued_releases
from cuda.core._memory._text_table import bytes_text, table
from cuda.core._memory._transfer import Allocation

__all__ = ["LiveAllocation", "LiveResource", "MemoryReport", "QueuedRelease", "memory_report"]

_SHOWN = 10  # allocations of each resource in the table that print() shows


@attrs.frozen
class LiveAllocation:
    """One allocation that must still be returned.

    Attributes
    ----------
    serial : int
        The number of the buffer, as in its ``repr`` and in error texts. They are given out in order.
    address : int
        Where the memory begins.
    size : int
        Bytes.
    state : str
        ``"OWNED"``: a buffer must return it. ``"LENT"``: its buffer is closed, and the last loan returns it.
        ``"DETACHED"``: an ``Allocation`` has it, which was not adopted yet. ``"KEPT"``: its buffer was dropped, and a
        collection must not free it. ``"DROPPED"``: its buffer was dropped and could not return it (``failed``), or
        its ``Allocation`` was dropped.
    loans : int
        How many exports of it are open.
    busy : bool
        A call is releasing or moving it at this moment.
    failed : bool
        A release has failed, and can be tried again.
    age : int
        How many buffers have been made since.
    mapped_size : int
        Bytes of memory behind it: the size, but for virtual memory, where a grow may have mapped more; 0 while paused.
    paused : bool
        Its memory is with the device until it is resumed; only the addresses are there.
    """

    serial: int
    address: int
    size: int
    state: str
    loans: int
    busy: bool
    failed: bool
    age: int
    mapped_size: int
    paused: bool


@attrs.frozen
class LiveResource:
    """What one resource has out.

    Attributes
    ----------
    resource : str
        Name of the resource's type, or of the function that frees.
    resource_id : int
        ``id`` of the resource (or function), which tells two of one type apart.
    device_id : int or None
        Ordinal of the device; -1 for memory of the host; None where nobody knows.
    allocations : tuple of LiveAllocation
        The oldest first.
    """

    resource: str
    resource_id: int
    device_id: int | None
    allocations: tuple[LiveAllocation, ...]

    @property
    def size(self) -> int:
        """int: bytes of all allocations."""
        return sum(allocation.size for allocation in self.allocations)

    @property
    def mapped_size(self) -> int:
        """int: bytes of memory behind all allocations."""
        return sum(allocation.mapped_size for allocation in self.allocations)

    @property
    def place(self) -> str:
        """str: the device in words."""
        if self.device_id is None:
            return "not known"
        return "host" if self.device_id < 0 else f"device {self.device_id}"


@attrs.frozen
class QueuedRelease:
    """A release that the queue answers for: no buffer owns the memory any more, and it is not back yet.

    Attributes
    ----------
    serial, address, size : int
        As of a :class:`LiveAllocation`.
    resource : str
        Name of the resource's type.
    place : str
        The device or context in words; empty where nobody knows.
    state : str
        ``"WAITING"`` behind a stream; ``"REFUSED"`` by the driver and tried again after later releases;
        ``"GIVEN UP"``: refused to a collection, and never tried again.
    """

    serial: int
    address: int
    size: int
    resource: str
    place: str
    state: str


@attrs.frozen
class MemoryReport:
    """What is live: see :func:`memory_report`.

    Attributes
    ----------
    resources : tuple of LiveResource
        The one with the most bytes first.
    queued : tuple of QueuedRelease
        The oldest first.

    Notes
    -----
    ``str()`` of it is a table with the largest allocations of each resource; :meth:`to_text` gives them all. The column
    "made since" is their age: how many buffers have been made since.
    """

    resources: tuple[LiveResource, ...]
    queued: tuple[QueuedRelease, ...]

    @property
    def size(self) -> int:
        """int: bytes of everything that is live, the queued releases included."""
        return sum(resource.size for resource in self.resources) + sum(one.size for one in self.queued)

    @property
    def count(self) -> int:
        """int: how many allocations are live, the queued releases included."""
        return sum(len(resource.allocations) for resource in self.resources) + len(self.queued)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, texts and numbers, with the sums."""
        return {
            "size": self.size,
            "count": self.count,
            "resources": [
                {"size": resource.size, "count": len(resource.allocations), **attrs.asdict(resource)}
                for resource in self.resources
            ],
            "queued": [attrs.asdict(one) for one in self.queued],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self, limit: int | None = None) -> str:
        """Return a table.

        Parameters
        ----------
        limit : int, optional
            How many allocations of each resource to show, the largest ones. By default all.
        """
        if not self.count:
            return "nothing is live"
        lines = [f"{bytes_text(self.size)} live in {_times(self.count, 'allocation')}"]
        for resource in self.resources:
            lines += ["", _heading(resource)]
            shown = sorted(resource.allocations, key=lambda one: (-one.size, one.serial))[:limit]
            lines += table(("buffer", "state", "loans", "size", "address", "made since"), map(_row, shown))
            hidden = len(resource.allocations) - len(shown)
            if hidden:
                lines.append(f"  and {hidden} more, none of them larger")
        if self.queued:
            lines += ["", f"queued releases: {bytes_text(sum(one.size for one in self.queued))}"]
            rows = (
                (
                    f"#{one.serial}",
                    one.state,
                    bytes_text(one.size),
                    f"{one.address:#x}",
                    one.resource,
                    one.place,
                )
                for one in self.queued[:limit]
            )
            lines += table(("buffer", "state", "size", "address", "resource", "where"), rows)
            if limit is not None and len(self.queued) > limit:
                lines.append(f"  and {len(self.queued) - limit} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text(_SHOWN)


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _heading(resource: LiveResource) -> str:
    held = _times(len(resource.allocations), "allocation")
    text = f"{resource.resource}, {resource.place}: {bytes_text(resource.size)} in {held}"
    if resource.mapped_size != resource.size:
        text += f", {bytes_text(resource.mapped_size)} mapped"
    return text


def _row(one: LiveAllocation) -> tuple[object, ...]:
    state = one.state
    if one.paused:
        state += " paused"
    if one.busy:
        state += ", in use"
    if one.failed:
        state += ", failed"
    return f"#{one.serial}", state, one.loans or "-", bytes_text(one.size), f"{one.address:#x}", one.age


def resource_name(resource: object) -> str:
    """Return what a user would call whatever frees the memory."""
    if isinstance(resource, FreeFunction):
        function = resource.function
        return f"function {getattr(function, '__qualname__', None) or type(function).__name__}"
    return type(resource).__name__


def device_of(resource: object, device_id: int) -> int | None:
    """Return the device: what the record says, else what the resource does; -1 for the host."""
    if device_id >= 0:
        return device_id
    if not isinstance(resource, MemoryResource):
        return None
    try:
        answer = resource.device_id
        return answer if isinstance(answer, int) else -1
    except Exception:  # a resource without a device says so in this way, and an author's property may fail
        return -1


def memory_report() -> MemoryReport:
    """Return what is live: every allocation that must still be returned, and what nobody can return any more.

    Returns
    -------
    MemoryReport
        By resource and device, with size, state, loans and age of each allocation, and the queued releases.

    Notes
    -----
    It is always there; nothing has to be switched on, and no buffer is kept alive by it. Borrowed buffers own nothing
    and are not in it. Memory whose buffer or ``Allocation`` is gone without returning it stays in it, ``"KEPT"`` or
    ``"DROPPED"``, until its address is freed by a ``deallocate`` that the package hears of, or has an owner again.

    All allocations are seen at one moment, the queue a moment later. Safe from any thread; no driver call is made. A
    resource written in Python is asked for its ``device_id``. In the child of a fork the report has nothing of the
    parent's.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource, memory_report
    >>> Device(0).set_current()
    >>> buffer = LegacyPinnedMemoryResource().allocate(4096)
    >>> report = memory_report()
    >>> [(resource.resource, resource.size) for resource in report.resources]
    [('LegacyPinnedMemoryResource', 4096)]
    >>> buffer.close().name
    'DONE'
    >>> print(memory_report())
    nothing is live
    """
    facts = _inventory.live_allocations()
    newest = _inventory.newest()
    found: dict[tuple[int, int, str], tuple[str, Any, list[LiveAllocation]]] = {}
    for serial, address, size, device_id, resource, kind, state, loans, busy, failed, mapped, paused in facts:
        freed_by = resource.function if isinstance(resource, FreeFunction) else resource
        key = id(freed_by), device_id, ""
        if key not in found:
            found[key] = resource_name(resource), device_of(resource, device_id), []
        if state == "OWNED" and issubclass(kind, Allocation):
            state = "DETACHED"
        found[key][2].append(
            LiveAllocation(
                serial=serial,
                address=address,
                size=size,
                state=state,
                loans=loans,
                busy=busy,
                failed=failed,
                age=max(newest - serial, 0),
                mapped_size=mapped,
                paused=paused,
            )
        )
    seen = {one.serial for _, _, allocations in found.values() for one in allocations}
    for entry in _left_behind.left_behind():
        if not is_left(entry.address):
            _left_behind.end(entry.address)
            continue
        if entry.serial in seen:  # it was left between the two looks
            continue
        held_by = entry.resource() if entry.resource is not None else None
        # The number of a resource that is gone can be another's by now.
        key = entry.resource_id, entry.device_id, entry.name if held_by is None else ""
        if key not in found:
            known = entry.device_id if entry.device_id >= 0 else None
            device = device_of(held_by, entry.device_id) if held_by is not None else known
            found[key] = entry.name, device, []
        found[key][2].append(
            LiveAllocation(
                serial=entry.serial,
                address=entry.address,
                size=entry.size,
                state=entry.state,
                loans=0,
                busy=False,
                failed=entry.failed,
                age=max(newest - entry.serial, 0),
                mapped_size=entry.mapped,
                paused=entry.paused,
            )
        )
    resources = [
        LiveResource(
            resource=name,
            resource_id=key[0],
            device_id=device,
            allocations=tuple(sorted(allocations, key=lambda one: one.serial)),
        )
        for key, (name, device, allocations) in found.items()
    ]
    resources.sort(
        key=lambda one: (-one.size, one.resource, one.device_id is None, one.device_id, one.resource_id)
    )
    states = ("WAITING", "REFUSED", "GIVEN UP")
    queued = tuple(
        QueuedRelease(
            serial=serial, address=address, size=size, resource=resource, place=place, state=states[state]
        )
        for serial, address, size, place, resource, state in queued_releases()
    )
    return MemoryReport(resources=tuple(resources), queued=queued)
