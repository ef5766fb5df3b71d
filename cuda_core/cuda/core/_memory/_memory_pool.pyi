# SPDX-License-Identifier: Apache-2.0
# Made from _memory_pool.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What all resources on a memory pool of the driver share: the pool, allocating, and returning in stream order."""

from cuda.bindings import driver
from cuda.core._memory._buffer import Buffer
from cuda.core._memory._indexed_resource import IndexedResource
from cuda.core._memory._pool_attributes import _MemPoolAttributes
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType
from uuid import UUID

__all__ = []

class _MemPool(IndexedResource):
    """Base of the resources that allocate from a memory pool, in the order of streams."""

    def close(self) -> None:
        """Give the pool up. Closing twice is harmless.

        Open buffers stay valid. A pool that this resource made is destroyed with the last of them, or now if there is
        none; the pool of a device stays. Nothing can be allocated any more, but :meth:`deallocate` goes on working.

        Raises
        ------
        CUDAError
            If the driver refuses to destroy the pool. The resource stays open, and can be closed again.

        Examples
        --------
        >>> pool = DeviceMemoryResource(device, {"max_size": 64 << 20})
        >>> pool.close()
        >>> pool.is_closed
        True
        """

    @property
    def is_closed(self) -> bool:
        """bool: whether the resource has given its pool up."""

    @property
    def handle(self) -> driver.CUmemoryPool:
        """CUmemoryPool: the pool as a ``cuda.bindings.driver`` object; a null one once the resource is closed."""

    @property
    def is_handle_owned(self) -> bool:
        """bool: whether this resource made its pool. False once it is closed."""

    @property
    def is_ipc_enabled(self) -> bool:
        """bool: whether the pool was made to be shared with other processes. False once the resource is closed."""

    @property
    def is_mapped(self) -> bool:
        """bool: whether the pool is of another process. Only those that can be shared ever are."""

    @property
    def uuid(self) -> UUID | None:
        """uuid.UUID or None: what other processes know a shareable pool by; None for others, and once closed."""

    @property
    def attributes(self) -> _MemPoolAttributes:
        """object: the pool's attributes: how many bytes it holds, and how it reuses memory.

        Raises
        ------
        RuntimeError
            If the resource is closed, now or when an attribute is read.
        """

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
        """Allocate a buffer in the order of a stream. The call waits for nothing.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : Stream
            The memory can be used by work that is put into this stream from now on, and by what is ordered behind that.
            It is recorded: the release is ordered behind its work.

        Returns
        -------
        Buffer
            The new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is None or no stream; if the pool is of
            another process. No driver call is made.
        RuntimeError
            If the resource or the stream is closed, or the stream is being captured; the capture goes on.
        CUDAError
            If the driver refuses. Out of memory is answered once the queue of releases is empty.

        Notes
        -----
        Safe from any thread, with or without a current context.

        Examples
        --------
        >>> buffer = mr.allocate(1024, stream=stream)
        >>> buffer.close()  # in the order of the stream
        <CloseResult.DONE: 0>
        """

    def deallocate(self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder) -> None:  # type: ignore[override]
        """Free an allocation by its address, in the order of a stream. Buffers do this by themselves.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : Stream
            The free is ordered behind the work of this stream. The call waits for nothing.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; ``stream`` must be given.
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        CUDAError
            If the driver refuses, or the stream is being captured. The same call can be made again.

        Notes
        -----
        Works after :meth:`close`, too. An ``Allocation`` that is freed this way counts as handed over. An address that
        this resource does not know is freed as told.

        Examples
        --------
        >>> allocation = mr.allocate(1024, stream=stream).detach()
        >>> mr.deallocate(allocation.handle, 1024, stream=stream)
        """
