# SPDX-License-Identifier: Apache-2.0
"""The pools that this process shares with others, by their UUID. They are held weakly, and forgotten when closed."""

from __future__ import annotations

import uuid as uuids
import weakref
from typing import Any

__all__ = ["count", "find", "forget", "register"]

# The keys are bytes: looking for one runs no code of Python, so setdefault is one step.
_known: dict[bytes, weakref.ref[Any]] = {}


def register(uuid: uuids.UUID, resource: Any) -> Any:
    """Enter a resource unless an open one has the UUID already; return whichever has it. Of two threads one wins."""
    key = uuid.bytes
    mine = weakref.ref(resource, lambda gone: _remove(key, gone))
    while True:
        entry = _known.setdefault(key, mine)
        found = entry()
        if found is not None and not found.is_closed:
            return found
        _remove(key, entry)


def find(uuid: uuids.UUID) -> Any:
    """Return the open resource with this UUID, or None."""
    entry = _known.get(uuid.bytes)
    found = None if entry is None else entry()
    return None if found is None or found.is_closed else found


def forget(uuid: uuids.UUID, resource: Any) -> None:
    """Remove a resource that was closed, unless another has its UUID by now."""
    entry = _known.get(uuid.bytes)
    if entry is not None and entry() is resource:
        _remove(uuid.bytes, entry)


def _remove(key: bytes, entry: weakref.ref[Any]) -> None:
    # Equality of references would compare what they refer to.
    if _known.get(key) is entry:
        _known.pop(key, None)


def count() -> int:
    """Return how many resources are registered."""
    return len(_known)
