# SPDX-License-Identifier: Apache-2.0
# Made from _journal.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The journal: from the events of the recorder to the life of each allocation.

A life begins when a record comes to own something, and ends when that was returned, lost or passed on. Memory is
bounded: the lives of what is still there are kept; of those that have ended, the youngest; of the loans on one
allocation, the first. What was left out is counted. Sums by resource and by place in the program hold for everything.

Compiled, because all of it runs while the program waits.
"""

from typing import Any

__all__ = ["Journal", "Life", "name_thread"]

class Life:
    """What is known of one allocation in the hands of one record."""

    @property
    def serial(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def origin(self) -> int: ...

    @property
    def resource(self) -> int: ...

    @property
    def failures(self) -> int: ...

    @property
    def begun(self) -> int | None: ...

    @property
    def ended(self) -> int | None: ...

    @property
    def thread(self) -> int | None: ...

    @property
    def source(self) -> int: ...

    @property
    def taker(self) -> int: ...

    @property
    def ending(self) -> str: ...

    @property
    def states(self) -> list[tuple[int, str]]: ...

    @property
    def events(self) -> list[tuple[int, int | None, str]]: ...

    @property
    def loans(self) -> int: ...

    @property
    def left_out(self) -> int: ...

class Sums:
    """Sums that hold for everything, whatever was left out."""

    @property
    def count(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def live(self) -> int: ...

    @property
    def live_count(self) -> int: ...

    @property
    def peak(self) -> int: ...

    @property
    def collected(self) -> int: ...

    @property
    def peak_time(self) -> int | None: ...

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

    @property
    def begun(self) -> int: ...

    @property
    def seeded(self) -> bool: ...

    @seeded.setter
    def seeded(self, value: bool) -> None: ...

    @property
    def lives(self) -> dict[int, Life]: ...

    @property
    def resources(self) -> list[tuple[str, int | None]]: ...

    @property
    def threads(self) -> dict[int, str]: ...

    @property
    def total(self) -> Sums: ...

    @property
    def by_resource(self) -> list[Sums]: ...

    @property
    def left_out(self) -> int: ...

    @property
    def left_out_until(self) -> int | None: ...

    @property
    def lost_events(self) -> int: ...

    @property
    def lost_loans(self) -> int: ...

    def __init__(self, begun: int, limit: int, threads: dict[int, str]) -> None:
        ...

    def take(self, events: list[tuple[Any, ...]], lost_loans: int, lost_others: int) -> None:
        """Take up what the recorder has written."""

    def seed(self, serial: int, address: int, size: int, resource: int, state: str, loans: int) -> None:
        """Take up an allocation that was there before the recording."""

    def resource_number(self, name: str, device: int | None, identity: int) -> int:
        ...

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

def name_thread(names: dict[int, str], number: int, ident: int) -> None:
    """Note what a thread is called, once."""
