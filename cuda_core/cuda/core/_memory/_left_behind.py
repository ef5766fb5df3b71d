# SPDX-License-Identifier: Apache-2.0
"""What stays allocated with nobody to return it: the buffer or the ``Allocation`` that had it is gone.

An entry is made where a record goes that is still on the list of what is live. Whether it is still so is known by its
address, in `_allocation`: the address leaves where it is freed all the same, or owned again, and entries without an
address are taken out by whoever looks. An entry keeps nothing alive.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import weakref

__all__ = ["LeftBehind", "end", "left_behind"]


class LeftBehind(NamedTuple):
    """What is known of one allocation that was left behind."""

    serial: int
    address: int
    size: int
    mapped: int
    paused: bool
    device_id: int
    state: str
    failed: bool
    resource: weakref.ref[Any] | None  # None for a function
    resource_id: int
    name: str
    process: int


# By address; of a resource around another, both can be left at one. The facts are plain tuples here: where they are
# noted no instruction of Python may run, since it could be where an interrupt is raised, which would be lost.
entries: dict[int, tuple[tuple[Any, ...], ...]] = {}


def end(address: int) -> None:
    """Take out what was left at an address: it was freed, or has an owner again."""
    entries.pop(address, None)


def left_behind() -> list[LeftBehind]:
    """Return what was left behind, the oldest first; in the child of a fork nothing of the parent's."""
    process = os.getpid()
    found = [LeftBehind._make(facts) for at_address in entries.copy().values() for facts in at_address]
    return sorted((entry for entry in found if entry.process == process), key=lambda entry: entry.serial)
