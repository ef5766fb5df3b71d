# SPDX-License-Identifier: Apache-2.0
"""Shapes and strides as numbers: what is accepted as one, and the strides of arrays without gaps.

The numbers are Python integers, which cannot overflow; every result is checked to fit into 64 bits, because kernels
and other libraries read it as such.
"""

import operator

from cuda.core._error_text import shown

cdef int _MAX_NDIM = 64  # a mask of axes is one 64-bit word
cdef object _LARGEST = 2**63 - 1
cdef object _SMALLEST = -(2**63)


# --- numbers ------------------------------------------------------------------------------------------------------


cdef object fitting(object number):
    if not _SMALLEST <= number <= _LARGEST:
        raise OverflowError(f"value too large: {shown(number)} does not fit into 64 bits")
    return number


cdef object integer(object value, str name):
    try:
        return fitting(operator.index(value))
    except TypeError:
        raise TypeError(f"an integer is required in {name}, got {type(value).__name__}: {shown(value)}") from None


cdef tuple extents_of(tuple shape):
    cdef list extents = []
    for extent in shape:
        extents.append(integer(extent, "shape"))
    check_ndim(len(extents))
    for extent in extents:
        if extent < 0:
            raise ValueError(f"Extents must be non-negative, got {shown(shape)}")
    return tuple(extents)


cdef int check_ndim(int ndim) except -1:
    if ndim > _MAX_NDIM:
        raise ValueError(f"Unsupported number of dimensions: {ndim}. Max supported ndim is {_MAX_NDIM}")
    return 0


cdef int positive_itemsize(object itemsize) except -1:
    if isinstance(itemsize, (str, bytes, float)) or not hasattr(itemsize, "__index__"):
        raise TypeError(f"itemsize must be an integer, got {type(itemsize).__name__}: {shown(itemsize)}")
    number = operator.index(itemsize)
    if number <= 0:
        raise ValueError(f"itemsize must be positive, got {shown(number)}")
    if number > 2**31 - 1:
        raise OverflowError(f"itemsize: value too large to convert to int, got {shown(number)}")
    return number


cdef int axis_of(object axis, int ndim, str what) except -1:
    """Return an axis counted from the front; ``what`` begins the text of the error."""
    number = integer(axis, "axis")
    if not -ndim <= number < ndim:
        raise ValueError(f"Invalid {what} {number} out of range for {ndim}D tensor")
    return number + ndim if number < 0 else number


# --- strides ------------------------------------------------------------------------------------------------------


cdef tuple dense_strides(tuple shape, object order):
    """Return strides without gaps; ``order`` names the axes from the largest stride to the smallest."""
    cdef list strides = [0] * len(shape)
    stride = 1
    for axis in reversed(order):
        strides[axis] = stride
        stride = fitting(stride * shape[axis])
    return tuple(strides) if stride else (0,) * len(shape)


cdef list permutation(object order, int ndim, str what, str repeated):
    cdef list axes = []
    for axis in order:
        number = axis_of(axis, ndim, what)
        if number in axes:
            raise ValueError(repeated.format(number))
        axes.append(number)
    return axes


cdef tuple ordered_strides(tuple shape, object order, str names):
    cdef int ndim = len(shape)
    if isinstance(order, str) and order == "C":
        return dense_strides(shape, range(ndim))
    if isinstance(order, str) and order == "F":
        return dense_strides(shape, range(ndim)[::-1])
    if not isinstance(order, (tuple, list)):
        raise ValueError(f"The stride_order must be {names}, or a permutation tuple. Got: {order}")
    if len(order) != ndim:
        raise ValueError(
            "stride_order must have the same length as shape. "
            f"Shape has {ndim} dimensions, but stride_order has {len(order)} elements."
        )
    return dense_strides(
        shape,
        permutation(
            order, ndim, "stride order: axis", "The stride order must be a permutation. Axis {} appears multiple times."
        ),
    )
