# SPDX-License-Identifier: Apache-2.0
"""``python -m cuda_driver_sim`` runs a program unchanged and reports what it left."""

import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import cuda_driver_sim as sim

PROGRAM = """
import multiprocessing, os, sys
from cuda.bindings import driver as d

def child():
    assert d.cuInit(0)[0] == 0
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    d.cuMemFree(d.cuMemAlloc(77)[1])

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
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "CUDA_DRIVER_SIM_REPORTS")}
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


def test_children_run_on_it(program):
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


def same(*arguments, cwd, **more):
    """Run a program by itself and by the command, which must not make a difference. Give what came out."""
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    plain, ours = (
        subprocess.run(
            [sys.executable, *by, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=cwd,
            env=env,
            **more,
        )
        for by in ((), ("-m", "cuda_driver_sim"))
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return ours


PROGRAMS = {
    "interrupted": "raise KeyboardInterrupt",
    "own": "class Own(BaseException): pass\nraise Own('a')",
    "syntax": "def f(:",
    "nothing": "import sys; sys.exit(None)",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "names": "import sys; print(__name__, __file__, __spec__, __package__, sys.argv, sys.path[0])",
    "child": "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.5; echo 9'])",
    "hook": "import sys; sys.excepthook = lambda *e: print('hook', e[1]); raise ValueError(3)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_if_started_by_itself(name, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    same("program.py", "--its", "own", cwd=tmp_path)


def test_other_ways_to_name_a_program(tmp_path):
    say = "import sys; print(sys.argv, __name__, repr(sys.path[0]))"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(say)
    (tmp_path / "module.py").write_text(say)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", say)
    py_compile.compile(str(tmp_path / "module.py"), str(tmp_path / "compiled.pyc"))
    for arguments in (
        ("folder", "x"),
        ("archive.zip", "x"),
        ("compiled.pyc", "x"),
        ("-m", "module", "x"),
        ("-m", "folder", "x"),
        ("-c", say, "x"),
        ("-", "x"),
    ):
        assert same(*arguments, cwd=tmp_path, input=say).stdout
    for arguments in (("-c", "1/0"), ("-m", "nosuch"), ("missing.py",), ("-m", "module.py"), ("-",)):
        assert same(*arguments, cwd=tmp_path, input="1/0").returncode


def test_threads_and_exit_handlers_outlast_the_program(tmp_path):
    (tmp_path / "program.py").write_text(
        """
import atexit, pickle, sys, threading, time

class Own:
    pass

def use():
    time.sleep(0.2)
    print("thread", type(pickle.loads(pickle.dumps(Own()))).__name__)

atexit.register(lambda: print("exit", type(pickle.loads(pickle.dumps(Own()))).__name__))
threading.Thread(target=use).start()
"""
    )
    assert same("program.py", cwd=tmp_path).stdout == "thread Own\nexit Own\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files(program, closed):
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    command = f'"{sys.executable}" -m cuda_driver_sim "{program}" leave {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0
    assert ("left live" in done.stderr) == ("2>&-" not in closed)
    assert "left live" not in done.stdout


def test_unknown_options_and_incomplete_ones():
    for arguments in (("-x", "program.py"), ("-c",), ("-m",)):
        done = run(*arguments)
        assert done.returncode == 2
        assert "usage: " in done.stderr
    assert "there is no option -x" in run("-x").stderr
    assert "there is no option --strictly" in run("--strict", "--strictly", "program.py").stderr


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"cuda_driver_sim {metadata.version('cuda-driver-sim')}\n")


def test_a_folder_that_the_library_path_cannot_name(tmp_path):
    # It used to start itself again and again.
    folder = tmp_path / "a:b"
    shutil.copytree(Path(sim.library_path()).parent.parent, folder / "cuda_driver_sim")
    done = run("-c", "print(1)", cwd=folder)
    assert done.returncode == 1
    assert "LD_LIBRARY_PATH cannot name" in done.stderr
