# SPDX-License-Identifier: Apache-2.0
"""What is allocated, and where in the program it was asked for."""

from __future__ import annotations

import itertools
import operator
import sys
import threading
import traceback
from types import FrameType
from typing import Any

import attrs

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._shown import shown
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["OpenAllocation", "TrackingAdaptor"]


@attrs.frozen(eq=False)
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
    origin: traceback.StackSummary

    def __str__(self) -> str:
        text = f"allocation {self.serial}: {self.size} bytes at {self.address:#x}, by thread {self.thread}"
        return text + "".join(
            f"\n    {frame.filename}:{frame.lineno} in {frame.name}" for frame in self.origin
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
        try:
            self._frames = operator.index(frames)
        except TypeError:
            raise TypeError(
                f"frames must be an integer, got {type(frames).__name__}: {shown(frames)}"
            ) from None
        if self._frames < 0:
            raise ValueError(f"frames must not be negative, got {self._frames}")
        self._serials = itertools.count(1)
        # By address; each change is one operation, as in the class above.
        self._open: dict[Any, OpenAllocation] = {}

    def _origin(self) -> traceback.StackSummary:
        if not self._frames:
            return traceback.StackSummary()
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__", "").startswith("cuda.core.adaptors."):
            frame = frame.f_back  # of adaptors around this one
        calls = itertools.islice(traceback.walk_stack(frame), self._frames)
        # The lines of the source are read when somebody looks at them.
        summary = traceback.StackSummary.extract(calls, lookup_lines=False)
        summary.reverse()
        return summary

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource and note it. As :meth:`MemoryResourceAdaptor.allocate`."""
        origin = self._origin()
        buffer = super().allocate(size, stream=stream)
        if buffer.size:
            address = buffer.handle
            self._open[address] = OpenAllocation(
                next(self._serials), address, buffer.size, threading.current_thread().name, origin
            )
        return buffer

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Forget and free, in this order. As :meth:`MemoryResourceAdaptor.deallocate`."""
        entry = self._open.pop(ptr, None)
        try:
            super().deallocate(ptr, size, stream=stream)
        except BaseException:
            if entry is not None:
                self._open[ptr] = entry
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
        return sorted(self._open.copy().values(), key=lambda entry: entry.serial)

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
