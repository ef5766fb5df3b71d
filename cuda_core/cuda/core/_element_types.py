# SPDX-License-Identifier: Apache-2.0
"""Element types as DLPack, the array interfaces and NumPy name them. NumPy is imported where one is asked for."""

from __future__ import annotations

import functools
from typing import Any

from cuda.core._error_text import shown

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_KINDS = {_INT: "i", _UINT: "u", _FLOAT: "f", _COMPLEX: "c"}
_CODES = {kind: code for code, kind in _KINDS.items()}
_WIDTHS = {_INT: (8, 16, 32, 64), _UINT: (8, 16, 32, 64), _FLOAT: (16, 32, 64), _COMPLEX: (64, 128)}
# Types of one or two bytes that NumPy has only with the package ml_dtypes.
_NARROW = {
    (_BFLOAT, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_NARROW_CODES = {name: key for key, name in _NARROW.items()}


@functools.lru_cache
def numpy_dtype(code: int, bits: int, lanes: int) -> Any:
    """Return the NumPy type of a DLPack type; NotImplementedError where NumPy has none."""
    import numpy

    if lanes != 1:
        raise NotImplementedError(f"vectors of {lanes} lanes are not supported as a NumPy dtype")
    if bits in _WIDTHS.get(code, ()):
        return numpy.dtype(f"{_KINDS[code]}{bits // 8}")
    if (code, bits) == (_BOOL, 8):
        return numpy.dtype(numpy.bool_)
    name = _NARROW.get((code, bits))
    if name is None:
        raise NotImplementedError(f"no NumPy dtype is known for DLPack type code {code} with {bits} bits")
    try:
        import ml_dtypes
    except ImportError:
        raise NotImplementedError(f"{name} as a NumPy dtype needs the package ml_dtypes") from None
    return numpy.dtype(getattr(ml_dtypes, name))


def dlpack_type(dtype: Any) -> tuple[int, int]:
    """Return code and bits of a NumPy type in DLPack; BufferError where there is none."""
    if not dtype.isnative:
        raise BufferError(f"Non-native-endian dtypes are not supported for DLPack export, got {dtype}")
    if dtype.kind == "b":
        return _BOOL, 8
    code, bits = _CODES.get(dtype.kind), dtype.itemsize * 8
    if code is not None and bits in _WIDTHS[code]:
        return code, bits
    if dtype.name in _NARROW_CODES and dtype.kind == "V":
        return _NARROW_CODES[dtype.name]
    raise BufferError(f"Unsupported dtype for DLPack export: {dtype}")


@functools.lru_cache
def typestr_dtype(typestr: str) -> Any:
    """Return the NumPy type of an array interface's ``typestr``; ValueError where it is not of plain bytes."""
    import numpy

    dtype = numpy.dtype(typestr)
    if dtype.hasobject:  # addresses, which a consumer follows
        raise ValueError(f"typestr must be of plain bytes, got {shown(typestr)}")
    return dtype


def as_dtype(dtype: Any) -> Any:
    """Return anything that NumPy takes for a type as a NumPy type."""
    import numpy

    return numpy.dtype(dtype)
