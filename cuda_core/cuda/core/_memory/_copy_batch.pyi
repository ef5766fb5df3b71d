# SPDX-License-Identifier: Apache-2.0
# Made from _copy_batch.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Many copies in one call."""

from collections.abc import Sequence
from cuda.core._memory import Buffer
from cuda.core._memory._copy_options import CopyOptions
from cuda.core._stream import Stream

__all__ = ["copy_batch"]

def copy_batch(stream: Stream, srcs: Sequence[Buffer], dsts: Sequence[Buffer], *, options: CopyOptions | Sequence[CopyOptions] | None = None) -> None:
    """Copy each source buffer to the destination buffer at the same place, in one driver call. Nothing waits.

    Parameters
    ----------
    stream : Stream
        The stream that orders the copies. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured: a graph has no
        node for a batch.
    srcs, dsts : sequence of Buffer
        Equally many, of pairwise equal sizes. Empty buffers are passed over.
    options : CopyOptions or sequence of CopyOptions, optional
        Hints, one for all copies or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is one that a batch cannot use.
    ValueError
        If lengths or sizes differ, a sequence is empty, or a source overlaps its own destination in a part.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    RuntimeError
        If options ask for ``DURING_API_CALL`` and the driver has no batches.
    CUDAError
        If the driver refuses.

    Notes
    -----
    Everything is checked before the first copy. The copies of one batch are in no order among themselves: a buffer must
    not be source in one and destination in another. All buffers are lent for the length of the call; the stream does
    not order their release (:meth:`Buffer.record_stream`). A driver without batches makes one copy after the other.
    May be called from any thread.

    Examples
    --------
    >>> a, b, c, d = (mr.allocate(1024, stream=stream) for _ in range(4))
    >>> copy_batch(stream, [a, b], [c, d], options=CopyOptions(src_access_order="stream"))
    """
