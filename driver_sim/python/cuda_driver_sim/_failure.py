# SPDX-License-Identifier: Apache-2.0
"""Failures on request: which call of which function is answered with an error."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import re
import warnings

from ._control import _MOST, _results, _whole, functions
from ._library import loaded_library


def _known_function(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be the name of a function as a str, like 'cuMemAlloc', not {name!r}")
    known = functions()
    if name in known:
        return name
    near = [bare] if (bare := re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)) in known else None
    if near is None:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    hint = f": did you mean {near[0]!r}? Names have no version suffix" if near else ""
    raise ValueError(f"{name!r} is not a function of the simulated driver{hint}")


def _known_result(result: object) -> int:
    if not isinstance(result, str):
        raise TypeError(
            f"result must be the name of an error as a str, 'CUDA_ERROR_UNKNOWN' say, not {result!r}"
        )
    number = _results().get(result)
    if not number:
        raise ValueError(f"{result!r} is not the name of an error of the CUDA driver")
    return number


def _count(nth: int) -> int:
    number = _whole("nth", nth)
    if not 1 <= number <= _MOST:
        raise ValueError(f"nth counts from 1 and has at most 64 bits, not {nth!r}")
    return number


class Failure(contextlib.ContextDecorator):
    """A failure, made by `fail`: a context manager that arms it when entered, and disarms it when left."""

    def __init__(self, name: str, nth: int, result: str, sticky: bool, effect: bool) -> None:
        self._number: int | None = None  # while armed
        self._fired: int | None = None  # once disarmed
        self._wanted = name, nth, result, sticky, effect
        checked = _known_function(name), _count(nth), _known_result(result)
        self._checked = *checked, int(bool(sticky)), int(bool(effect))

    def __enter__(self) -> Failure:
        if self._number is not None or self._fired is not None:
            raise RuntimeError("a failure is armed once only: ask fail() for another one")
        name, nth, result, sticky, effect = self._checked
        arm = loaded_library().cudaDriverSimFail
        arm.restype = ctypes.c_int
        arm.argtypes = [ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._number = int(arm(name.encode(), nth, result, sticky, effect))
        return self

    def __exit__(self, *_: object) -> None:
        self._fired = self.fired
        loaded_library().cudaDriverSimDisarm(self._number)
        self._number = None

    def _recreate_cm(self) -> Failure:  # as a decorator: armed anew for each call
        self._fired = 0
        return Failure(*self._wanted)

    def __del__(self) -> None:
        if hasattr(self, "_checked") and self._number is None and self._fired is None:
            warnings.warn(
                f"fail({self._wanted[0]!r}) was never armed: it counts inside a with statement only",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def fired(self) -> int:
        """How many calls it has answered; 0 before it is armed."""
        if self._number is None:
            return self._fired or 0
        fired = loaded_library().cudaDriverSimFired
        fired.restype = ctypes.c_ulonglong
        return int(fired(self._number))


def fail(
    name: str,
    nth: int = 1,
    result: str = "CUDA_ERROR_OUT_OF_MEMORY",
    sticky: bool = False,
    effect: bool = False,
) -> Failure:
    """Let one driver call fail inside a ``with`` block, by default without any effect.

    Parameters
    ----------
    name
        The function, without version suffix: ``"cuMemMap"``.
    nth
        Which call of it, counted from entering the block, from 1 on.
    result
        What it is answered with.
    sticky
        Also every later call, until the block is left.
    effect
        The call is made, and answered with `result` whatever the driver has answered: real drivers, too,
        refuse some calls that have done their work. Out parameters are as the driver has set them.

    Returns
    -------
    Failure
        The context manager. Its ``fired`` is the number of calls answered so, also readable afterwards. It
        can decorate a function, too.

    Raises
    ------
    TypeError
        If `name` or `result` is not a str, or `nth` not an integer.
    ValueError
        If there is no such function or result, or `nth` is less than 1 or does not fit into 64 bits.
    RuntimeError
        If the simulated driver is not active in this process, or a failure is entered a second time.

    Warns
    -----
    RuntimeWarning
        If the failure goes without ever having been entered.

    Notes
    -----
    It counts for the whole process, for all threads.

    Several can be armed at once, also for one function. Each counts every call since it was armed, those that
    another one answers included. A call that several match is answered by the one armed last, and counts as
    fired for that one only; it is made if that one has `effect`.

    With `effect`, `live` counts what the call has made or ended. `cuda.bindings` gives None beside an error,
    not the new pointer, so that a program in Python cannot give back what was made.

    Examples
    --------
    >>> with sim.fail("cuMemAlloc", nth=2) as failure:
    ...     print([driver.cuMemAlloc(16)[0].name for _ in range(3)])
    ['CUDA_SUCCESS', 'CUDA_ERROR_OUT_OF_MEMORY', 'CUDA_SUCCESS']
    >>> failure.fired
    1

    >>> with sim.fail("cuMemFree", result="CUDA_ERROR_UNKNOWN", effect=True):
    ...     driver.cuMemFree(pointer)
    (<CUresult.CUDA_ERROR_UNKNOWN: 999>,)
    >>> sim.live() == before
    True
    """
    return Failure(name, nth, result, sticky, effect)
