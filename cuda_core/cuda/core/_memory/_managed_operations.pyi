# SPDX-License-Identifier: Apache-2.0
# Made from _managed_operations.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Where managed memory shall be: advice, prefetching and discarding, for one buffer and for many."""

from collections.abc import Sequence
from cuda.core._device import Device
from cuda.core._host import Host
from cuda.core._memory import Buffer
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder

__all__ = ["discard_batch", "discard_prefetch_batch", "prefetch_batch"]

def prefetch_batch(stream: Stream | GraphBuilder, buffers: Sequence[Buffer], locations: Device | Host | Sequence[Device | Host]) -> None:
    """Move the pages of several managed buffers to places, in the order of a stream. Nothing waits.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.
    locations : Device, Host or sequence of them
        Where to, one for all buffers or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the buffers are none, one is not managed, a location is missing or a NUMA node that this machine lacks, or
        the lengths differ.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    CUDAError
        If the driver refuses, or the stream is being captured, which goes on then.

    Notes
    -----
    Everything is checked before anything starts. All buffers are lent for the length of the call; the stream does not
    order their release (:meth:`Buffer.record_stream`). May be called from any thread.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> prefetch_batch(stream, [a, b], [Device(0), Host()])
    """

def discard_batch(stream: Stream | GraphBuilder, buffers: Sequence[Buffer]) -> None:
    """Tell the driver that what several managed buffers hold is not needed, in the order of a stream. Nothing waits.

    What the buffers hold is undefined until it is written or prefetched again.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is the legacy default stream.
    ValueError, OwnershipError, CUDAError
        As for :func:`prefetch_batch`, whose notes hold here too.

    Notes
    -----
    Safe from any thread. The notes of :func:`prefetch_batch` hold here too.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> discard_batch(stream, [a, b])
    """

def discard_prefetch_batch(stream: Stream | GraphBuilder, buffers: Sequence[Buffer], locations: Device | Host | Sequence[Device | Host]) -> None:
    """Discard what several managed buffers hold and move their pages to places, in the order of a stream.

    Parameters
    ----------
    stream : Stream
        The stream that orders it. Not ``LEGACY_DEFAULT_STREAM``, nor one that is being captured.
    buffers : sequence of Buffer
        Managed memory. Empty buffers are passed over.
    locations : Device, Host or sequence of them
        Where to, one for all buffers or one for each.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or the stream is the legacy default stream.
    ValueError, OwnershipError, CUDAError
        As for :func:`prefetch_batch`, whose notes hold here too.

    Notes
    -----
    Safe from any thread. The notes of :func:`prefetch_batch` hold here too.

    Examples
    --------
    >>> mr = ManagedMemoryResource()
    >>> a, b = mr.allocate(1 << 20, stream=stream), mr.allocate(1 << 20, stream=stream)
    >>> discard_prefetch_batch(stream, [a, b], Device(0))
    """
