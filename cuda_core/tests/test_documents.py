# SPDX-License-Identifier: Apache-2.0
"""What the documents name is there: tests, and the modules of the table of floors."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "design").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
pytestmark = pytest.mark.sim_only  # needs the checkout


@pytest.fixture(scope="module")
def tests():
    names = set()
    for folder in ("cuda_core/tests", "driver_sim/tests"):
        for path in (ROOT / folder).rglob("*.py"):
            names.add(path.stem)
            names |= set(re.findall(r"^\s*(?:def )?(test_\w+)(?:\(| =)", path.read_text(), re.M))
    return names


def numbered(text):
    """Return the numbered lines under a heading that speaks of invariants, each with what follows it."""
    for section in re.split(r"^###? ", text, flags=re.M):
        if section.lower().startswith(("invariants", "numbered invariants")):
            yield from re.findall(r"^\d+\. .*(?:\n(?!\d+\. |#|\n).*)*", section, re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_tests_that_a_page_names_are_there(page, tests):
    named = set(re.findall(r"\btest_\w+", page.read_text()))
    assert named - tests == set()


def test_every_invariant_names_a_test():
    found = [(page.name, line) for page in PAGES for line in numbered(page.read_text())]
    assert len(found) >= 20
    assert [entry for entry in found if not re.search(r"\btest_\w+", entry[1])] == []


def test_every_module_has_its_floor():
    package = ROOT / "cuda_core" / "cuda" / "core"
    modules = {path.stem for pattern in ("*.py", "*.pyx") for path in package.rglob(pattern)} - {"__init__"}
    floors = (ROOT / "design" / "README.md").read_text().split("## Floors")[1]
    named = set(re.findall(r"`(?:[\w/]*/)?(\w+)`", floors))
    assert modules - named - {"_version", "typing"} == set()
