# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows of the state machine is what the machine is made from."""

import re
from pathlib import Path

import pytest

from cuda.core._memory import _ownership, _ownership_document

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "design" / "ownership.md"


@pytest.fixture
def document():
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests are not in a checkout of the project, so its documents are not here")
    return DOCUMENT.read_text(encoding="utf-8")


def between(text, begin, end):
    """Return the lines between the only line `begin` and the only line `end`."""
    lines = text.splitlines()
    assert lines.count(begin) == 1, f"the document has {lines.count(begin)} lines {begin!r}"
    assert lines.count(end) == 1, f"the document has {lines.count(end)} lines {end!r}"
    return "\n".join(lines[lines.index(begin) + 1 : lines.index(end)]).strip()


def test_the_table_of_the_document_is_the_table_of_the_machine(document):
    assert (
        between(document, "<!-- table -->", "<!-- end table -->")
        == _ownership_document.table_markdown().strip()
    )


def test_the_diagram_of_the_document_is_made_from_the_table(document):
    shown = between(document, "<!-- diagram -->", "<!-- end diagram -->")
    assert shown == f"```mermaid\n{_ownership_document.diagram_mermaid().strip()}\n```"


def test_the_table_has_a_line_for_every_row():
    lines = _ownership_document.table_markdown().splitlines()
    assert len(lines) == len(_ownership.TABLE) + 2
    assert len({line.count("|") for line in lines}) == 1


def test_the_diagram_names_every_state():
    words = set(_ownership_document.diagram_mermaid().replace(":", " ").split())
    assert {state.name for state in _ownership.Ownership} <= words


def test_every_invariant_names_tests_that_exist(document):
    """The numbers run from 1 without a gap, and each line names at least one test of this folder."""
    defined = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
        defined |= {
            f"{name}"
            for name in re.findall(r"^(\w+) = \w+\.TestCase", path.read_text(encoding="utf-8"), re.M)
        }
    section = document.split("## Invariants", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if re.match(r"\d+\. ", line)]
    assert [int(line.split(".", 1)[0]) for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line)
        assert named, line
        assert set(named) <= defined, f"{set(named) - defined} in: {line}"
