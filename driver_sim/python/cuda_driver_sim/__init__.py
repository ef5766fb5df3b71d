# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver with real memory semantics, for testing without a GPU.

Importing this package has no effect; `activate` has.
"""

from ._control import (
    Call,
    Calls,
    Log,
    Overlap,
    Overlaps,
    absent,
    calls,
    calls_in_children,
    can_hold,
    functions,
    hold,
    interleave,
    live,
    log,
    logged,
    overlaps,
    refused,
    reset,
    run,
    start_log,
    stop_log,
    time_pool_pair,
    time_virtual_round,
)
from ._failure import Failure, fail
from ._library import activate, is_active, library_path, real_path

__all__ = [
    "Call",
    "Calls",
    "Failure",
    "Log",
    "Overlap",
    "Overlaps",
    "absent",
    "activate",
    "calls",
    "calls_in_children",
    "can_hold",
    "fail",
    "functions",
    "hold",
    "interleave",
    "is_active",
    "library_path",
    "live",
    "log",
    "logged",
    "overlaps",
    "real_path",
    "refused",
    "reset",
    "run",
    "start_log",
    "stop_log",
    "time_pool_pair",
    "time_virtual_round",
]
