# SPDX-License-Identifier: Apache-2.0
"""How an offending value is shown in the text of an error."""

from __future__ import annotations

__all__ = ["for_allocation", "not_a_buffer", "said", "shown", "size_hint"]

_LONGEST = 160
_OF_ARRAYS = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")


def shown(value: object) -> str:
    """Return a value as one line that fits into an error, whatever it is.

    An error is made to tell what is wrong with a value, and must not become another error over it: an integer may have
    more digits than Python prints, and a ``__repr__`` may fail, go over many lines, or be as long as the memory that is
    looked at.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        if isinstance(value, int):
            text = f"an integer of {int.bit_length(value)} bits"
        else:
            text = f"an object whose repr() raises {type(error).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def said(error: BaseException) -> str:
    """Return the text of an error. One that an author has made may not have any."""
    try:
        return str(error)
    except Exception as failure:
        return f"its text raises {type(failure).__name__}"


def not_a_buffer(value: object, name: str) -> str:
    """Return what is said of an argument that should have been a buffer to copy from or to."""
    kind = type(value)
    hint = ""
    if issubclass(kind, (bytes, bytearray, memoryview)) or any(hasattr(kind, mark) for mark in _OF_ARRAYS):
        hint = (
            "; wrap memory that is yours with Buffer.from_handle(address, size, owner=array), or stage it in pinned "
            "memory"
        )
    return f"{name} must be a Buffer, got {kind.__name__}{hint}: {shown(value)}"


def for_allocation(error: BaseException, resource: object, size: int) -> BaseException:
    """Return an error; one for want of memory says who was asked, and for how much."""
    if getattr(error, "result_name", "") == "CUDA_ERROR_OUT_OF_MEMORY":
        error.args = (f"{error}; {type(resource).__name__} could not allocate {size} bytes",)
    return error


def size_hint(src: int, dst: int) -> str:
    """Return what to copy where two buffers differ in size: one that was rounded up has more than was asked for."""
    if not src or not dst:
        return ""
    return f"; use a slice of the larger one: {f'dst[:{src}]' if dst > src else f'src[:{dst}]'}"
