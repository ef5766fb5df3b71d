# SPDX-License-Identifier: Apache-2.0
"""A warning, once, for programs that fork their workers and send them what a forked process cannot use."""

from __future__ import annotations

import warnings

_seen: dict[str, object] = {}


def warn_under_fork() -> None:
    """Warn, the first time in this process, that the objects being pickled are of no use to a forked process.

    While a process is being started its own method counts; otherwise that of the program, unless it was seen to start
    its processes with another one.
    """
    if _method() != "fork":
        return
    mine = object()
    if _seen.setdefault("warned", mine) is mine:
        warnings.warn(
            "the start method of multiprocessing is 'fork', and a forked process cannot use CUDA: what is sent there "
            "cannot be opened. Call multiprocessing.set_start_method('spawn') before processes are started",
            UserWarning,
            stacklevel=3,
        )


def _method() -> str | None:
    # Not with the package: most programs never share anything.
    import multiprocessing
    from multiprocessing import context

    starting = context.get_spawning_popen()
    if starting is not None:
        _note(starting.method)
        return starting.method
    method = multiprocessing.get_start_method(allow_none=True)
    if method == "fork":
        # Starting a process with a context of its own settles the program's method, too, as fork on most systems.
        others = (context.SpawnProcess, context.ForkServerProcess)
        children = multiprocessing.active_children()
        if children and all(isinstance(child, others) for child in children):
            _note("spawn")
        if not all(isinstance(child, others) for child in children):
            return "fork"
        if "others" in _seen:
            return None
    return method


def _note(method: str) -> None:
    """Remember that the program starts processes that can use what is sent."""
    if method != "fork":
        _seen["others"] = True
