# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the README works, and prints what the README says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def blocks(language):
    """Return the README's fenced blocks in one language, each as a list of lines."""
    text = README.read_text(encoding="utf-8")
    return [block.splitlines() for block in re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)]


def run(command, **keywords):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, **keywords
    )


def commands():
    return [line for block in blocks("sh") for line in block]


def test_all_blocks_are_looked_at():
    languages = re.findall(r"^```(\w*)$", README.read_text(encoding="utf-8"), re.M)
    assert set(languages) - {""} == {"python", "sh", "text"}


def test_the_tour_prints_what_its_comments_say(tmp_path):
    lines = [line for block in blocks("python") for line in [*block, ""]]
    promised = [match[1] for line in lines if (match := re.search(r"print\(.*\)  # (.*)$", line))]
    assert len(promised) == sum("print(" in line for line in lines), "a print without its output behind it"
    script = tmp_path / "tour.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    done = run([sys.executable, "-W", "error", script])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == promised


def promised_output():
    return [
        match[1]
        for block in blocks("python")
        for line in block
        if (match := re.search(r"print\(.*\)  # (.*)$", line))
    ]


@pytest.mark.sim_only
def test_the_tour_can_be_pasted_piece_by_piece():
    pieces = "".join("\n".join(block) + "\n" for block in blocks("python"))
    done = run([sys.executable, "-q", "-i", "-"], input=pieces)
    assert "Error" not in done.stderr, done.stderr
    printed = iter(done.stdout.splitlines())  # and the values of expressions
    assert [line for line in promised_output() if line not in printed] == []


@pytest.mark.sim_only
def test_the_tour_runs_in_front_of_another_driver(tmp_path):
    import cuda_driver_sim

    beneath = shutil.copy(cuda_driver_sim.library_path(), tmp_path / "driver.so")
    script = "\n".join(line for block in blocks("python") for line in [*block, ""])
    assert script.count("cuda_driver_sim.activate()") == 1
    (tmp_path / "tour.py").write_text(script.replace("activate()", "activate(real=True)"), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = run(
        [sys.executable, tmp_path / "tour.py"], env={**environment, "CUDA_DRIVER_SIM_REAL": str(beneath)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == promised_output()


@pytest.mark.sim_only
def test_what_is_absent_is_said_as_the_readme_says():
    text = README.read_text(encoding="utf-8")
    (name,) = set(re.findall(r"`from cuda.core import (\w+)` says only", text))
    done = run([sys.executable, "-c", f"import cuda.core; cuda.core.{name}"])
    assert re.search(rf"AttributeError: .*{name}.*not", done.stderr), done.stderr
    done = run([sys.executable, "-c", f"from cuda.core import {name}"])
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: cannot import name '{name}'")


def table(lines):
    """Return what the demo's table shows, the addresses numbered in order of appearance instead of given."""
    seen = {}
    text = "\n".join(line.rstrip() for line in lines if not line.startswith(("driver:", "device 0:")))
    return re.sub(r"0x[0-9a-f]+ *", lambda m: f"<{seen.setdefault(m[0].strip(), len(seen))}>", text).strip()


def test_the_demos_table_is_what_the_example_prints():
    done = run([sys.executable, "examples/grow_buffer.py", "--driver=sim"])
    assert done.returncode == 0, done.stderr
    (shown,) = blocks("text")
    printed = done.stdout.split("\nmemory ", 1)[0].splitlines()
    assert table(shown) == table(printed)


@pytest.mark.sim_only
@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_each_make_command_exists_and_ci_runs_it(command):
    done = run(["make", "--dry-run", *shlex.split(command)[1:]])
    assert done.returncode == 0, done.stderr
    if command != "make bench":  # takes minutes and decides nothing
        assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.sim_only
def test_make_says_what_it_does_before_each_long_step(tmp_path):
    done = run(["make", "--dry-run", "demo", f"VENV={tmp_path / 'venv'}", f"WHEELS={tmp_path / 'wheels'}"])
    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    long = [number for number, line in enumerate(steps) if re.search(r"-m pip .*(install|wheel) ", line)]
    said = [number for number, line in enumerate(steps) if line.startswith("echo ")]
    assert len(long) == 6
    # The wheel that was just compiled is installed in a moment.
    for number in long:
        assert "--force-reinstall" in steps[number] or number - 4 < max(
            (n for n in said if n < number), default=-9
        )


@pytest.mark.sim_only
@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("pip ")])
def test_each_pip_command_installs(command, tmp_path):
    program, *arguments = shlex.split(command)
    assert program == "pip"
    # Into a folder of its own, with the build tools that are here: the test changes nothing and fetches nothing.
    aside = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path)]
    done = run([sys.executable, "-m", "pip", *arguments, *aside])
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.so*"))


@pytest.mark.sim_only
@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith(("make ", "pip "))])
def test_each_other_command_runs(command):
    program, *arguments = shlex.split(command)
    if program == ".venv/bin/python":
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        done = run([sys.executable, *arguments], env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "every byte returned" in done.stdout
    else:
        assert os.access(ROOT / program, os.X_OK)
        assert run(["bash", "-n", program]).returncode == 0
