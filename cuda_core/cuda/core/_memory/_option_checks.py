# SPDX-License-Identifier: Apache-2.0
"""Checks of options, as converters: they run when a value is given and when it is assigned."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from cuda.core._error_text import shown
from cuda.core._memory._arguments import size_argument

__all__ = ["a_flag", "accept", "bytes_count", "one_of"]


def one_of(name: str, kind: type[enum.Enum], *, optional: bool = False) -> Callable[[Any], Any]:
    """Return a converter to a member of a string enumeration."""

    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string{' or None' if optional else ''}, got {shown(value)}")
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(repr(member.value) for member in kind)
            raise ValueError(f"{name} must be one of {known}, got {shown(value)}") from None

    return convert


def bytes_count(name: str, *, optional: bool = False) -> Callable[[Any], Any]:
    """Return a converter to a number from 0 to 2**63 - 1."""

    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        return size_argument(value, name)

    return convert


def a_flag(name: str) -> Callable[[Any], bool]:
    """Return a check for True or False."""

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {shown(value)}")
        return value

    return convert


def option(default: Any, converter: Callable[[Any], Any]) -> Any:
    """Return a field of an options class. To a type checker, what may be given is then what the class declares."""
    import attrs  # not with the package: a program that gives no options needs none of it

    return attrs.field(default=default, converter=converter)


def accept(cls: type, value: Any, name: str) -> Any:
    """Return options given as an object or as a dict of its fields."""
    import attrs

    if isinstance(value, dict):
        unknown = [key for key in value if key not in attrs.fields_dict(cls)]
        if unknown:
            raise TypeError(
                f"{name} has no option {shown(unknown[0])}; known are {', '.join(attrs.fields_dict(cls))}"
            )
        return cls(**value)
    if not isinstance(value, cls):
        raise TypeError(
            f"{name} must be {cls.__name__}, a dict or None, got {type(value).__name__}: {shown(value)}"
        )
    return value
