# SPDX-License-Identifier: Apache-2.0
"""How an offending value is shown in the text of an error."""

from __future__ import annotations

__all__ = ["shown"]

_LONGEST = 500


def shown(value: object) -> str:
    """Return a value as text that fits into an error, whatever it is.

    An error is made to tell what is wrong with a value, and must not become another error over it: an integer may have
    more digits than Python prints, and a ``__repr__`` may fail or be as long as the memory that is looked at.
    """
    try:
        text = repr(value)
    except Exception as error:
        if isinstance(value, int):
            text = f"an integer of {int.bit_length(value)} bits"
        else:
            text = f"an object whose repr() raises {type(error).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
