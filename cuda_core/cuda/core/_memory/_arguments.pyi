# SPDX-License-Identifier: Apache-2.0
# Made from _arguments.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Checks of the numbers that users give, made before anything is done with them."""

def size_argument(value: object, name: str) -> int:
    """Return a size in bytes.

    Raises
    ------
    TypeError
        If ``value`` is not an integer. A bool counts as none: it is a mistake wherever a size is meant.
    ValueError
        If it is negative.
    OverflowError
        If it is larger than 2**63 - 1.
    """
