# SPDX-License-Identifier: Apache-2.0
"""How a check says that a resource breaks the contract: what is wanted, and what was seen."""

import reprlib

__all__ = ["ContractBroken", "call", "require", "shown"]

_repr = reprlib.Repr()
_repr.maxother = _repr.maxstring = 160


def shown(value):
    """Return a value as one short line, whatever its ``repr`` is."""
    return " ".join(_repr.repr(value).split())


class ContractBroken(AssertionError):
    """A memory resource does not do what the contract wants. The text says what that is, and what was seen instead.

    Parameters
    ----------
    wanted : str
        What the contract wants, as a sentence.
    seen : str
        What the resource did.
    """

    def __init__(self, wanted: str, seen: str) -> None:
        super().__init__(f"{wanted}\n  seen: {seen}")
        self.wanted = wanted
        self.seen = seen


def require(holds, wanted, seen):
    """Raise :class:`ContractBroken` unless ``holds``. ``seen`` may be a function: it is called where it is needed."""
    if not holds:
        raise ContractBroken(wanted, seen() if callable(seen) else seen)


def call(function, wanted):
    """Call a function that must not raise; return what it returned."""
    try:
        return function()
    except ContractBroken:
        raise
    except Exception as error:
        raise ContractBroken(wanted, f"{type(error).__name__}: {error}") from error
