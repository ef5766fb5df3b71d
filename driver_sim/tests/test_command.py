# SPDX-License-Identifier: Apache-2.0
"""``python -m cuda_driver_sim`` runs a program unchanged and reports what it left."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing, os, sys
from cuda.bindings import driver as d

def child():
    assert d.cuInit(0)[0] == 0
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    d.cuMemAlloc(77)      # a child's leftovers are not reported
    d.cuMemFree(12345)

if __name__ == "__main__":
    d.cuInit(0)
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    what = sys.argv[1]
    print(sys.argv[1:], sys.path[0])
    if what == "children":
        for method in ("spawn", "forkserver"):
            process = multiprocessing.get_context(method).Process(target=child)
            process.start(); process.join(); assert process.exitcode == 0
    if what == "leave":
        d.cuMemAlloc(1000); d.cuMemAlloc(1000); d.cuMemFree(77); d.cuMemFree(77)
    if what == "raise":
        raise ValueError("wrong")
    if what == "exit":
        sys.exit(7)
    if what == "say":
        sys.exit("something")
    if what == "signal":
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments, cwd=None):
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-m", "cuda_driver_sim", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=env)


def test_silent_when_there_is_nothing_to_say(program):
    done = run(program, "nothing", "--else")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"['nothing', '--else'] {program.parent}\n"


def test_module(program):
    done = run("-m", "program", "exit", cwd=program.parent)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"['exit'] {program.parent}\n"


def test_children_run_on_it_and_stay_silent(program):
    done = run(program, "children")
    assert (done.returncode, done.stderr) == (0, "")


def test_report(program):
    done = run(program, "leave")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "cuda_driver_sim: left live: 2 device allocations",
        "cuda_driver_sim: refused: 2 driver calls",
        "cuda_driver_sim:   cuMemFree: CUDA_ERROR_INVALID_VALUE (2 times)",
    ]


def test_exception(program):
    done = run(program, "raise")
    plain = subprocess.run(
        [sys.executable, str(program), "raise"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == plain.returncode == 1
    assert done.stderr == plain.stderr


@pytest.mark.parametrize(
    ("what", "code", "error"), [("exit", 7, ""), ("say", 1, "something\n"), ("signal", -9, "")]
)
def test_exit_code(program, what, code, error):
    done = run(program, what)
    assert (done.returncode, done.stderr) == (code, error)


def test_usage_and_missing_programs(tmp_path):
    assert run().returncode == 2
    assert run("--help").returncode == 0
    assert run(tmp_path / "missing.py").returncode == 2
    assert run("-m", "no_such_module_here").returncode == 1
