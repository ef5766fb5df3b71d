# SPDX-License-Identifier: Apache-2.0
"""Checks of the numbers that users give, made before anything is done with them."""

import operator

from libc.stdint cimport uintptr_t

from cuda.core._context cimport device_count

from cuda.core._address import address_of, is_truth_value
from cuda.core._error_text import shown

# One limit for all sizes. It leaves room for rounding up and for the signed sizes of other libraries.
cdef object _LARGEST = 2**63 - 1
cdef size_t _LARGEST_SIZE = _LARGEST


cpdef size_t size_argument(object value, str name) except? 0xFFFFFFFF:
    """Return a size in bytes.

    Raises
    ------
    TypeError
        If ``value`` is not an integer. A bool counts as none: it is a mistake wherever a size is meant.
    ValueError
        If it is negative.
    OverflowError
        If it is larger than 2**63 - 1.
    """
    cdef long long small = small_integer(value)
    if small >= 0:
        return small
    if is_truth_value(value):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: {shown(value)}") from None
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {shown(number)}")
    if number > _LARGEST:
        raise OverflowError(f"{name} must be at most 2**63 - 1, got {shown(number)}")
    return number


cdef size_t round_up(size_t size, size_t granularity, str name) except? 0xFFFFFFFF:
    """Round a checked size up to a multiple of ``granularity``, a power of two."""
    if size > _LARGEST_SIZE - (granularity - 1):
        raise OverflowError(f"{name} rounded up to {granularity} bytes is more than 2**63 - 1, got {size}")
    return (size + granularity - 1) & ~(granularity - 1)


cdef uintptr_t pointer_argument(object value, str name) except? 0xFFFFFFFF:
    """Return an address given as an integer, a ``CUdeviceptr`` or None (0)."""
    cdef long long small = small_integer(value)
    if small >= 0:
        return small
    if value is None:
        return 0
    try:
        number = address_of(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be an address, got {type(value).__name__}: {shown(value)}") from None
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {shown(number)}")
    if number >= 2**64:
        raise OverflowError(f"{name} must fit into 64 bits, got {shown(number)}")
    return number


cdef int device_argument(object device) except -1:
    """Return the ordinal of a device given as a number or as anything with a ``device_id``."""
    try:
        number = operator.index(getattr(device, "device_id", device))
    except TypeError:
        raise TypeError(
            f"device_id must be a Device or an integer, got {type(device).__name__}: {shown(device)}"
        ) from None
    if number < 0:
        raise ValueError(f"device_id must be >= 0, got {shown(number)}")
    count = device_count()
    if number >= count:
        raise ValueError(f"device_id must be within [0, {count}), got {shown(number)}")
    return number
