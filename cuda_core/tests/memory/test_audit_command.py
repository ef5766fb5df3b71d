# SPDX-License-Identifier: Apache-2.0
"""``python -m cuda.core.audit`` and ``CUDA_CORE_AUDIT``: a whole program is recorded, and runs as it does by itself."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from cuda.core.audit import _command, _settings
from support import child_environment

PROGRAM = """
import atexit, os, sys, warnings
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource, MemoryResource
print(sys.argv, __name__, sys.path[0], warnings.filters[0][0] if sys.warnoptions else "-", sys.flags.optimize)
Device(0).set_current()
pinned = LegacyPinnedMemoryResource()

def leak(size):
    return pinned.allocate(size)

what = sys.argv[1] if len(sys.argv) > 1 else ""
closed = pinned.allocate(64)
closed.close()
if what == "leak":
    kept = leak(4096)
    adrift = pinned.allocate(128).detach()
if what == "exit":
    sys.exit(7)
if what == "raise":
    raise ValueError("wrong")
if what == "say":
    sys.exit("something")
if what == "signal":
    os.kill(os.getpid(), 9)
if what == "atexit":
    late = pinned.allocate(256)
    atexit.register(late.close)
if what == "child":
    import subprocess
    subprocess.run([sys.executable, __file__, "leak"], check=True)
if what == "spawn" and __name__ == "__main__":
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=print, args=("hello",))
    process.start(); process.join(); assert process.exitcode == 0
if what == "fork":
    pid = os.fork()
    if not pid:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments, options=(), cwd=None, **variables):
    return subprocess.run(
        [sys.executable, *options, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**child_environment(), **variables},
    )


def audit(*arguments, **keywords):
    return run("-m", "cuda.core.audit", *arguments, **keywords)


def line_of(program, text):
    return next(n for n, line in enumerate(program.read_text().splitlines(), 1) if text in line)


def test_what_leaks_is_told_with_its_line(program):
    done = audit(program, "leak")
    assert done.returncode == 0
    assert f"cuda.core audit of {program} leak (process " in done.stderr
    assert "LEAKED: never returned: 1 allocation, 4 KiB" in done.stderr
    assert f"{program}:{line_of(program, 'pinned.allocate(size)')} in leak" in done.stderr
    assert f"{program}:{line_of(program, 'kept = leak')} in <module>" in done.stderr
    assert "DETACHED and never adopted, nor declared as handed over: 1 allocation, 128 B" in done.stderr
    assert "runpy" not in done.stderr


@pytest.mark.sim_only
@pytest.mark.parametrize("options", [[], ["--strict"]])
def test_the_simulated_driver_is_no_part_of_the_program(program, options, tmp_path):
    done = run(
        "-m",
        "cuda_driver_sim",
        *options,
        "-m",
        "cuda.core.audit",
        "--html",
        tmp_path / "a.html",
        program,
        "leak",
    )
    assert f"cuda.core audit of {program} leak (process " in done.stderr
    assert f"{program}:{line_of(program, 'kept = leak')} in <module>" in done.stderr
    assert f"{os.sep}cuda_driver_sim{os.sep}" not in done.stderr
    assert "runpy" not in done.stderr
    page = (tmp_path / "a.html").read_text()
    assert f"<title>Memory audit: {program} leak</title>" in page


def test_a_clean_program(program):
    done = audit(program)
    assert (done.returncode, done.stderr.count("nothing leaked")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [((), []), (("a", "-m", "--html", "x"), ["a", "-m", "--html", "x"])],
)
def test_the_program_sees_what_it_sees_by_itself(program, arguments, argv):
    by_itself = run(program, *arguments)
    done = audit("--quiet", program, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, by_itself.stdout, "")
    assert f"{[str(program), *argv]} __main__ {program.parent}" in done.stdout


def test_a_module(program):
    by_itself = run("-m", "program", "x", cwd=program.parent)
    done = audit("--quiet", "-m", "program", "x", cwd=program.parent)
    assert (done.returncode, done.stdout) == (0, by_itself.stdout)
    assert f"[{str(program)!r}, 'x'] __main__" in done.stdout


