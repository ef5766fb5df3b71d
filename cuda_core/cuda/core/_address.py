# SPDX-License-Identifier: Apache-2.0
"""What counts as an address: integers, and the handles and pointers of the bindings."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["address_of"]


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
    if hasattr(kind, "__index__") and not isinstance(value, bool):
        return operator.index(value)
    # A CUdeviceptr or CUstream of the bindings has only __int__. What can be a float as well is a number, and text has
    # neither, though int() would read it.
    if not hasattr(kind, "__int__") or hasattr(kind, "__float__"):
        raise TypeError(f"{kind.__name__} is no address")
    return int(value)
