# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for the lock of captures with the GIL: whoever has that lock may be in a driver that waits for Python.

Who lets a stream go may be the last to hold it, and then destroys it under the lock. With the GIL that is
``drop_stream``, which gives the GIL up for it; ``release_stream`` is for code without.
"""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "cuda" / "core"  # the sources, not what is installed
pytestmark = pytest.mark.sim_only  # needs the checkout

# What it lets go of with the GIL is held by somebody else, too, or a default stream, which is never destroyed.
NEVER_THE_LAST = "_stream_handle.pyx"
TAKES_THE_LOCK = re.compile(r"\b(release_stream|hold_captures_off|enter_capture)\(")


def indentation(line):
    return len(line) - len(line.lstrip())


def has_the_gil(lines, number):
    """Whether the code of a line is run with the GIL, by the nearest ``with`` or function around it."""
    inner = indentation(lines[number])
    for above in range(number - 1, -1, -1):
        line = lines[above]
        if not line.strip() or line.startswith(")") or indentation(line) >= inner:
            continue
        inner = indentation(line)
        if re.match(r"\s*with (no)?gil:", line):
            return "with gil" in line
        if re.match(r"\s*(cdef|cpdef|def) ", line):
            end = next(i for i in range(above, len(lines)) if lines[i].rstrip().endswith(":"))
            return "nogil" not in " ".join(lines[above : end + 1])
    raise AssertionError(f"line {number + 1} is in no function")


def uses():
    for path in sorted(PACKAGE.rglob("*.pyx")):
        if path.name == NEVER_THE_LAST:
            continue
        lines = path.read_text().split("\n")
        for number, line in enumerate(lines):
            if TAKES_THE_LOCK.search(line) and not re.match(r"\s*(cdef|cpdef|def) ", line):
                yield f"{path.relative_to(PACKAGE)}:{number + 1}", has_the_gil(lines, number)


def test_the_lock_of_captures_is_taken_without_the_gil():
    found = dict(uses())
    assert len(found) > 40
    assert [place for place, gil in found.items() if gil] == []
