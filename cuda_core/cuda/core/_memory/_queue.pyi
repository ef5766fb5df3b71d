# SPDX-License-Identifier: Apache-2.0
# Made from _queue.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The queue of releases that wait behind a stream, and the reaper thread that makes them.

The reaper is a thread of C code. It never takes the GIL and runs no Python; what it could not return it reports through
a pending call of the main thread. Jobs that wait for the same stream are a group, of which the first is asked. The
groups are asked in turn, so that a long one holds up no other, and a new job is asked before them: what it costs to
queue one does not grow with what is waiting. Nothing is done to a stream that is being captured.

A job owns what it holds: from the moment it is queued, no buffer does. What the driver refuses stays with the queue and
is tried again after a later release that succeeded, and where an allocation is short of memory; of a collection it is
only counted.
"""

from typing import Any

__all__ = ["drain"]

def queue_counts() -> dict[str, int]:
    """Return how many releases are queued, and how many could not be made."""

def queued_releases() -> list[tuple[Any, ...]]:
    """Return what the queue answers for, the oldest first.

    Returns
    -------
    list of tuple
        Of each release the serial number of its buffer, the address, the size in bytes, a text that tells where the
        memory lies, the name of the resource's type, and its standing: 0 waiting, 1 refused by the driver and to be
        tried again, 2 refused and given up.
    """

def drain(timeout: float | None = None) -> bool:
    """Wait until every queued release is made.

    What the handler of a signal raises, such as KeyboardInterrupt, ends the wait. The releases stay queued.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait at most. By default as long as it takes; a release behind a capture takes until its end.

    Returns
    -------
    bool
        Whether the queue is empty.
    """
