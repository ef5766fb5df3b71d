# SPDX-License-Identifier: Apache-2.0
# Made from _release.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The waist: the one place where a deleter is started. It asks the ownership word first.

Whatever ends an allocation (``close()``, leaving a ``with`` block, the collector, later the last loan) comes through
:func:`release`. The word decides whether the deleter runs; the deleter's outcome decides how the word goes on.
"""

import enum

__all__ = ["CloseResult"]

class CloseResult(enum.Enum):
    """What a ``close()`` has done.

    Attributes
    ----------
    DONE
        The allocation was given back to the driver or to its resource, in stream order.
    QUEUED
        It will be given back behind a stream.
    LENT
        The buffer is closed; the memory goes back when the last loan on it ends.
    IN_PROGRESS
        Another thread is giving it back at this moment.
    NOTHING
        There was nothing to do: closed or transferred before, or called by the deleter of this very buffer.
    """

    DONE = 0
    QUEUED = 1
    LENT = 2
    IN_PROGRESS = 3
    NOTHING = 4
