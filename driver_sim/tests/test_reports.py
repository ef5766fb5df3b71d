# SPDX-License-Identifier: Apache-2.0
"""The process at the top says what every process of the program has left live, or was refused."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

# What each child does is in a module, so that those that are spawned find it.
WORK = """
import os, signal, sys
from cuda.bindings import driver as d

def start():
    assert d.cuInit(0)[0] == 0
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])

def leave(count=1):
    start()
    for _ in range(count):
        d.cuMemAlloc(77)
    d.cuMemFree(12345)

def behave():
    start()
    d.cuMemFree(d.cuMemAlloc(77)[1])

def killed():
    leave()
    os.kill(os.getpid(), signal.SIGKILL)

def crashed():
    leave()
    os.kill(os.getpid(), signal.SIGSEGV)

def stopped():
    leave()
    os._exit(0)

def forks():
    leave(2)
    if (child := os.fork()) == 0:
        d.cuMemFree(1)     # refused: a forked child has no driver
        os._exit(0)
    os.waitpid(child, 0)

def starts_another():
    import subprocess
    leave(3)
    subprocess.run([sys.executable, "-c", "import work; work.leave(4)"], check=True)

def watched():
    import subprocess
    command = [sys.executable, "-m", "cuda_driver_sim", *sys.argv[1:], "-c", "import work; work.leave()"]
    sys.exit(subprocess.run(command).returncode)
