# SPDX-License-Identifier: Apache-2.0
"""The plugin of the kit: it costs nothing where it is not used, and chooses the driver where it is."""

import os
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


def run_pytest(folder, *arguments, environment=None):
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
        env=child_environment(environment) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
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


WRONG = """
from cuda.core import Buffer, LegacyPinnedMemoryResource
from cuda.core.testing import MemoryResourceTests

class Borrows(LegacyPinnedMemoryResource):
    def allocate(self, size, *, stream=None):
        return Buffer.from_handle(4096, size)

class TestBorrows(MemoryResourceTests):
    def make_resource(self):
        return Borrows()
"""


def test_what_is_plain_and_quick_goes_first(tmp_path):
    (tmp_path / "test_pinned.py").write_text(TESTS)
    run = run_pytest(tmp_path, "--collect-only")
    names = [line.rpartition("::")[2] for line in run.stdout.splitlines() if "::" in line]
    assert names[0] == "test_it_says_what_its_memory_is"
    assert names[-1] == "test_any_order_of_operations"
    order = [name.partition("[")[0] for name in names]
    assert order.index("test_a_buffer_owns_what_was_asked_for") < order.index("test_memory_comes_back")
    assert order.index("test_memory_comes_back") < order.index("test_every_driver_call_of_a_free_fails")


@pytest.mark.sim_only
def test_the_machine_is_skipped_once_a_check_of_the_class_has_failed(tmp_path):
    (tmp_path / "test_borrows.py").write_text(WRONG + TESTS.replace("TestPinned", "TestOther"))
    run = run_pytest(
        tmp_path, "--memory-driver=sim", "-rs", "-k", "says or owns or (any_order and not TestOther)"
    )
    assert run.returncode == 1, run.stdout
    assert "1 failed, 3 passed, 1 skipped" in run.stdout
    assert "test_a_buffer_owns_what_was_asked_for has failed: mend that first" in run.stdout
    run = run_pytest(tmp_path, "--memory-driver=sim", "-rs", "-k", "TestBorrows and any_order")
    assert "1 failed" in run.stdout  # by itself it is not skipped


@pytest.mark.sim_only
def test_a_bad_attribute_is_said_once(tmp_path):
    (tmp_path / "test_pinned.py").write_text(TESTS + "\n    alignment = True\n")
    run = run_pytest(tmp_path, "--memory-driver=sim")
    assert run.returncode == 1, run.stdout
    assert "TestPinned.alignment must be an integer, got bool: True" in run.stdout
    assert " skipped, 1 error in" in run.stdout, run.stdout


@pytest.mark.sim_only
def test_without_a_gpu_the_way_out_is_said_once(tmp_path):
    (tmp_path / "test_pinned.py").write_text(TESTS)
    # Without the path on which processes of this suite find the simulated driver.
    run = run_pytest(tmp_path, environment={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    if run.returncode == 0:
        pytest.skip("there is a GPU")
    assert " skipped, 1 error in" in run.stdout, run.stdout
    # pytest's own summary says an error again, whole where CI is set.
    told = run.stdout.partition("short test summary")[0]
    assert told.count("and run pytest --memory-driver=sim, or run pytest on a machine with a GPU") == 1
    assert "python -m cuda_driver_sim SCRIPT" not in run.stdout


def test_without_what_it_needs_the_kit_says_what_to_install(tmp_path):
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not here')")
    done = child(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import cuda.core.testing\n"
        "except ImportError as error:\n    print(error)"
    )
    assert done.stdout == (
        "cuda.core.testing needs pytest and hypothesis (not here): pip install pytest hypothesis\n"
    )


def test_importing_the_package_loads_neither_kit_nor_adaptors():
    done = child(
        "import sys, cuda.core\n"
        "print(sorted(name for name in sys.modules if name.startswith(('cuda.core.testing', 'cuda.core.adap', 'pyt'))))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
