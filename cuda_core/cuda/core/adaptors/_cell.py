# SPDX-License-Identifier: Apache-2.0
"""A value that threads, and frees in the middle of a change, change one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Cell"]

Value = TypeVar("Value")


class Cell(Generic[Value]):
    """Holds a value that is replaced by a function of itself.

    Threads take turns by a lock. A lock does not keep out the thread that holds it: the collector may run inside a
    change, free a buffer, and so come here again. The lock lets it in, and the change that it cut short begins again.

    ``value`` is for reading.
    """

    __slots__ = ("_lock", "value")

    def __init__(self, value: Value) -> None:
        self._lock = threading.RLock()
        self.value = value

    def change(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Replace the value by ``function(value, *arguments)`` and return it. What that raises leaves it as it was."""
        with self._lock:
            while True:
                before = self.value
                after = function(before, *arguments)
                # No call and no new object between these two lines, so that the collector cannot run between them.
                if self.value is before:
                    self.value = after
                    return after
