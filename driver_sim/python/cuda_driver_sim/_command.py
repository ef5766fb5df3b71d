# SPDX-License-Identifier: Apache-2.0
"""The command line: it runs a program in place, and reports afterwards what was left.

The program runs in this process, under the name ``__main__``, so that ``sys.argv``, ``sys.path``,
tracebacks and exit codes are what ``python SCRIPT`` and ``python -m MODULE`` give.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn

from ._library import activate, put_first_in_library_path
from ._real import VARIABLE, real_driver
from ._report import Ending

USAGE = """\
usage: python -m cuda_driver_sim [OPTIONS] SCRIPT [ARGS]
       python -m cuda_driver_sim [OPTIONS] -m MODULE [ARGS]
       python -m cuda_driver_sim [OPTIONS] -c PROGRAM [ARGS]
       python -m cuda_driver_sim [OPTIONS] - [ARGS]

Runs a Python program, and every process it starts, on a simulated CUDA driver. At the end says on
standard error what driver objects were left live and which driver calls were refused, by this process
and by those it started. The exit code is that of the program.

--strict   exit code 1 instead of 0 when any process left something live
--real     runs it on the real driver, and watches that
--version  says the version

CUDA_DRIVER_SIM_REAL         the library of the real driver, when it is not found (implies --real)

CUDA_DRIVER_SIM_DEVICES      number of devices (2)
CUDA_DRIVER_SIM_MEMORY       memory of each device, in bytes or like 4GiB, 500MB (8GiB)
CUDA_DRIVER_SIM_HOST_MEMORY  host memory that can be pinned, likewise (8GiB)
CUDA_DRIVER_SIM_POOLS        0: devices without memory pools (1)
CUDA_DRIVER_SIM_VIRTUAL_MEMORY_RDMA  0: network cards cannot reach virtual memory (1)
CUDA_DRIVER_SIM_OLD_RIGHTS   1: a new pool has the peers of the one destroyed last (0)
"""


def _restart_with_library_path(real: bool) -> None:
    # The dynamic linker reads LD_LIBRARY_PATH when a process starts. Libraries that look for the
    # driver in other ways than by its loaded name need it in this process, too.
    if put_first_in_library_path(real):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed by whoever started this
                stream.flush()
        os.execv(sys.executable, sys.orig_argv)


def _say_like_python(error: BaseException, hook: Callable[..., Any]) -> None:
    # Without the frames of this file and of runpy, as if the program had been started by itself.
    own = {__file__, os.path.join(os.path.dirname(__file__), "__main__.py"), runpy.__file__, "<frozen runpy>"}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    error.__traceback__ = trace
    hook(type(error), error, trace)


def _execute(source: bytes | str, name: str) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), sys.modules["__main__"].__dict__)


def _execute_file(path: str) -> None:
    program = sys.modules["__main__"].__dict__
    program.update(__file__=path, __cached__=None)
    with io.open_code(path) as file:
        compiled = pkgutil.read_code(file)  # type: ignore[attr-defined]
        if compiled is None:
            file.seek(0)
            source = file.read()
    if compiled is None:
        _execute(source, path)
    else:
        exec(compiled, program)


def _run(arguments: list[str]) -> None:
    """Run the program in a module ``__main__`` that stays, as its threads and exit handlers come later."""
    # A module of its own, and no longer this one's.
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__dict__.update(__builtins__=builtins, __loader__=None, __annotations__={})
    what = arguments[0]
    if what == "-m":
        # sys.path[0] is the current folder, as 'python -m cuda_driver_sim' has put it there.
        sys.argv = ["-m", *arguments[2:]]  # until the module is found
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif what == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        _execute(arguments[1], "<string>")
    elif what == "-":
        sys.argv = arguments
        sys.path[0] = ""
        _execute(sys.stdin.buffer.read() if sys.stdin else b"", "<stdin>")
    else:
        sys.argv = arguments
        path = os.path.abspath(what)
        if pkgutil.get_importer(path) is not None:
            sys.path[0] = path  # a folder or an archive
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(what))
            _execute_file(path)


def main() -> NoReturn:
    """Run the program named in ``sys.argv`` on the simulated driver."""
    arguments = sys.argv[1:]
    real = bool(os.environ.get(VARIABLE))
    strict = False
    while arguments[:1] in (["--real"], ["--strict"]):
        real = real or arguments[0] == "--real"
        strict = strict or arguments[0] == "--strict"
        del arguments[0], sys.argv[1]
    if arguments[:1] == ["--version"]:
        print(f"cuda_driver_sim {version('cuda-driver-sim')}")
        sys.exit(0)
    wants_help = arguments[:1] in (["-h"], ["--help"])
    incomplete = arguments in (["-m"], ["-c"])
    unknown = arguments and arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-")
    if wants_help or not arguments or incomplete or unknown:
        if unknown and not wants_help:
            print(f"cuda_driver_sim: there is no option {arguments[0]}", file=sys.stderr)
        print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
        sys.exit(0 if wants_help else 2)
    try:
        if real:
            os.environ[VARIABLE] = real_driver()  # before a restart, which hides no folder of the path
        _restart_with_library_path(real)
        activate(real=real)
    except RuntimeError as error:
        sys.exit(f"cuda_driver_sim: {error}")
    if arguments[0] not in ("-m", "-c", "-") and not os.path.exists(arguments[0]):
        path = os.path.abspath(arguments[0])
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno 2] No such file or directory",
            file=sys.stderr,
        )
        sys.exit(2)
    ending = Ending(strict)
    try:
        _run(arguments)
    except SystemExit as error:
        if error.code is not None and error.code != 0:
            ending.keep_exit_code()
        raise
    except KeyboardInterrupt:
        ending.keep_exit_code()
        # Python ends by the signal, behind all exit handlers, if nothing else than this comes out at the top.
        hook = sys.excepthook
        sys.excepthook = lambda kind, error, trace: _say_like_python(error, hook)
        raise
    except BaseException as error:
        ending.keep_exit_code()
        _say_like_python(error, sys.excepthook)
        sys.exit(1)
    sys.exit(0)
