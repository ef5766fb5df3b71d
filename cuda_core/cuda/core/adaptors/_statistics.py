# SPDX-License-Identifier: Apache-2.0
"""How much is allocated, was at most, and was in all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._cell import Cell
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["MemoryStatistics", "StatisticsAdaptor"]


@attrs.frozen
class MemoryStatistics:
    """Bytes and numbers of allocations at one moment.

    Attributes
    ----------
    current_bytes, current_count : int
        What is allocated now. Of a region that :meth:`StatisticsAdaptor.push` began they say by how much it changed
        since, and are negative where more was freed.
    peak_bytes, peak_count : int
        The most that was allocated at one time. At least 0.
    total_bytes, total_count : int
        All that was ever allocated.

    Notes
    -----
    A record of integers that never changes.
    """

    current_bytes: int = 0
    current_count: int = 0
    peak_bytes: int = 0
    peak_count: int = 0
    total_bytes: int = 0
    total_count: int = 0


# The six numbers of a region, in the order of the class above. They change with each allocation, and an object of that
# class would be made for each.
_Numbers: TypeAlias = tuple[int, int, int, int, int, int]
_Stack: TypeAlias = tuple[_Numbers, ...]
_NONE: _Numbers = (0, 0, 0, 0, 0, 0)


def _allocated(stack: _Stack, size: int) -> _Stack:
    current_bytes, current_count, peak_bytes, peak_count, total_bytes, total_count = stack[-1]
    current_bytes += size
    current_count += 1
    top = (
        current_bytes,
        current_count,
        current_bytes if current_bytes > peak_bytes else peak_bytes,
        current_count if current_count > peak_count else peak_count,
        total_bytes + size,
        total_count + 1,
    )
    return (top,) if len(stack) == 1 else (*stack[:-1], top)


def _freed(stack: _Stack, size: int) -> _Stack:
    current_bytes, current_count, peak_bytes, peak_count, total_bytes, total_count = stack[-1]
    top = (current_bytes - size, current_count - 1, peak_bytes, peak_count, total_bytes, total_count)
    return (top,) if len(stack) == 1 else (*stack[:-1], top)


def _joined(below: _Numbers, top: _Numbers) -> _Numbers:
    """Return what a region has seen when one inside it ends."""
    return (
        below[0] + top[0],
        below[1] + top[1],
        max(below[2], below[0] + top[2]),
        max(below[3], below[1] + top[3]),
        below[4] + top[4],
        below[5] + top[5],
    )


class StatisticsAdaptor(MemoryResourceAdaptor):
    """Counts what a memory resource hands out.

    Parameters
    ----------
    inner : MemoryResource
        The resource to count for.

    Notes
    -----
    Counted are the sizes of the buffers, which a resource may round up. A buffer counts until its free has succeeded,
    or was queued: what waits in the queue is in no peak. Empty buffers count as allocations of 0 bytes.

    Safe from any thread. Regions belong to the adaptor: what any thread allocates counts for the innermost one.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import StatisticsAdaptor
    >>> Device(0).set_current()
    >>> mr = StatisticsAdaptor(LegacyPinnedMemoryResource())
    >>> kept = mr.allocate(1000)
    >>> with mr.region() as region:
    ...     mr.allocate(500).close()
    <CloseResult.DONE: 0>
    >>> region.statistics.peak_bytes, region.statistics.current_bytes
    (500, 0)
    >>> mr.statistics.peak_bytes, mr.statistics.current_bytes
    (1500, 1000)
    >>> kept.close().name
    'DONE'
    """

    def __init__(self, inner: MemoryResource) -> None:
        super().__init__(inner)
        self._stack: Cell[_Stack] = Cell((_NONE,))

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource and count it. As :meth:`MemoryResourceAdaptor.allocate`."""
        buffer = super().allocate(size, stream=stream)
        self._stack.change(_allocated, buffer.size)
        return buffer

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Free and count it, in this order. As :meth:`MemoryResourceAdaptor.deallocate`."""
        try:
            super().deallocate(ptr, size, stream=stream)
        except (KeyboardInterrupt, SystemExit):
            if not self._has(ptr):  # it came behind the free
                self._stack.change(_freed, int(size))
            raise
        if ptr or not size:  # a call by hand frees nothing at no address
            self._stack.change(_freed, int(size))

    @property
    def statistics(self) -> MemoryStatistics:
        """MemoryStatistics: of the innermost region; without one, of everything since the adaptor was made."""
        return MemoryStatistics(*self._stack.value[-1])

    @property
    def depth(self) -> int:
        """int: how many regions are open."""
        return len(self._stack.value) - 1

    def push(self) -> None:
        """Begin a region: :attr:`statistics` starts from zero, until :meth:`pop`.

        Examples
        --------
        >>> counted = StatisticsAdaptor(pinned)
        >>> counted.push()
        >>> counted.allocate(64).close()
        <CloseResult.DONE: 0>
        >>> counted.pop().peak_bytes
        64
        """
        self._stack.change(lambda stack: (*stack, _NONE))

    def pop(self) -> MemoryStatistics:
        """End the innermost region. The one around it has seen what it saw.

        Returns
        -------
        MemoryStatistics
            What the region saw.

        Raises
        ------
        RuntimeError
            If no region is open.

        Examples
        --------
        >>> counted = StatisticsAdaptor(pinned)
        >>> counted.push()
        >>> counted.pop().total_count
        0
        """
        ended: list[_Numbers] = []

        def end(stack: _Stack) -> _Stack:
            if len(stack) < 2:
                raise RuntimeError("no region is open: there is one pop for each push")
            *outer, below, top = stack
            ended[:] = [top]
            return (*outer, _joined(below, top))

        self._stack.change(end)
        return MemoryStatistics(*ended[0])

    @contextlib.contextmanager
    def region(self) -> Iterator[_Region]:
        """Have a region for the length of a ``with`` block.

        Yields
        ------
        object
            Its ``statistics`` says what the region saw, or sees at the moment.

        Notes
        -----
        Regions are a stack: blocks that overlap without one being inside the other, in two threads, mix what they see.

        Examples
        --------
        >>> counted = StatisticsAdaptor(pinned)
        >>> with counted.region() as region:
        ...     counted.allocate(64).close()
        <CloseResult.DONE: 0>
        >>> region.statistics.total_bytes
        64
        """
        region = _Region(self)
        self.push()
        try:
            yield region
        finally:
            region._ended = self.pop()


class _Region:
    """What :meth:`StatisticsAdaptor.region` yields."""

    def __init__(self, adaptor: StatisticsAdaptor) -> None:
        self._adaptor = adaptor
        self._ended: MemoryStatistics | None = None

    @property
    def statistics(self) -> MemoryStatistics:
        """MemoryStatistics: what the region saw; inside the block, what it has seen so far."""
        return self._adaptor.statistics if self._ended is None else self._ended
