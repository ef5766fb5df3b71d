# SPDX-License-Identifier: Apache-2.0
"""Names that programs import from here though they are private in cuda-core: ``handle_return`` and its company."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuda.bindings import driver
from cuda.core._error_text import shown
from cuda.core._errors import CUDAError

__all__ = ["CUDAError", "ComputeCapability", "driver", "handle_return"]


class ComputeCapability(NamedTuple):
    """Version of a device's instruction set."""

    major: int
    minor: int


def handle_return(result: tuple[Any, ...], handle: object | None = None) -> Any:
    """Return what a call of ``cuda.bindings.driver`` gave beside its result.

    Parameters
    ----------
    result : tuple
        What the call returned: the ``CUresult`` first, then its values.
    handle : object, optional
        Not used. It stands here for calls written for cuda-core 1.2.2, where it belongs to compilers.

    Returns
    -------
    object
        None, the one value, or a tuple of several.

    Raises
    ------
    CUDAError
        If the result is not success. The text gives its name and the driver's description.
    TypeError
        If the result is not one of the driver.

    Examples
    --------
    >>> handle_return((driver.CUresult.CUDA_SUCCESS, 3))
    3
    """
    code, *values = result
    if not isinstance(code, driver.CUresult):
        raise TypeError(
            f"the result of a driver call is a CUresult, got {type(code).__name__}: {shown(code)}"
        )
    if code != driver.CUresult.CUDA_SUCCESS:
        known, text = driver.cuGetErrorString(code)
        description = text.decode() if known == driver.CUresult.CUDA_SUCCESS else "no description"
        raise CUDAError(f"{code.name}: {description}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
