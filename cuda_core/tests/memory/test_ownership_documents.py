# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows of the state machine is what the machine is made from."""

from pathlib import Path

import pytest

from cuda.core._memory import _ownership

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
    assert between(document, "<!-- table -->", "<!-- end table -->") == _ownership.table_markdown().strip()


def test_the_diagram_of_the_document_is_made_from_the_table(document):
    shown = between(document, "<!-- diagram -->", "<!-- end diagram -->")
    assert shown == f"```mermaid\n{_ownership.diagram_mermaid().strip()}\n```"


def test_the_table_has_a_line_for_every_row():
    lines = _ownership.table_markdown().splitlines()
    assert len(lines) == len(_ownership.TABLE) + 2
    assert len({line.count("|") for line in lines}) == 1


def test_the_diagram_names_every_state():
    words = set(_ownership.diagram_mermaid().replace(":", " ").split())
    assert {state.name for state in _ownership.Ownership} <= words
