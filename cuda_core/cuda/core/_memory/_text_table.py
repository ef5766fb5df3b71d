# SPDX-License-Identifier: Apache-2.0
"""Sizes and columns in plain text, for reports."""

from collections.abc import Iterable, Sequence

__all__ = ["bytes_text", "table"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(size: int) -> str:
    """Return a size in the largest unit of which there is at least one, with three figures at least."""
    number, unit = float(size), 0
    while abs(number) >= 1024 and unit < len(_UNITS) - 1:
        number /= 1024
        unit += 1
    if unit == 0 or number == int(number):
        return f"{int(number)} {_UNITS[unit]}"
    if abs(number) >= 100:
        return f"{number:.0f} {_UNITS[unit]}"
    return f"{number:.1f} {_UNITS[unit]}" if abs(number) >= 10 else f"{number:.2f} {_UNITS[unit]}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines with the cells in columns below their headings, indented by two; the last column is not padded."""
    cells = [tuple(headings), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