"""

ONE = ["left live: 1 device allocation", "refused: 1 driver call", "  cuMemFree: CUDA_ERROR_INVALID_VALUE"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def run(folder, program, *options):
    """Run a program at the top; return its exit code and what was said, by process, the top first."""
    path = folder / "program.py"
    path.write_text("import subprocess, sys, multiprocessing\nimport work\n" + textwrap.dedent(program))
    removed = ("LD_LIBRARY_PATH", "CUDA_DRIVER_SIM_REPORTS")
    env = {name: value for name, value in os.environ.items() if name not in removed}
    done = subprocess.run(
        [sys.executable, "-m", "cuda_driver_sim", *options, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, "PYTHONPATH": str(folder)},
    )
    return done.returncode, said(done.stderr)


def said(text):
    """Return the lines of each process, behind what its heading says of its end."""
    processes = [["top"]]
    for line in text.splitlines():
        assert line.startswith("cuda_driver_sim: "), text
        line = line.removeprefix("cuda_driver_sim: ")
        if heading := re.fullmatch(r"process \d+ \((.*)\)(.*):", line):
            assert "python" in heading[1]
            processes.append([heading[2]])
        else:
            processes[-1].append(line.removeprefix("  ") if len(processes) > 1 else line)
    return processes


@pytest.mark.parametrize(("method", "end"), [("spawn", ""), ("forkserver", None), ("fork", None)])
def test_children_of_multiprocessing(folder, method, end):
    end = ", ended by a signal or _exit" if end is None else end  # how multiprocessing ends them
    program = f"""
    if __name__ == "__main__":
        process = multiprocessing.get_context("{method}").Process(target=work.leave)
        process.start(); process.join(); assert process.exitcode == 0
    """
    assert run(folder, program) == (0, [["top"], [end, *ONE]])


@pytest.mark.parametrize("what", ["leave", "killed", "crashed", "stopped"])
def test_children_of_subprocess_however_they_end(folder, what):
    program = f"""
    subprocess.run([sys.executable, "-c", "import work; work.{what}()"])
    work.behave()
    """
    end = "" if what == "leave" else ", ended by a signal or _exit"
    assert run(folder, program) == (0, [["top"], [end, *ONE]])


def test_silent_when_all_children_behave(folder):
    program = """
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "import work; work.behave()"], check=True)
    """
    assert run(folder, program) == (0, [["top"]])


def test_each_process_has_its_own_lines_and_the_top_comes_first(folder):
    code, (top, first, second) = run(
        folder,
        """
        work.leave(5)
        subprocess.run([sys.executable, "-c", "import work; work.starts_another()"], check=True)
        """,
    )
    assert (code, top[:2], first[:2], second[:2]) == (
        0,
        ["top", "left live: 5 device allocations"],
        ["", "left live: 3 device allocations"],
        ["", "left live: 4 device allocations"],
    )


def test_a_forked_child_tells_only_what_is_its_own(folder):
    code, (_, parent, child) = run(
        folder, 'subprocess.run([sys.executable, "-c", "import work; work.forks()"], check=True)'
    )
    assert code == 0
    assert parent == ["", "left live: 2 device allocations", *ONE[1:]]
    assert child == [
        ", ended by a signal or _exit",
        "refused: 1 driver call",
        "  cuMemFree: CUDA_ERROR_NOT_INITIALIZED",
    ]


def test_a_child_that_still_runs_is_named(folder):
    code, (_, child) = run(
        folder,
        """
        program = "import sys, work; work.leave(); print(1, flush=True); sys.stdin.read()"
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child = subprocess.Popen([sys.executable, "-c", program], **pipes)
        child.stdout.readline()
        import ctypes
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(child))  # its pipe stays open to the end
        """,
    )
    assert (code, child) == (0, [", still running", *ONE])


def test_a_watched_program_in_a_watched_program_leaves_it_to_the_top(folder):
    program = 'subprocess.run([sys.executable, "-c", "import work; work.watched()"], check=True)'
    assert run(folder, program) == (0, [["top"], ["", *ONE]])


def test_many_children_are_summed_up(folder):
    program = """
    import os
    for _ in range(23):
        if os.fork() == 0:
            work.leave(); os._exit(0)
        os.wait()
    """
    code, (_, *others) = run(folder, program)
    last = others[-1]
    assert (code, len(others)) == (0, 20)
    assert last[4:] == [
        "3 more processes:",
        "left live: 3 device allocations",
        "refused: 3 driver calls",
        "  cuMemFree: CUDA_ERROR_INVALID_VALUE (3 times)",
    ]


def test_what_python_frees_at_its_end_is_not_left(folder):
    program = """
    work.start()
    class Owner:
        def __init__(self): self.pointer = work.d.cuMemAlloc(16)[1]
        def __del__(self, free=work.d.cuMemFree): free(self.pointer)
    owner = Owner()
    """
    assert run(folder, program, "--strict") == (0, [["top"]])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("work.leave()", 1),
        ("work.behave()", 0),
        ("work.start(); work.d.cuMemFree(12345)", 0),  # refused is not left
        ("work.leave(); sys.exit(0)", 1),
        ("work.leave(); sys.exit(7)", 7),
        ('subprocess.run([sys.executable, "-c", "import work; work.leave()"], check=True)', 1),
        ('subprocess.run([sys.executable, "-c", "import work; work.killed()"])', 1),
        ('subprocess.run([sys.executable, "-c", "import work; work.behave()"])', 0),
    ],
)
def test_strict_changes_a_good_exit_code_only(folder, program, code):
    assert run(folder, program, "--strict")[0] == code
    assert run(folder, program)[0] == (7 if code == 7 else 0)


def test_strict_in_a_watched_program_is_heard(folder):
    program = (
        'sys.exit(subprocess.run([sys.executable, "-c", "import work; work.watched()", {!r}]).returncode)'
    )
    assert run(folder, program.format("--strict")) == (1, [["top"], ["", *ONE]])


def test_output_is_complete_in_a_strict_run(folder):
    path = folder / "printing.py"
    path.write_text("import work; work.leave(); print('x' * 100_000)")
    done = subprocess.run(
        [sys.executable, "-m", "cuda_driver_sim", "--strict", str(path)], capture_output=True, timeout=60
    )
    assert (done.returncode, len(done.stdout)) == (1, 100_001)


def test_workers_of_xdist(folder):
    pytest.importorskip("xdist")
    (folder / "test_leaks.py").write_text(
        "import work\ndef test(): work.leave()\ndef test_too(): work.leave()\n"
    )
    command = [
        sys.executable,
        "-m",
        "cuda_driver_sim",
        "--strict",
        "-m",
        "pytest",
        "-q",
        "-n2",
        "test_leaks.py",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stdout
    assert "2 passed" in done.stdout
    live = [int(count) for count in re.findall(r"left live: (\d) device allocation", done.stderr)]
    assert sum(live) == 2, done.stderr


def test_nothing_stays_behind(folder, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("scratch")
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    program = """
    import os, tempfile
    tempfile.tempdir = os.environ["SCRATCH"]
    subprocess.run([sys.executable, "-c", "import work; work.killed()"])
    os.kill(os.getpid(), 9)
    """
    path = folder / "program.py"
    path.write_text("import subprocess, sys, work\n" + textwrap.dedent(program))
    env = {**os.environ, "TMPDIR": str(scratch), "SCRATCH": str(scratch), "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-m", "cuda_driver_sim", str(path)], env=env, timeout=60)
    assert done.returncode == -9
    assert not os.listdir(scratch)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "cuda" in name}
