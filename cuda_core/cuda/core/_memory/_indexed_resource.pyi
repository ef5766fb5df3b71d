# SPDX-License-Identifier: Apache-2.0
# Made from _indexed_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What built-in resources share that free by an address: each address has one owner, and the resource knows which.

The index is read where an address comes from outside (``from_handle``, ``adopt``, a direct ``deallocate``); a release
finds everything it needs in the record.
"""

from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType

class IndexedResource(MemoryResource):
    """A built-in resource with one owner for each address."""

    def deallocate(self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None) -> None:
        """Free an allocation by its address. Buffers do this by themselves; a subclass calls it from its own.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : Stream, optional
            What to wait for first. None waits for nothing.

        Raises
        ------
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        ValueError
            If the size is not that of the detached allocation.
        CUDAError
            If the driver refuses. Nothing is lost: the same call can be made again.

        Notes
        -----
        An ``Allocation`` that is freed this way counts as handed over. An address that this resource does not know is
        freed as told.

        Examples
        --------
        >>> allocation = pinned.allocate(4096).detach()
        >>> pinned.deallocate(allocation.handle, 4096)
        """
