# SPDX-License-Identifier: Apache-2.0
"""Public names whose modules are imported when they are first asked for: making classes of options takes time."""

import sys
from importlib import import_module
from typing import Any

__all__ = ["fetch", "names"]


def fetch(package: str, name: str, homes: dict[str, str]) -> Any:
    """Import a name that a package hands on, and put it there, so that the package is not asked again.

    Raises
    ------
    AttributeError
        If it is none of those names.
    """
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    setattr(sys.modules[package], name, value)
    return value


def names(package: str, homes: dict[str, str]) -> list[str]:
    """Return what ``dir`` shows of a package: also what was not asked for yet."""
    return sorted({*vars(sys.modules[package]), *homes})
