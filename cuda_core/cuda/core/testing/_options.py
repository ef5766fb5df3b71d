# SPDX-License-Identifier: Apache-2.0
"""Checks of what a test class says about its resource, before anything is done by it."""

import operator

from hypothesis import settings

from cuda.core.testing._contract import shown

__all__ = ["check_options"]

_FLAGS = ("supports_zero", "stream_ordered", "exportable", "growable", "checks_frees", "driver_failures")
_LARGEST = 2**63 - 1


def _integer(value, name, least):
    try:
        # A bool of NumPy passes for an index in its older versions.
        if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: {shown(value)}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(number)}")
    return number


def check_options(tests):
    """Check the attributes of a test class.

    Raises
    ------
    TypeError, ValueError
        If one of them is not what :class:`MemoryResourceTests` says.
    """
    sizes = tests.sizes
    if isinstance(sizes, (str, bytes)) or not hasattr(type(sizes), "__len__"):
        raise TypeError(f"sizes must be a tuple of integers, got {type(sizes).__name__}: {shown(sizes)}")
    if not len(sizes):
        raise ValueError("sizes must have one size at least")
    for place, size in enumerate(sizes):
        if _integer(size, f"sizes[{place}]", 1) > _LARGEST:
            raise ValueError(f"sizes[{place}] must be at most 2**63 - 1, got {shown(size)}")
    _integer(tests.granularity, "granularity", 1)
    if tests.alignment is not None:
        _integer(tests.alignment, "alignment", 1)
    if _integer(tests.too_large, "too_large", 1) <= max(sizes):
        raise ValueError(f"too_large must be more than every one of sizes, got {shown(tests.too_large)}")
    for name in _FLAGS:
        if not isinstance(getattr(tests, name), bool):
            value = getattr(tests, name)
            raise TypeError(f"{name} must be True or False, got {type(value).__name__}: {shown(value)}")
    if not isinstance(tests.machine_settings, settings):
        value = tests.machine_settings
        raise TypeError(
            f"machine_settings must be a hypothesis.settings, got {type(value).__name__}: {shown(value)}"
        )
