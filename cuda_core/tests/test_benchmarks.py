# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, keep nothing, and draw what they have measured."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, BENCHMARKS / program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def raw_driver():
    """Skip where the plain calls cannot be compiled."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import raw_driver
    finally:
        del sys.path[0]
    try:
        return raw_driver.compile_library()
    except (SystemExit, OSError) as error:
        pytest.skip(f"the driver calls in C cannot be compiled: {error}")


def test_the_curves_of_virtual_memory(raw_driver, driver_name, tmp_path):
    measured = run(
        "curves.py", "--driver", driver_name, "--rounds=1", "--json", tmp_path / "c.json", "--plots", tmp_path
    )
    assert (measured.returncode, measured.stderr) == (0, "")
    assert "kept by the process after all rounds: nothing" in measured.stdout
    report = json.loads((tmp_path / "c.json").read_text())
    sizes = [point["bytes"] for point in report["grow"]]
    assert sizes[:3] == [2 << 20, 4 << 20, 8 << 20]
    points = [*report["grow"], *report["release"]]
    assert all(len(point[side]) == 1 and point[side][0] > 0 for point in points for side in ("raw", "this"))
    drawn = run("curves.py", "--read", tmp_path / "c.json", "--plots", tmp_path / "again")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    for name, lines in ("grow.svg", 2), ("release.svg", 4):
        text = (tmp_path / name).read_text()
        assert text == (tmp_path / "again" / name).read_text()
        assert len(ElementTree.fromstring(text).findall(f"{SVG}polyline")) == lines


def test_the_curves_of_nothing(tmp_path):
    refused = run("curves.py", "--rounds=0")
    assert refused.returncode == 2
    assert "at least one round is needed, got 0" in refused.stderr
