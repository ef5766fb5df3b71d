# SPDX-License-Identifier: Apache-2.0
"""Every block of code on the documentation's pages works, and prints what the page says."""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Folders that other tests look at, or that are made from something else.
MADE = {"_build", "_ext", "_static", "design", "reference"}
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not MADE & set(page.relative_to(DOCS).parts[:-1]) and page != DOCS / "README.md"
)
LANGUAGES = {"python", "c", "cython", "sh", "text"}
# What is compiled for a page, by the language of the block and how its file is named in the first line.
NAMED = {"c": r"// (\w+\.[ch])", "cython": r"# (\w+\.p(?:yx|xd))"}
PROGRAM = r"# (\w+\.py)\n"

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the checkout")


def blocks(page):
    """Return the fenced blocks of a page in order, as (language, text). Directives of the site are none."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```([^\n`]*)\n(.*?)^\1```$", text, re.M | re.S)
    return [(language.strip(), body) for _, language, body in found if not language.startswith("{")]


def of(page, language):
    """Return the blocks of a language, without those that are whole programs."""
    return [body for name, body in blocks(page) if name == language and not is_program(name, body)]


def is_program(language, body):
    """Whether a block is a file by itself, for the commands of its page: its first line has the name."""
    return language == "python" and re.match(PROGRAM, body) is not None


def promised_output(code):
    """Return what the comments behind ``print`` calls promise. Each print has one, or its comment is missing."""
    lines = [line for line in code.splitlines() if re.search(r"(?<!\w)print\(", line)]
    promised = [match[1] for line in lines if (match := re.search(r"print\(.*\)  # (.*)$", line))]
    assert len(promised) == len(lines), "a print without its output behind it"
    return promised


def run(command, folder, **keywords):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, **keywords)


# What a graph held, and what was closed without waiting, goes back a moment later: a program that ends at once does not
# see it.
UNTIL_THE_QUEUE_IS_EMPTY = """
if __name__ == "__main__":
    import time as _time

    from cuda.core import memory_report as _memory_report

    _end = _time.monotonic() + 20
    while _memory_report().count and _time.monotonic() < _end:
        _time.sleep(0.01)
"""


def pages_with(language):
    return [pytest.param(page, id=page.relative_to(DOCS).as_posix()) for page in PAGES if of(page, language)]


def write_named_blocks(page, folder):
    for language, pattern in NAMED.items():
        for body in of(page, language):
            name = re.match(pattern, body)
            assert name, f"the first line of a {language} block names its file"
            (folder / name[1]).write_text(body, encoding="utf-8")
    for language, body in blocks(page):
        if is_program(language, body):
            (folder / re.match(PROGRAM, body)[1]).write_text(body, encoding="utf-8")


def is_for_the_checkout(line):
    return shlex.split(line)[0] in ("pip", "make")


def run_command(line, folder):
    """Run a command of a page, with the programs of this environment; skip the page where one is not there."""
    program, *arguments = shlex.split(line)
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which(program, path=search)
    if found is None or shutil.which("cc") is None:
        pytest.skip(f"{program} is not here, or no compiler")
    # Cython looks for declarations in the first folder of a namespace package only; a checkout has two.
    import cuda.core

    packages = str(Path(cuda.core.__file__).parents[2])
    done = run([found, *arguments], folder, env={**os.environ, "PATH": search, "PYTHONPATH": packages})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_block_is_of_a_language_that_is_tested(page):
    assert {language for language, _ in blocks(page)} <= LANGUAGES


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("page", pages_with("python"))
def test_the_code_of_a_page_prints_what_the_page_says(page, tmp_path, driver_name):
    write_named_blocks(page, tmp_path)
    for line in [line for body in of(page, "sh") for line in body.splitlines()]:
        if not is_for_the_checkout(line):
            run_command(line, tmp_path)
    code = "\n".join(of(page, "python"))
    script = tmp_path / "page.py"
    script.write_text(code + UNTIL_THE_QUEUE_IS_EMPTY, encoding="utf-8")
    # The simulated driver adds up at the end: whatever a page has left live is an error.
    watched = ["-m", "cuda_driver_sim", "--strict"] if driver_name == "sim" else []
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = run(
        [sys.executable, "-W", "error", *watched, script], tmp_path, env=environment if watched else None
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised_output(code)
    if "cuda_driver_sim.fail" in code:
        assert "live" not in done.stderr
    else:
        assert done.stderr == ""


@pytest.mark.sim_only
def test_the_audit_says_what_the_guide_says(tmp_path):
    page = DOCS / "guides" / "find-a-leak.md"
    write_named_blocks(page, tmp_path)
    [shown] = [body for body in of(page, "text") if body.startswith("cuda.core audit of ")]
    [command] = [line for body in of(page, "sh") for line in body.splitlines() if "cuda_driver_sim" in line]
    program, *arguments = shlex.split(command)
    assert program == "python"
    done = run([sys.executable, *arguments], tmp_path)
    assert done.returncode == 0
    said = done.stderr.replace(f"{tmp_path}{os.sep}", "").partition("cuda_driver_sim: ")[0]
    for pattern in (r"process \d+", r"in \d\.\d+ s"):
        said, shown = re.sub(pattern, "", said), re.sub(pattern, "", shown)
    assert said == shown
    assert "Memory audit: leaky.py" in (tmp_path / "leak.html").read_text(encoding="utf-8")


@pytest.mark.sim_only
@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_for_the_checkout_are_those_that_the_readme_has(page):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {
        line for body in re.findall(r"^```sh\n(.*?)^```$", readme, re.M | re.S) for line in body.splitlines()
    }
    said = [line for body in of(page, "sh") for line in body.splitlines() if is_for_the_checkout(line)]
    assert set(said) <= known


@pytest.mark.sim_only
def test_every_public_name_has_its_place_in_the_reference():
    import cuda.core.adaptors
    import cuda.core.graph
    import cuda.core.typing
    import cuda.core.utils

    named = set()
    for page in (DOCS / "reference").glob("*.md"):
        module = "cuda.core"
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif match := re.match(r"\.\. (?:auto\w+|data):: (\w+)", line):
                named.add(f"{module}.{match[1]}")
    public = {
        f"{module.__name__}.{name}"
        for module in (cuda.core, cuda.core.adaptors, cuda.core.graph, cuda.core.utils, cuda.core.typing)
        for name in module.__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
    }
    assert public - named == set()


@pytest.mark.sim_only
def test_every_page_is_reached_from_the_front():
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    guides = (DOCS / "guides" / "index.md").read_text(encoding="utf-8")
    for text in (front, guides):
        assert re.search(r"^```\{toctree\}\n(?::.*\n)*:glob:\n", text, re.M)
        assert re.search(r"^\*$", text, re.M)