def test_a_text_of_a_program(program):
    code = "import sys, cuda.core; print(sys.argv)"
    assert audit("-c", code, "a", "b").stdout == "['-c', 'a', 'b']\n"


def test_options_of_the_interpreter_stay(program):
    for options in (["-W", "error"], ["-Werror"], ["-O"], ["-X", "dev", "-W", "error"], ["-OW", "error"]):
        by_itself = run(program, options=options)
        done = audit("--quiet", program, options=options)
        assert (done.returncode, done.stdout) == (0, by_itself.stdout), options
    joined = run("-OmPROG".replace("PROG", "cuda.core.audit"), "--quiet", program)
    assert joined.stdout == run("-O", program).stdout
    joined = run("-Om", "cuda.core.audit", "--quiet", program)
    assert joined.stdout == run("-O", program).stdout


@pytest.mark.parametrize(
    ("what", "code", "text"),
    [
        ("exit", 7, ""),
        ("raise", 1, "ValueError: wrong"),
        ("say", 1, "something"),
        ("signal", -signal.SIGKILL, ""),
    ],
)
def test_the_exit_code_is_the_programs(program, tmp_path, what, code, text):
    by_itself = run(program, what)
    done = audit("--quiet", "--json", tmp_path / "out.json", program, what)
    assert (done.returncode, by_itself.returncode) == (code, code)
    assert done.stderr == by_itself.stderr
    assert text in done.stderr
    if what == "signal":
        assert not (tmp_path / "out.json").exists()
    else:
        assert json.loads((tmp_path / "out.json").read_text())["count"] == 1


def test_a_killed_program_leaves_no_report_of_an_earlier_run(program, tmp_path):
    out = tmp_path / "out.json"
    assert audit("--quiet", "--json", out, program).returncode == 0
    assert out.exists()
    audit("--quiet", "--json", out, program, "signal")
    assert not out.exists()


def test_handlers_at_exit_come_before_the_report(program):
    done = audit(program, "atexit")
    assert "nothing leaked" in done.stderr


AT_EXIT = """
from cuda.core import Buffer, Device, MemoryResource
class Own(MemoryResource):
    is_device_accessible, is_host_accessible, device_id = False, True, -1
    def allocate(self, size, *, stream=None):
        self.kept = Buffer.from_handle(4096, size, mr=self)
        return self.kept
    def deallocate(self, ptr, size, *, stream=None):
        pass
    def at_exit(self):
        self.kept.close()
own = Own()
own.allocate(64)
"""


