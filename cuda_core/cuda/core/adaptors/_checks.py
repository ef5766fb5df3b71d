# SPDX-License-Identifier: Apache-2.0
"""Checks of the numbers that adaptors are given, made before anything is done with them."""

from __future__ import annotations

import operator
from typing import Any

from cuda.core.adaptors._shown import shown

__all__ = ["address", "integer"]


def _is_truth_value(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, bool) or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def integer(value: Any, name: str, least: int | None = None) -> int:
    """Return an integer of any kind as an ``int``. A bool counts as none: it is a mistake where a number is meant."""
    try:
        if _is_truth_value(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: {shown(value)}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(number)}")
    return number


def address(value: Any) -> int:
    """Return the number of an address, which may be a ``CUdeviceptr`` of the bindings, or None for 0."""
    if value is None:
        return 0
    kind = type(value)
    # What can be a float as well is a number, and int() would cut it; a pointer of the bindings has only __int__.
    if not _is_truth_value(value):
        if hasattr(kind, "__index__"):
            return operator.index(value)
        if hasattr(kind, "__int__") and not hasattr(kind, "__float__"):
            return int(value)
    raise TypeError(f"ptr must be an address, got {kind.__name__}: {shown(value)}")
