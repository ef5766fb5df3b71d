# SPDX-License-Identifier: Apache-2.0
"""The plugin of the kit: it costs nothing where it is not used, and chooses the driver where it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import child_environment

ROOT = Path(__file__).resolve().parents[3]

TESTS = """
from cuda.core import Device, LegacyPinnedMemoryResource
from cuda.core.testing import MemoryResourceTests

class TestPinned(MemoryResourceTests):
    def make_resource(self):
        return LegacyPinnedMemoryResource()
"""


def child(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def run_pytest(folder, *arguments):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "cuda_core_pytest",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=child_environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
    )


def test_loading_the_plugin_loads_nothing_else():
    done = child(
        "import sys; before = set(sys.modules); import cuda_core_pytest; print(sorted(set(sys.modules) - before))"
    )
    assert (done.stdout, done.stderr) == ("['cuda_core_pytest']\n", "")


def test_a_run_without_the_option_loads_no_driver(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n    assert not {'cuda.core', 'cuda_driver_sim'} & set(sys.modules)\n"
    )
    run = run_pytest(tmp_path)
    assert run.returncode == 0, run.stdout


@pytest.mark.sim_only
def test_pytest_finds_the_plugin_by_itself():
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\ncuda_core = "cuda_core_pytest"' in text


def test_the_kit_is_chosen_by_an_option(tmp_path, driver_name):
    (tmp_path / "test_pinned.py").write_text(TESTS)
    choice = "sim" if driver_name == "sim" else "watched"
    run = run_pytest(
        tmp_path, f"--memory-driver={choice}", "-rs", "-k", "alignment or aligned or fails or stream_order"
    )
    assert run.returncode == 0, run.stdout
    assert "SKIPPED" in run.stdout
    assert "stream_ordered is False" in run.stdout
    assert "cannot be made to fail" not in run.stdout


def test_without_what_it_needs_the_kit_says_what_to_install(tmp_path):
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not here')")
    done = child(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import cuda.core.testing\n"
        "except ImportError as error:\n    print(error)"
    )
    assert done.stdout == (
        "cuda.core.testing needs pytest and hypothesis (not here): pip install cuda-core[testing]\n"
    )


def test_importing_the_package_loads_neither_kit_nor_adaptors():
    done = child(
        "import sys, cuda.core\n"
        "print(sorted(name for name in sys.modules if name.startswith(('cuda.core.testing', 'cuda.core.adap', 'pyt'))))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
