# SPDX-License-Identifier: Apache-2.0
"""The examples of the README, as they stand there, are tests that pass, alone and in any order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_driver_sim as sim

README = Path(__file__).parent.parent / "README.md"


def example_files():
    """Join the README's blocks of Python into the files that they say they are."""
    files, name = {}, None
    for block in re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S):
        if match := re.match(r"# (\S+\.py)\n", block):
            name = match[1]
        files[name] = files.get(name, "") + block + "\n\n"
    return files


@pytest.fixture
def folder(tmp_path):
    for name, text in example_files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run_pytest(folder, *arguments, by=()):
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-W", "error", *by, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_the_examples_are_complete_and_leave_nothing(folder):
    assert {path.name for path in folder.iterdir()} == {"conftest.py", "test_rows.py"}
    done = run_pytest(folder)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^57 passed", done.stdout, re.M), done.stdout
    done = run_pytest(folder, by=("-m", "cuda_driver_sim", "--strict"))
    assert "left live" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", re.findall(r"^def (test_\w+)", "".join(example_files().values()), re.M) or ["there are none"]
)
def test_each_example_passes_after_refused_calls(name, folder):
    path = folder / "test_rows.py"
    first = "def test_before():\n    assert driver.cuMemFree(77)[0] != 0\n\n\n"
    path.write_text(path.read_text().replace("class Rows", first + "class Rows"))
    done = run_pytest(folder, "-k", f"test_before or {name}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("line", "test"),
    [
        ("            self.close()\n", "test_all_or_nothing"),
        ("            self.pointers.pop()\n", "test_close_goes_on_where_it_stopped"),
    ],
)
def test_the_examples_find_what_they_look_for(line, test, folder):
    path = folder / "test_rows.py"
    assert line in path.read_text()
    instead = "            pass\n" if "close" in line else "            self.pointers.clear()\n"
    path.write_text(path.read_text().replace(line, instead))
    done = run_pytest(folder, "-k", test)
    assert done.returncode == 1, done.stdout


def test_seeds_find_the_free_that_is_not_ordered(folder):
    path = folder / "test_rows.py"
    text, count = re.subn(r"\n.*# without this line about half of the seeds fail", "", path.read_text())
    assert count == 1
    path.write_text(text)
    # Each seed by itself: a fault stays.
    failed = [seed for seed in range(8) if run_pytest(folder, "-k", f"ordered and [{seed}]").returncode]
    assert 2 <= len(failed) <= 6, failed


def test_every_kind_of_live_object_is_named():
    text = README.read_text(encoding="utf-8")
    named = re.search(r"^The kinds of `live\(\)`: (.*?)\. Kinds", text, re.M | re.S)[1]
    source = (README.parent / "src" / "live.cpp").read_text(encoding="utf-8")
    table = re.search(r"live_kind_names\[live_kinds\] = \{(.*?)\};", source, re.S)[1]
    assert set(re.findall(r"`(\w+)`", named)) == set(re.findall(r'"(\w+)"', table))
    assert all(f'``"{kind}"``' in sim.live.__doc__ for kind in re.findall(r'"(\w+)"', table))


def test_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w]+", "-", heading.lower()) for heading in re.findall(r"^## (.*)$", text, re.M)}
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert link.removeprefix("#") in headings if link.startswith("#") else (README.parent / link).exists()
