# SPDX-License-Identifier: Apache-2.0
# Made from _inventory.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What is live at one moment, as plain facts: a look through the list that every record is on while it owns something.

Under the list's locks only numbers are copied and references counted. What has to be asked of Python (the name of a
resource, its device) is asked afterwards, of resources that are alive because the copy holds them.
"""

from typing import Any

__all__ = ["live_allocations", "newest"]

def live_allocations() -> list[tuple[Any, ...]]:
    """Return what must still be returned, the oldest first.

    Returns
    -------
    list of tuple
        Of each allocation its serial number, address, size in bytes, device ordinal (-1 where the record has none),
        resource, the type of what holds it, ``"OWNED"`` or ``"LENT"``, the number of loans, whether a call is releasing
        or moving it, whether a release has failed, how many bytes are mapped, and whether it is paused.
    """

def newest() -> int:
    """Return the serial number that was given out last."""