def test_the_pass_at_exit_comes_before_the_report(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(AT_EXIT)
    assert "nothing leaked" in audit(path).stderr


def test_files(program, tmp_path):
    names = {kind: tmp_path / f"a, b.{kind}" for kind in ("html", "json", "text")}
    options = [part for kind, path in names.items() for part in (f"--{kind}", path)]
    done = audit(*options, "--quiet", program, "leak")
    assert (done.returncode, done.stderr) == (0, "")
    assert names["html"].read_text().startswith("<!DOCTYPE html>")
    assert "LEAKED" in names["text"].read_text()
    whole = json.loads(names["json"].read_text())
    assert (len(whole["leaked"]), len(whole["detached"])) == (1, 1)
    assert whole["program"] == f"{program} leak"


def test_files_of_a_program_that_changes_its_folder(tmp_path):
    code = "import os, cuda.core; os.chdir('/')"
    assert audit("--quiet", "--json=out.json", "-c", code, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out.json").exists()


def test_processes_that_it_starts(program, tmp_path):
    done = audit("--json", tmp_path / "out.json", program, "child")
    assert done.returncode == 0
    first, second = done.stderr.split("cuda.core audit of ")[1:]  # the child ends first
    assert "LEAKED" in first
    assert "nothing leaked" in second
    files = sorted(path.name for path in tmp_path.glob("out*.json"))
    assert len(files) == 2
    assert re.fullmatch(r"out\.\d+\.json", files[0])
    assert len(json.loads((tmp_path / files[0]).read_text())["leaked"]) == 1
    assert json.loads((tmp_path / "out.json").read_text())["leaked"] == []


@pytest.mark.parametrize("what", ["spawn", "fork"])
def test_children_of_multiprocessing_and_fork(program, what):
    by_itself = run(program, what)
    done = audit(program, what)
    assert (done.returncode, done.stdout) == (0, by_itself.stdout)
    assert done.stderr.count("cuda.core audit of") == 1
    assert "nothing leaked" in done.stderr


def test_warnings_as_errors(program):
    done = audit(program, "leak", options=["-W", "error"])
    assert done.returncode == 0
    assert "LEAKED" in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "there is no program to run"),
        (["-m"], "there is no program to run"),
        (["--nonsense", "x.py"], "there is no option --nonsense"),
        (["-x", "x.py"], "there is no option -x"),
        (["--html"], "--html needs a value"),
        (["--html=", "x.py"], "--html needs the name of a file"),
        (["--html", "/no/such/folder/x.html", "x.py"], "there is no folder '/no/such/folder'"),
        (["--depth", "deep", "x.py"], "--depth needs a number, got 'deep'"),
        (["--limit", "0", "x.py"], "limit must be at least 1, got 0"),
        (["--quiet=1", "x.py"], "there is no option --quiet"),
    ],
)
def test_a_wrong_command_line(arguments, text):
    done = audit(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cuda.core.audit: {text}") or text in done.stderr.splitlines()[0]
    assert "usage:" in done.stderr


def test_help():
    for option in ("-h", "--help"):
        done = audit(option)
        assert (done.returncode, done.stdout, done.stderr) == (0, _command.USAGE, "")


def test_a_program_that_is_not_there():
    by_itself, done = run("no_such.py"), audit("no_such.py")
    assert (done.returncode, done.stderr) == (by_itself.returncode, by_itself.stderr)


def test_the_variable(program, tmp_path):
    done = run(program, "leak", CUDA_CORE_AUDIT="1")
    assert "LEAKED: never returned: 1 allocation, 4 KiB" in done.stderr
    out = tmp_path / "out.html"
    done = run(program, "leak", CUDA_CORE_AUDIT=f"html={out},frames=all,depth=4")
    assert (done.stderr, out.exists()) == ("", True)
    for nothing in ("", "0"):
        assert run(program, "leak", CUDA_CORE_AUDIT=nothing).stderr == ""


def test_a_wrong_variable(program):
    done = run(program, CUDA_CORE_AUDIT="yes")
    assert done.returncode == 1
    assert "ValueError: CUDA_CORE_AUDIT: 'yes' is none of 1, text" in done.stderr


def test_a_report_that_cannot_be_written_is_told(program, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    code = f"import cuda.core, os; os.rmdir({str(folder)!r})"
    done = audit("--quiet", "--json", folder / "x.json", "-c", code)
    assert done.returncode == 0
    assert "cuda.core audit: the report could not be written" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        _settings.Settings(say=True),
        _settings.Settings(say_findings=True),
        _settings.Settings(),
        _settings.Settings(html="/tmp/a,b.html", json="/tmp/c=d.json", depth=3, limit=9, all_frames=True),
        _settings.Settings(text="/tmp/%p.txt", say=True),
    ],
)
def test_settings_survive_the_variable(settings):
    assert _settings.parse(_settings.to_text(settings)) == settings


def test_children_write_to_files_of_their_own():
    settings = _settings.Settings(html="/tmp/a.html", json="/tmp/%p.json")
    children = _settings.for_children(settings)
    assert (children.html, children.json, children.say_findings) == ("/tmp/a.%p.html", "/tmp/%p.json", False)
    assert _settings.for_children(_settings.Settings(say=True)) == _settings.Settings(say_findings=True)
