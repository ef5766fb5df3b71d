# SPDX-License-Identifier: Apache-2.0
"""``args_viewable_as_strided_memory``: functions whose arguments are arrays of any library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cuda.core._error_text import shown
from cuda.core._memoryview import StridedMemoryView

__all__ = ["args_viewable_as_strided_memory"]


class _StridedMemoryViewProxy:
    """An argument that can be viewed, once its function knows the stream."""

    __slots__ = ("has_dlpack", "obj")

    def __init__(self, obj: Any) -> None:
        self.has_dlpack = hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__")
        if not self.has_dlpack and not hasattr(obj, "__cuda_array_interface__"):
            raise BufferError("the input object does not support any data exchange protocol")
        self.obj = obj

    def view(self, stream_ptr: int | None = None) -> StridedMemoryView:
        """Return a :class:`StridedMemoryView` for use in a stream; see :meth:`StridedMemoryView.from_dlpack`."""
        if self.has_dlpack:
            return StridedMemoryView.from_dlpack(self.obj, stream_ptr)
        return StridedMemoryView.from_cuda_array_interface(self.obj, stream_ptr)


def args_viewable_as_strided_memory(
    arg_indices: tuple[int, ...],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function so that it can view some of its positional arguments as arrays.

    Inside the function each of these arguments has a method ``view(stream_ptr)``, which gives a
    :class:`StridedMemoryView`.

    Parameters
    ----------
    arg_indices : tuple of int
        Which positional arguments.

    Returns
    -------
    callable
        The decorator. Calling the decorated function raises BufferError for an argument that is no array, and
        IndexError where one is missing.

    Raises
    ------
    TypeError
        If ``arg_indices`` is no tuple of integers.
    ValueError
        If it names an argument twice.

    Notes
    -----
    Safe from any thread: nothing is shared between two calls of the function.

    Examples
    --------
    >>> @args_viewable_as_strided_memory((0,))
    ... def shape_of(array, stream):
    ...     with array.view(stream) as view:
    ...         return view.shape
    >>> shape_of(numpy.zeros((2, 3)), -1)
    (2, 3)
    """

    if not isinstance(arg_indices, tuple):
        raise TypeError(
            f"arg_indices must be a tuple, got {type(arg_indices).__name__}: {shown(arg_indices)}"
        )
    if not all(isinstance(index, int) for index in arg_indices):
        raise TypeError(f"arg_indices must be integers, got {shown(arg_indices)}")
    if len(set(arg_indices)) < len(arg_indices):
        raise ValueError(f"arg_indices must name each argument once, got {shown(arg_indices)}")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            for index in arg_indices:
                given[index] = _StridedMemoryViewProxy(given[index])
            return function(*given, **kwargs)

        return call

    return decorate
