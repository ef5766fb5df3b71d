# SPDX-License-Identifier: Apache-2.0
# Made from _recorder.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The recorder: writes every change of an ownership word down as it happens, for Python to read later.

It is called in the middle of transitions, from any thread, the reaper of the queue included. So it takes a clock, a
mutex and a line of a table of fixed size, and runs no Python. Where the table is full, what comes is counted and lost,
loans first. Only the making of a new record is a safe moment for Python: there the stack is looked at, and a table
that is half full is read.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["CAPACITY", "Stacks", "drain", "install", "is_installed", "monotonic", "uninstall"]

class Stacks:
    """Where things were made: every stack that was seen, by number.

    Parameters
    ----------
    depth : int
        How many frames are kept of each, the innermost ones.
    limit : int
        How many different stacks are kept; what comes beyond has number 0.

    Notes
    -----
    A stack that was seen before costs a look at the frames and no text. Number 0 has no frames.
    """

    @property
    def depth(self) -> int: ...

    @property
    def limit(self) -> int: ...

    @property
    def frames(self) -> list[tuple[tuple[str, int, str], ...]]: ...

    def __init__(self, depth: int, limit: int = 65536) -> None:
        ...

def monotonic() -> int:
    """Return the time that events are written with, in nanoseconds."""

def is_installed() -> bool:
    ...

def install(stacks: Stacks, when_half_full: Callable[[], object], name_thread: Callable[[int, int], object]) -> None:
    """Begin to record.

    Parameters
    ----------
    stacks : Stacks
        Keeps where things are made.
    when_half_full : callable
        Called, at a moment at which it may do anything, to read the table.
    name_thread : callable
        Called at such moments with the number of the thread and what Python calls it by.

    Raises
    ------
    MemoryError
        If there is none for the tables.
    """

def uninstall() -> None:
    """Stop recording. What was written can still be read."""

def drain() -> tuple[list[tuple[Any, ...]], int, int]:
    """Read the table and empty it.

    Returns
    -------
    events : list of tuple
        Of each the time, code, verdict, serial number, other number, address, size, device, address and type of the
        resource (0 and None where it is not told), thread, taker, and whether a collection has begun it.
    lost_loans, lost_others : int
        How many events there was no room for since the last call.
    """
