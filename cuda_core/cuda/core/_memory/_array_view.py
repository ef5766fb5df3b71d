# SPDX-License-Identifier: Apache-2.0
"""``ArrayView``: memory of a buffer for libraries that read the array interfaces."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuda.core._error_text import shown

if TYPE_CHECKING:
    from cuda.core._memory._buffer import Buffer

__all__ = ["ArrayView"]

# Kinds of the array interface that are plain bytes, with the bytes of what their number counts. Objects ("O") are
# addresses, which a consumer follows; bit fields ("t") have no size in bytes.
_UNITS = {**dict.fromkeys("biufcmMSV", 1), "U": 4}


class ArrayView:
    """A view of a buffer with ``__cuda_array_interface__`` or ``__array_interface__``. Get one from
    :meth:`Buffer.array_view`.

    The interfaces hand out an address and never say when their consumer is done with it. So the view says it: while it
    is open it holds a loan on the buffer, and a close of the buffer frees nothing before the view is closed.

    Notes
    -----
    Consumers keep the view alive, not the buffer. Safe from any thread.

    Examples
    --------
    >>> staging = pinned.allocate(64)
    >>> with staging.array_view("<f4") as view:
    ...     numpy.asarray(view)[:] = 1
    ...     staging.loans
    1
    """

    def __init__(
        self, buffer: Buffer, typestr: str = "|u1", shape: int | Sequence[int] | None = None
    ) -> None:
        self._part: Any = None
        extents: tuple[int, ...]
        text = getattr(typestr, "str", typestr)
        if not isinstance(text, str) or len(text) < 3 or text[0] not in "<>|=" or not text[2:].isdigit():
            raise ValueError(f"typestr must be an array interface type such as '<f4', got {shown(typestr)}")
        if text[1] not in _UNITS:
            raise ValueError(
                f"typestr must be of plain bytes, of a kind in {''.join(_UNITS)}, got {shown(typestr)}"
            )
        itemsize = int(text[2:]) * _UNITS[text[1]]
        if itemsize == 0:
            raise ValueError(f"typestr must have a size, got {shown(typestr)}")
        size = buffer.size
        if shape is None:
            if size % itemsize:
                raise ValueError(f"{size} bytes are no whole number of elements of {itemsize}")
            extents = (size // itemsize,)
        else:
            extents = tuple(
                operator.index(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))
            )
            total = itemsize
            for extent in extents:
                if extent < 0:
                    raise ValueError(f"shape must not be negative, got {shown(shape)}")
                total *= extent
            if total > size:
                raise ValueError(
                    f"shape {shown(shape)} of {text!r} needs {total} bytes, the buffer has {size}"
                )
        self._typestr, self._shape = text, extents
        self._host, self._device = buffer.is_host_accessible, buffer.is_device_accessible
        self._part = buffer[:]

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("ArrayView objects cannot be copied or pickled: each is one loan on a buffer")

    def _interface(self) -> dict[str, Any]:
        if self._part is None or self._part.is_closed:
            raise RuntimeError("ArrayView has been closed")
        return {
            "shape": self._shape,
            "typestr": self._typestr,
            "data": (self._part.handle, False),
            "strides": None,
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._device:
            raise AttributeError("no device can use this memory, so it has no __cuda_array_interface__")
        return self._interface()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self._host:
            raise AttributeError("the host cannot use this memory, so it has no __array_interface__")
        return self._interface()

    @property
    def is_closed(self) -> bool:
        """bool: whether the loan has ended."""
        return self._part is None or bool(self._part.is_closed)

    def close(self) -> None:
        """End the loan. Closing twice is harmless.

        Raises
        ------
        Exception
            If this was the last loan on a closed buffer, and the ``deallocate`` that it starts is interrupted. The view
            is closed all the same.

        Examples
        --------
        >>> view = pinned.allocate(64).array_view()
        >>> view.close()
        >>> view.is_closed
        True
        """
        if self._part is not None:
            self._part.close()

    def __enter__(self) -> ArrayView:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"of {self._part.owner!r}"
        return f"<ArrayView {self._typestr} {self._shape} {state}>"
