# SPDX-License-Identifier: Apache-2.0
"""The migration table for reviewers names what is there: modules, steps, and every test of every case."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cuda_core" / "cuda" / "core"
pytestmark = pytest.mark.sim_only  # needs the checkout


def rows(heading):
    """Return the rows of the tables under a heading, as lists of cells, without the heads."""
    page = (ROOT / "design" / "adoption.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.split(f"\n## {heading}\n")[1], flags=re.M)[0]
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.M):
        lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        assert {len(line) for line in lines} == {len(lines[0])}
        found += lines[2:]
    assert found
    return found


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def cases_with_tests():
    """Return the names of the tests of each case from the field, by its id."""
    found = {}
    for path in (ROOT / "cuda_core" / "tests").rglob("test_*.py"):
        for name, group, number in re.findall(r"^def (test_([a-z]+)_(\d\d)_\w+)\(", path.read_text(), re.M):
            found.setdefault(f"{group}-{number}", set()).add(name)
    return found


def test_each_step_needs_earlier_ones_only():
    steps = [(int(number), numbers(needs)) for number, _, _, needs in rows("The order")]
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    for number, needs in steps:
        assert all(need < number for need in needs), number


def test_each_file_changes_in_a_step_that_is_there():
    steps = {int(number) for number, *_ in rows("The order")}
    named = [step for *_, cell in rows("File by file") for step in numbers(cell)]
    assert set(named) <= steps
    # Those that add tests or new files only change none.
    assert steps - set(named) <= {2, 4, 10, 15}


def test_the_modules_that_take_a_files_place_are_there():
    named = {name for _, _, here, _ in rows("File by file") for name in re.findall(r"`([\w/]+)`", here)}
    assert len(named) > 40
    missing = [
        name for name in named if not any(PACKAGE.joinpath(name + end).exists() for end in (".py", ".pyx"))
    ]
    assert missing == []


def test_every_case_names_all_of_its_tests():
    tests = cases_with_tests()
    said = {case: set(re.findall(r"`(test_\w+)`", shown)) for case, _, _, _, shown in rows("Bug by bug")}
    assert len(said) > 80
    for case, named in said.items():
        assert named, case
        assert named >= tests.get(case, set()), case


def test_every_case_names_its_reports_and_what_mends_it():
    for case, reports, wrong, mended, _ in rows("Bug by bug"):
        assert re.fullmatch(r"(#\d+(, #\d+)*)?", reports), case
        assert wrong, case
        assert mended, case


def test_the_modules_that_mend_a_case_are_there():
    modules = {path.stem for pattern in ("*.py", "*.pyx") for path in PACKAGE.rglob(pattern)}
    named = {name for _, _, _, cell, _ in rows("Bug by bug") for name in re.findall(r"`(_\w+)`", cell)}
    assert len(named) > 20
    assert named - modules == set()
