# SPDX-License-Identifier: Apache-2.0
"""What is allocated, and where in the program it was asked for."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Any, TypeAlias

import attrs

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._checks import address, integer
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["OpenAllocation", "TrackingAdaptor"]


@attrs.frozen
class OpenAllocation:
    """An allocation that has not been freed yet, as :meth:`TrackingAdaptor.open_allocations` gives it.

    Attributes
    ----------
    serial : int
        The how manieth allocation of its adaptor it was, from 1.
    address, size : int
        Where it begins, and its size in bytes.
    thread : str
        Name of the thread that asked for it.
    origin : traceback.StackSummary
        Where in the program it was asked for, the innermost call last. Empty if the adaptor keeps no frames.
    """

    serial: int
    address: int
    size: int
    thread: str
    origin: traceback.StackSummary = attrs.field(eq=False)

    def __str__(self) -> str:
        text = f"allocation {self.serial}: {self.size} bytes at {self.address:#x}, by thread {self.thread}"
        return text + "".join(
            f"\n    {frame.filename}:{frame.lineno} in {frame.name}" for frame in self.origin
        )


# A call of the program, without its frame, which would keep what its variables hold.
_Place: TypeAlias = tuple[CodeType, int]
# What is noted of an allocation; it becomes an object of the class above, and its calls readable, when somebody looks.
_Entry: TypeAlias = tuple[int, int, int, str, tuple[_Place, ...]]


def _summary(places: tuple[_Place, ...]) -> traceback.StackSummary:
    return traceback.StackSummary.from_list(
        [
            traceback.FrameSummary(code.co_filename, line, code.co_name, lookup_line=False)
            for code, line in reversed(places)
        ]
    )


class TrackingAdaptor(MemoryResourceAdaptor):
    """Knows what is allocated from a memory resource, and where it was asked for.

    Parameters
    ----------
    inner : MemoryResource
        The resource to watch.
    frames : int, optional
        How many calls of the program are noted for each allocation, the innermost ones. 0 notes none, which is
        quicker.

    Raises
    ------
    TypeError
        If ``frames`` is not an integer, or ``inner`` no memory resource.
    ValueError
        If ``frames`` is negative.

    Notes
    -----
    Safe from any thread. An entry goes before the memory does, so that an address that another thread gets at once is
    never taken for the old one. If the free fails, the entry is back. Empty buffers have no entry.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import TrackingAdaptor
    >>> Device(0).set_current()
    >>> mr = TrackingAdaptor(LegacyPinnedMemoryResource())
    >>> buffer = mr.allocate(4096)
    >>> [(entry.serial, entry.size) for entry in mr.open_allocations()]
    [(1, 4096)]
    >>> buffer.close().name
    'DONE'
    >>> print(mr.report())
    nothing is allocated
    """

    def __init__(self, inner: MemoryResource, frames: int = 8) -> None:
        super().__init__(inner)
        self._frames = min(integer(frames, "frames", 0), sys.maxsize)
        self._serials = itertools.count(1)
        # By address, as in the class above; each change is one operation.
        self._open: dict[Any, _Entry] = {}

    def _places(self) -> tuple[_Place, ...]:
        """Return the calls that lead here, the innermost first."""
        places: list[_Place] = []
        wanted = self._frames
        frame: FrameType | None = sys._getframe(2) if wanted else None
        while frame is not None and frame.f_globals.get("__name__", "").startswith("cuda.core.adaptors."):
            frame = frame.f_back  # of adaptors around this one
        while frame is not None and len(places) < wanted:
            places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return tuple(places)

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource and note it. As :meth:`MemoryResourceAdaptor.allocate`."""
        places = self._places()
        buffer = super().allocate(size, stream=stream)
        taken = buffer.size
        if taken:
            at = buffer.handle
            self._note((next(self._serials), at, taken, threading.current_thread().name, places))
        return buffer

    def _note(self, entry: _Entry) -> None:
        if self._open.setdefault(entry[1], entry) is not entry:
            self._open[entry[1], entry[0]] = entry  # one of several owners of the address

    def _forget(self, at: int, size: int) -> _Entry | None:
        """Take out the entry of an allocation."""
        entry = self._open.get(at)
        if entry is not None and entry[2] == size:
            return self._open.pop(at, None)
        for key, entry in list(self._open.items()):
            if entry[1] == at and entry[2] == size:
                return self._open.pop(key, None)
        return None

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Forget and free, in this order. As :meth:`MemoryResourceAdaptor.deallocate`."""
        if type(ptr) is not int or type(size) is not int:
            ptr, size = address(ptr), integer(size, "size")
        entry = self._forget(ptr, size)
        try:
            super().deallocate(ptr, size, stream=stream)
        except BaseException as error:
            # An interrupt may have come behind the free.
            if entry is not None and (isinstance(error, Exception) or self._has(ptr)):
                self._note(entry)
            raise

    def open_allocations(self) -> list[OpenAllocation]:
        """Return what is allocated, the oldest first.

        Returns
        -------
        list of OpenAllocation

        Examples
        --------
        >>> tracked = TrackingAdaptor(pinned)
        >>> with tracked.allocate(64):
        ...     [entry.size for entry in tracked.open_allocations()]
        [64]
        """
        entries = sorted(self._open.copy().values(), key=lambda entry: entry[0])
        return [
            OpenAllocation(serial, at, size, thread, _summary(places))
            for serial, at, size, thread, places in entries
        ]

    def report(self) -> str:
        """Return what is allocated as a text, with origins.

        Returns
        -------
        str

        Examples
        --------
        >>> TrackingAdaptor(pinned).report()
        'nothing is allocated'
        """
        entries = self.open_allocations()
        if not entries:
            return "nothing is allocated"
        total = sum(entry.size for entry in entries)
        return "\n".join([f"{len(entries)} allocations, {total} bytes", *map(str, entries)])
