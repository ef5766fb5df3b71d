# SPDX-License-Identifier: Apache-2.0
"""The command line: it runs a program in place, and reports afterwards what was left.

The program runs in this process, under the name ``__main__``, so that ``sys.argv``, ``sys.path``,
tracebacks and exit codes are what ``python SCRIPT`` and ``python -m MODULE`` give.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from typing import NoReturn

from . import _control
from ._library import activate, put_first_in_library_path
from ._real import VARIABLE, real_driver

USAGE = """\
usage: python -m cuda_driver_sim [--real] SCRIPT [ARGS]
       python -m cuda_driver_sim [--real] -m MODULE [ARGS]

Runs a Python program, and every process it starts, on a simulated CUDA driver. At the end says on
standard error what driver objects were left live and which driver calls were refused.

--real  runs it on the real driver, and watches that

CUDA_DRIVER_SIM_REAL         the library of the real driver, when it is not found (implies --real)

CUDA_DRIVER_SIM_DEVICES      number of devices (2)
CUDA_DRIVER_SIM_MEMORY       memory of each device, in bytes or like 4GiB (8GiB)
CUDA_DRIVER_SIM_HOST_MEMORY  host memory that can be pinned, likewise (8GiB)
"""


def _restart_with_library_path(real: bool) -> None:
    # The dynamic linker reads LD_LIBRARY_PATH when a process starts. Libraries that look for the
    # driver in other ways than by its loaded name need it in this process, too.
    if put_first_in_library_path(real):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun.replace('_', ' ')}{'' if count == 1 else 's'}"


def report() -> str:
    """Describe what is live and what was refused; empty when there is nothing to say."""
    lines = []
    live = {kind: count for kind, count in _control.live().items() if kind != "primary_context"}
    if live:
        left = ", ".join(_plural(count, kind) for kind, count in sorted(live.items()))
        lines.append(f"cuda_driver_sim: left live: {left}")
    refused = _control.refused()
    if refused:
        lines.append(f"cuda_driver_sim: refused: {_plural(refused.total, 'driver call')}")
        counts: dict[tuple[str, str], int] = {}
        for call in refused:
            counts[call.name, call.result] = counts.get((call.name, call.result), 0) + 1
        for (name, result), count in counts.items():
            times = "" if count == 1 else f" ({count} times)"
            lines.append(f"cuda_driver_sim:   {name}: {result}{times}")
    return "\n".join(lines)


def _report_at_exit(process: int) -> None:
    # A forked child inherits the exit handler; only the process that was started here reports.
    if os.getpid() != process:
        return
    if text := report():
        print(text, file=sys.stderr, flush=True)


def _say_like_python(error: BaseException) -> None:
    # Without the frames of this file and of runpy, as if the program had been started by itself.
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)


def main() -> NoReturn:
    """Run the program named in ``sys.argv`` on the simulated driver."""
    arguments = sys.argv[1:]
    real = bool(os.environ.get(VARIABLE))
    if arguments[:1] == ["--real"]:
        real = True
        del arguments[0], sys.argv[1]
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] == "-m" and len(arguments) < 2):
        wants_help = bool(arguments) and arguments[0] in ("-h", "--help")
        print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
        sys.exit(0 if wants_help else 2)
    try:
        if real:
            os.environ[VARIABLE] = real_driver()  # before a restart, which hides no folder of the path
        _restart_with_library_path(real)
        activate(real=real)
    except RuntimeError as error:
        sys.exit(f"cuda_driver_sim: {error}")
    # Exit handlers run last in, first out: this one after those of the program.
    atexit.register(_report_at_exit, os.getpid())
    is_module = arguments[0] == "-m"
    if is_module:
        # sys.path[0] is the current folder, as 'python -m cuda_driver_sim' has put it there.
        sys.argv = arguments[1:]
    else:
        sys.argv = arguments
        if not os.path.exists(arguments[0]):
            print(f"{sys.executable}: can't open file {os.path.abspath(arguments[0])!r}", file=sys.stderr)
            sys.exit(2)
        if os.path.isfile(arguments[0]):
            sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        else:
            del sys.path[0]  # run_path puts a folder or an archive itself there
    try:
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except Exception as error:
        _say_like_python(error)
        sys.exit(1)
    sys.exit(0)
