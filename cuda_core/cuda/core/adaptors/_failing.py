# SPDX-License-Identifier: Apache-2.0
"""Failures on request, to see what a program does when there is no memory or a free is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import attrs

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._cell import Cell
from cuda.core.adaptors._checks import integer
from cuda.core.adaptors._shown import shown
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["FailingAdaptor"]

_Error: TypeAlias = BaseException | type[BaseException]


@attrs.frozen(eq=False)
class _Request:
    """Fail the n-th from now on, and if sticky those after it."""

    nth: int
    sticky: bool
    error: _Error
    seen: Cell[int] = attrs.field(factory=lambda: Cell(0))

    def meet(self) -> None:
        """Count one more; raise if it is one that shall fail."""
        number = self.seen.change(lambda seen: seen + 1)
        if number == self.nth or (self.sticky and number > self.nth):
            raise self.error() if isinstance(self.error, type) else self.error


_Requests: TypeAlias = Cell[tuple[_Request, ...]]


class FailingAdaptor(MemoryResourceAdaptor):
    """Lets allocations and frees of a memory resource fail on request.

    Parameters
    ----------
    inner : MemoryResource
        The resource to let fail. It is not asked for what fails.

    Notes
    -----
    Safe from any thread; the count of one request goes over all threads. A free that fails has freed nothing, so the
    buffer stays OWNED and can be closed again.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import FailingAdaptor
    >>> Device(0).set_current()
    >>> mr = FailingAdaptor(LegacyPinnedMemoryResource())
    >>> with mr.fail_allocation(nth=2):
    ...     first = mr.allocate(100)
    ...     mr.allocate(100)
    Traceback (most recent call last):
    MemoryError: allocation 2 fails on request
    >>> with mr.fail_free():
    ...     first.close()
    Traceback (most recent call last):
    RuntimeError: free 1 fails on request
    >>> first.close().name
    'DONE'
    """

    def __init__(self, inner: MemoryResource) -> None:
        super().__init__(inner)
        self._allocations: _Requests = Cell(())
        self._frees: _Requests = Cell(())

    def fail_allocation(
        self, nth: int = 1, *, sticky: bool = False, error: _Error | None = None
    ) -> AbstractContextManager[None]:
        """Let the n-th allocation inside a ``with`` block fail.

        Parameters
        ----------
        nth : int, optional
            Which one, counted from 1 at the beginning of the block.
        sticky : bool, optional
            True: all after it fail, too.
        error : Exception or type of exception, optional
            What is raised. By default a ``MemoryError``.

        Returns
        -------
        context manager

        Raises
        ------
        ValueError
            If ``nth`` is less than 1.
        TypeError
            If ``nth`` is not an integer, or ``error`` nothing to raise.

        Examples
        --------
        >>> failing = FailingAdaptor(pinned)
        >>> with failing.fail_allocation(2):
        ...     failing.allocate(64).close()
        ...     failing.allocate(64)
        Traceback (most recent call last):
            ...
        MemoryError: allocation 2 fails on request
        """
        nth = integer(nth, "nth", 1)
        default = MemoryError(f"allocation {shown(nth)} fails on request")
        return self._requested(self._allocations, nth, sticky, default if error is None else error)

    def fail_free(
        self, nth: int = 1, *, sticky: bool = False, error: _Error | None = None
    ) -> AbstractContextManager[None]:
        """Let the n-th free inside a ``with`` block fail, before the inner resource is asked.

        Parameters
        ----------
        nth : int, optional
            Which one, counted from 1 at the beginning of the block.
        sticky : bool, optional
            True: all after it fail, too.
        error : Exception or type of exception, optional
            What is raised. By default a ``RuntimeError``.

        Returns
        -------
        context manager

        Raises
        ------
        ValueError, TypeError
            As for :meth:`fail_allocation`.

        Examples
        --------
        >>> failing = FailingAdaptor(pinned)
        >>> buffer = failing.allocate(64)
        >>> with failing.fail_free():
        ...     buffer.close()
        Traceback (most recent call last):
            ...
        RuntimeError: free 1 fails on request
        >>> buffer.close()
        <CloseResult.DONE: 0>
        """
        nth = integer(nth, "nth", 1)
        default = RuntimeError(f"free {shown(nth)} fails on request")
        return self._requested(self._frees, nth, sticky, default if error is None else error)

    @staticmethod
    def _requested(
        requests: _Requests, nth: int, sticky: bool, error: _Error
    ) -> AbstractContextManager[None]:
        kind = error if isinstance(error, type) else type(error)
        if not issubclass(kind, BaseException):
            raise TypeError(f"error must be an exception, got {kind.__name__}: {shown(error)}")
        return _in_force(requests, _Request(nth, bool(sticky), error))

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource, or fail. As :meth:`MemoryResourceAdaptor.allocate`."""
        for request in self._allocations.value:
            request.meet()
        return super().allocate(size, stream=stream)

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Free, or fail. As :meth:`MemoryResourceAdaptor.deallocate`."""
        for request in self._frees.value:
            request.meet()
        super().deallocate(ptr, size, stream=stream)


@contextlib.contextmanager
def _in_force(requests: _Requests, request: _Request) -> Iterator[None]:
    requests.change(lambda before: (*before, request))
    try:
        yield
    finally:
        requests.change(lambda before: tuple(other for other in before if other is not request))
