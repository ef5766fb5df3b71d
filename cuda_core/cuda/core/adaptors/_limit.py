# SPDX-License-Identifier: Apache-2.0
"""No more than so many bytes at one time."""

from __future__ import annotations

import operator

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._cell import Cell
from cuda.core.adaptors._checks import integer
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["LimitAdaptor"]


class LimitAdaptor(MemoryResourceAdaptor):
    """Refuses what would bring the memory in use above a limit.

    Parameters
    ----------
    inner : MemoryResource
        The resource to limit.
    limit : int
        The most bytes that may be allocated at one time.

    Raises
    ------
    TypeError
        If ``limit`` is not an integer, or ``inner`` no memory resource.
    ValueError
        If ``limit`` is negative.

    Notes
    -----
    Safe from any thread; threads that race for the last bytes never get more than the limit together. What counts is
    the size of the buffers, which a resource may round up. Bytes count until their free has succeeded, or was queued.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import LimitAdaptor
    >>> Device(0).set_current()
    >>> mr = LimitAdaptor(LegacyPinnedMemoryResource(), 4096)
    >>> buffer = mr.allocate(4000)
    >>> mr.allocate(100)
    Traceback (most recent call last):
    MemoryError: 100 bytes would exceed the limit of 4096 bytes: 4000 are in use
    >>> buffer.close().name
    'DONE'
    """

    def __init__(self, inner: MemoryResource, limit: int) -> None:
        super().__init__(inner)
        self._limit = integer(limit, "limit", 0)
        self._used = Cell(0)

    @property
    def limit(self) -> int:
        """int: the most bytes that may be allocated at one time."""
        return self._limit

    @property
    def used(self) -> int:
        """int: bytes that are allocated now, or being allocated."""
        return self._used.value

    def _take(self, used: int, size: int) -> int:
        if used + size > self._limit:
            raise MemoryError(
                f"{size} bytes would exceed the limit of {self._limit} bytes: {used} are in use"
            )
        return used + size

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource, within the limit. As :meth:`MemoryResourceAdaptor.allocate`.

        Raises
        ------
        MemoryError
            If the limit would be exceeded. The inner resource is not asked.
        TypeError
            If ``size`` is not an integer.
        """
        wanted = integer(size, "size")
        # Before the allocation, so that two threads do not both see the last bytes free. A size that no resource
        # accepts is left to the inner one to refuse.
        taken = max(wanted, 0)
        self._used.change(self._take, taken)
        try:
            buffer = super().allocate(size, stream=stream)
        except BaseException:
            self._used.change(operator.sub, taken)
            raise
        # From here the buffer's free gives its whole size back, so that must be what was taken.
        more = buffer.size - taken
        if more:
            try:
                self._used.change(self._take, more)
            except BaseException:
                self._used.change(operator.add, more)
                buffer.close()
                raise
        return buffer

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Free, and give the bytes back to the limit, in this order. As :meth:`MemoryResourceAdaptor.deallocate`."""
        try:
            super().deallocate(ptr, size, stream=stream)
        except (KeyboardInterrupt, SystemExit):
            if not self._has(ptr):  # it came behind the free
                self._used.change(operator.sub, int(size))
            raise
        if ptr or not size:  # a call by hand frees nothing at no address
            self._used.change(operator.sub, int(size))
