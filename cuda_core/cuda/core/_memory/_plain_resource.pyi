# SPDX-License-Identifier: Apache-2.0
# Made from _plain_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What resources share that make one driver call for an allocation and one for its free, neither in stream order."""

from cuda.core._memory._buffer import Buffer
from cuda.core._memory._indexed_resource import IndexedResource
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder

class PlainResource(IndexedResource):
    """Base of the resources whose allocations are one driver call each."""

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate a buffer. The call is synchronous; the memory is usable at once.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context.

        Returns
        -------
        Buffer
            The new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is no stream. No driver call is made.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> with LegacyPinnedMemoryResource().allocate(4096) as buffer:
        ...     buffer.is_host_accessible
        True
        """
