# SPDX-License-Identifier: Apache-2.0
"""How an offending value is shown in the text of an error."""

import reprlib

__all__ = ["shown"]


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        repr(x)  # raises where it has too many digits; what is said then since 3.14 has an address in it
        return super().repr_int(x, level)


_repr = _Repr()
_repr.maxother = _repr.maxstring = 160


def shown(value: object) -> str:
    """Return a value as one short line, whatever its ``repr`` is."""
    try:
        return " ".join(_repr.repr(value).split())
    except Exception as error:  # an integer may have more digits than Python prints
        if isinstance(value, int):
            return f"an integer of {int.bit_length(value)} bits"
        return f"an object whose repr() raises {type(error).__name__}"
