# SPDX-License-Identifier: Apache-2.0
"""What counts as an address: integers, and the handles and pointers of the bindings."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["address_of", "is_truth_value"]


def is_truth_value(value: Any) -> bool:
    """Whether this is a bool of Python or of NumPy. Older NumPy lets its own pass for an index, with a warning."""
    kind = type(value)
    return isinstance(value, bool) or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def address_of(value: Any) -> int:
    """Return the integer that a pointer or a handle stands for.

    A number that is no integer is none, though ``int()`` would take it: part of it would be lost without a word.

    Raises
    ------
    TypeError
        If ``value`` stands for no address.
    """
    if type(value) is int:
        return value
    kind = type(value)
    if is_truth_value(value):
        raise TypeError(f"{kind.__name__} is no address")
    if hasattr(kind, "__index__"):
        return operator.index(value)
    # A CUdeviceptr or CUstream of the bindings has only __int__. What can be a float as well is a number, and text has
    # neither, though int() would read it.
    if not hasattr(kind, "__int__") or hasattr(kind, "__float__"):
        raise TypeError(f"{kind.__name__} is no address")
    return int(value)
