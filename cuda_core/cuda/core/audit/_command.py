# SPDX-License-Identifier: Apache-2.0
"""The command line: it starts the program in its place, with the recording switched on.

The process becomes that of ``python SCRIPT`` or ``python -m MODULE``, with the same options of the interpreter. So
``sys.argv``, ``sys.path``, tracebacks, signals and exit codes are those that the program has by itself.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from cuda.core.audit import _settings

USAGE = """\
usage: python -m cuda.core.audit [OPTIONS] SCRIPT [ARGS]
       python -m cuda.core.audit [OPTIONS] -m MODULE [ARGS]
       python -m cuda.core.audit [OPTIONS] -c PROGRAM [ARGS]
       python -m cuda.core.audit [OPTIONS] - [ARGS]

Runs a Python program and records the memory that it takes through cuda.core. At the end says on
standard error what leaked, what was detached and never adopted, what was lost, and what only a
collection has returned, with the lines of the program that have allocated it. The exit code is that
of the program. Processes that it starts are recorded, too, if they import cuda.core.

--html FILE      write one page for a browser: memory over time, and the life of each allocation
--json FILE      write everything as JSON
--text FILE      write the text to a file
--quiet          no text on standard error
--all-frames     show all frames of a stack, not only the program's own
--depth NUMBER   frames that are kept of each stack (24)
--limit NUMBER   allocations that are kept after they have ended (100000)

%p in the name of a file stands for the number of the process. Processes that the program starts
write to files with that number in their name.
"""

_MODULE = "cuda.core.audit"
_WITH_VALUE = {"--html": "html", "--json": "json", "--text": "text", "--depth": "depth", "--limit": "limit"}


class _Wrong(Exception):
    """What is wrong with the command line."""


def _read_options(arguments):
    """Take the options off the arguments; return the settings."""
    options = {"say": True}
    while arguments and arguments[0].startswith("--"):
        name, equals, value = arguments.pop(0).partition("=")
        if name == "--quiet" and not equals:
            options["say"] = False
        elif name == "--all-frames" and not equals:
            options["all_frames"] = True
        elif name in _WITH_VALUE:
            if not equals:
                if not arguments:
                    raise _Wrong(f"{name} needs a value")
                value = arguments.pop(0)
            if name in ("--depth", "--limit"):
                if not value.isdecimal():
                    raise _Wrong(f"{name} needs a number, got {value!r}")
                value = int(value)
            elif not value:
                raise _Wrong(f"{name} needs the name of a file")
            options[_WITH_VALUE[name]] = value
        else:
            raise _Wrong(f"there is no option {name}")
    try:
        return _settings.Settings(**options)
    except ValueError as error:
        raise _Wrong(str(error)) from None


def _ensure_program(arguments):
    if not arguments or arguments in (["-m"], ["-c"]):
        raise _Wrong("there is no program to run")
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        raise _Wrong(f"there is no option {arguments[0]}")


def _interpreter_options():
    """Return the options that stand before ``-m cuda.core.audit``."""
    given = sys.orig_argv[1:]
    for index, argument in enumerate(given):
        option, separate = (argument, given[index + 1 : index + 2] == [_MODULE])
        if not separate:
            option, separate = argument.removesuffix(_MODULE), argument.endswith("m" + _MODULE)
        if separate and option.startswith("-") and option.endswith("m"):
            return given[:index] + ([option[:-1]] if len(option) > 2 else [])  # others may stand before the m
    return []


def main() -> NoReturn:
    """Run the program named in ``sys.argv`` with the recording switched on."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        sys.exit(0)
    try:
        settings = _read_options(arguments)
        _ensure_program(arguments)
    except _Wrong as error:
        print(f"cuda.core.audit: {error}\n{USAGE}", end="", file=sys.stderr)
        sys.exit(2)
    for path in (settings.text, settings.json, settings.html):
        if path is not None and os.path.isfile(path):
            os.remove(path)  # a program that is killed leaves none, and not that of an earlier run
    os.environ[_settings.VARIABLE] = _settings.to_text(settings)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started this
            stream.flush()
    os.execv(sys.executable, [sys.executable, *_interpreter_options(), *arguments])
