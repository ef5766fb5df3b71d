# SPDX-License-Identifier: Apache-2.0
# Made from _context.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Devices by number, and their contexts: the current one, the primary one, and the object that names one."""

from cuda.bindings import driver
from cuda.core._stream import Stream
from cuda.core._stream import StreamOptions
from typing import Any

__all__ = ["Context"]

class Context:
    """A CUDA context. Get one from :attr:`Device.context` or :attr:`Stream.context`.

    Attributes
    ----------
    device_id : int
        Ordinal of the context's device.

    Notes
    -----
    The object names a context and does not own it: primary contexts live as long as the process. Safe from any thread.

    Examples
    --------
    >>> device.context.device_id
    0
    """

    @property
    def device_id(self) -> int: ...

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @property
    def handle(self) -> driver.CUcontext | None:
        """CUcontext or None: the context as a ``cuda.bindings.driver`` object; None when it is closed."""

    @property
    def _handle(self) -> driver.CUcontext | None:
        ...

    @property
    def is_closed(self) -> bool:
        """bool: whether the object no longer names a context."""

    @property
    def is_green(self) -> bool:
        """bool: whether this is a green context. This build makes none."""

    def create_stream(self, options: StreamOptions | dict[str, Any] | None = None) -> Stream:
        """Not for the contexts of this build; use :meth:`Device.create_stream`.

        Parameters
        ----------
        options : StreamOptions or dict, optional
            Not looked at.

        Raises
        ------
        RuntimeError
            Always: only a green context creates its streams itself.

        Examples
        --------
        >>> device.create_stream().context.is_green
        False
        """

    def close(self) -> None:
        """Forget the context. It is not destroyed: the object never owned it. Closing twice is harmless.

        Raises
        ------
        RuntimeError
            If the context is current on the calling thread. The object then stays open.

        Examples
        --------
        >>> context = Device(0).context
        >>> context.close()  # doctest: +SKIP
        """

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...

    def __repr__(self) -> str:
        ...
