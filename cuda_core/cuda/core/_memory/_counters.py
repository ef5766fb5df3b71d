# SPDX-License-Identifier: Apache-2.0
"""What this package holds at the moment, by its own count. Tests assert that it comes back to where it was."""

from cuda.core._event import live_event_handles
from cuda.core._memory._allocation import live_memory
from cuda.core._memory._graph_place import live_graphs
from cuda.core._memory._import_table import live_imports
from cuda.core._memory._ipc import live_descriptors
from cuda.core._memory._pool_handle import live_pools
from cuda.core._memory._pool_registry import count as registered_pools
from cuda.core._memory._queue import queue_counts
from cuda.core._stream_handle import live_stream_handles

__all__ = ["live"]


def live() -> dict[str, int]:
    """Return how many records of each kind are live; kinds without any are left out.

    Returns
    -------
    dict of str to int
        ``buffers`` that must still return something, ``ranges`` of virtual memory with their ``reservations``,
        ``mappings`` and ``chunk_references``, ``pools`` that were made or opened here, ``graphs`` of which something
        is known, ``stream_handles`` and ``event_handles``, releases that are ``queued`` or ``stuck`` in the queue; of
        what is shared with other processes, ``imports`` (addresses), file ``descriptors`` of pools, and
        ``registered_pools``.

    Notes
    -----
    The numbers are exact at the moment each is read. Safe from any thread; no driver call is made.
    """
    counts = live_memory()
    counts["stream_handles"] = live_stream_handles()
    counts["pools"] = live_pools()
    counts["graphs"] = live_graphs()
    counts["event_handles"] = live_event_handles()
    counts["imports"] = live_imports()
    counts["descriptors"] = live_descriptors()
    counts["registered_pools"] = registered_pools()
    counts.update(queue_counts())
    return {kind: number for kind, number in counts.items() if number}
