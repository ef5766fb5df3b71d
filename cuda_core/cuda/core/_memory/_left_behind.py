# SPDX-License-Identifier: Apache-2.0
"""What stays allocated with nobody to return it: the buffer or the ``Allocation`` that had it is gone.

An entry is made where a record goes that is still on the list of what is live. Whether it is still so is known by its
address, in `_allocation`: the address leaves where it is freed all the same, or owned again, and entries without an
address are taken out by whoever looks. An entry keeps nothing alive.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import attrs

__all__ = ["LeftBehind", "end", "left_behind", "note"]


@attrs.frozen(eq=False)
class LeftBehind:
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


# By address and number: of a resource around another, both can be left at one address. Each change is one operation.
entries: dict[tuple[int, int], LeftBehind] = {}


def note(
    serial: int,
    address: int,
    size: int,
    mapped: int,
    paused: bool,
    device_id: int,
    state: str,
    failed: bool,
    resource: Any,
    function: Any,
) -> None:
    """Make an entry. ``function`` is what frees where there is no resource."""
    reference = None
    if function is None:
        name = type(resource).__name__
        reference = weakref.ref(resource)
    else:
        name = f"function {getattr(function, '__qualname__', None) or type(function).__name__}"
    freed_by = resource if function is None else function
    entries[address, serial] = LeftBehind(
        serial,
        address,
        size,
        mapped,
        paused,
        device_id,
        state,
        failed,
        reference,
        id(freed_by),
        name,
        os.getpid(),
    )


def end(address: int) -> None:
    """Take out what was left at an address: it was freed, or has an owner again."""
    for key in [key for key in entries.copy() if key[0] == address]:
        entries.pop(key, None)


def left_behind() -> list[LeftBehind]:
    """Return what was left behind, the oldest first; in the child of a fork nothing of the parent's."""
    process = os.getpid()
    return sorted(
        (entry for entry in entries.copy().values() if entry.process == process),
        key=lambda entry: entry.serial,
    )
