# SPDX-License-Identifier: Apache-2.0
"""A line for each allocation and each free."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._adaptor import MemoryResourceAdaptor
from cuda.core.adaptors._checks import address, integer
from cuda.core.adaptors._shown import shown
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["LoggingAdaptor"]


def _always(level: int) -> bool:
    return True


def _stream_text(stream: object) -> str:
    handle = getattr(stream, "handle", None)
    return "-" if handle is None else hex(int(handle))


class LoggingAdaptor(MemoryResourceAdaptor):
    """Writes a line for each allocation and each free to a logger of the standard library.

    Parameters
    ----------
    inner : MemoryResource
        The resource to watch.
    logger : logging.Logger or str, optional
        Where to write, or its name. By default the logger ``cuda.core.adaptors``.
    level : int, optional
        The level of the lines, ``logging.DEBUG`` by default. Failures are one of ``logging.WARNING`` at least.

    Notes
    -----
    Safe from any thread. The line of a free is written before the memory is given back, so that in the log an address
    ends before another thread's allocation gets it. If the free then fails, a line says that it is still allocated.

    Examples
    --------
    >>> import logging, sys
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import LoggingAdaptor
    >>> Device(0).set_current()
    >>> logger = logging.Logger("memory")
    >>> logger.addHandler(logging.StreamHandler(sys.stdout))
    >>> with LoggingAdaptor(LegacyPinnedMemoryResource(), logger).allocate(4096):
    ...     pass  # doctest: +ELLIPSIS
    allocate size=4096 address=0x... stream=-
    free size=4096 address=0x... stream=0x...
    """

    def __init__(
        self, inner: MemoryResource, logger: logging.Logger | str | None = None, level: int = logging.DEBUG
    ) -> None:
        super().__init__(inner)
        if logger is None or isinstance(logger, str):
            logger = logging.getLogger("cuda.core.adaptors" if logger is None else logger)
        if not callable(getattr(logger, "log", None)):
            raise TypeError(
                f"logger must be a Logger or a name, got {type(logger).__name__}: {shown(logger)}"
            )
        self._logger = logger
        self._level = integer(level, "level")
        # Most loggers are silent most of the time, and a line costs before the logger throws it away.
        self._writes: Callable[[int], bool] = getattr(logger, "isEnabledFor", _always)

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource and log it. As :meth:`MemoryResourceAdaptor.allocate`."""
        log, level = self._logger.log, self._level
        try:
            buffer = super().allocate(size, stream=stream)
        except BaseException as error:
            log(
                max(level, logging.WARNING),
                "allocate size=%s stream=%s failed: %s: %s",
                size,
                _stream_text(stream),
                type(error).__name__,
                str(
                    error
                ),  # not the object: a handler that keeps records would keep its frames, and their buffers
            )
            raise
        if self._writes(level):
            log(
                level,
                "allocate size=%d address=%#x stream=%s",
                buffer.size,
                buffer.handle,
                _stream_text(stream),
            )
        return buffer

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Log and free, in this order. As :meth:`MemoryResourceAdaptor.deallocate`."""
        if type(ptr) is not int or type(size) is not int:
            ptr, size = address(ptr), integer(size, "size")
        log, level = self._logger.log, self._level
        if self._writes(level):
            log(level, "free size=%d address=%#x stream=%s", size, ptr, _stream_text(stream))
        try:
            super().deallocate(ptr, size, stream=stream)
        except BaseException as error:
            # An interrupt may have come behind the free.
            kept = isinstance(error, Exception) or self._has(ptr)
            log(
                max(level, logging.WARNING),
                "free size=%d address=%#x %s: %s: %s",
                size,
                ptr,
                "failed, it is still allocated" if kept else "was interrupted, it is freed",
                type(error).__name__,
                str(
                    error
                ),  # not the object: a handler that keeps records would keep its frames, and their buffers
            )
            raise
