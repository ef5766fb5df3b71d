# SPDX-License-Identifier: Apache-2.0
"""The fault that started this project: shown by the released cuda-core, not shown by this one.

Both run the same program on the same simulated driver. In 1.2.2 the grow unmaps and frees the old range by hand,
and then drops its handle, whose deleter tries to free the range again.
"""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sim_only

PROGRAM = Path(__file__).with_name("grow_and_close.py")


def facts(output):
    """Return the program's lines as a dictionary."""
    return dict(line.split(": ", 1) for line in output.splitlines())


@pytest.fixture(scope="module")
def released(released_python, run_on_simulated_driver):
    return run_on_simulated_driver(released_python, PROGRAM)


@pytest.fixture(scope="module")
def ours(run_on_simulated_driver):
    return run_on_simulated_driver(sys.executable, PROGRAM)


def test_both_run_the_program_and_keep_the_bytes(released, ours):
    for run in (released, ours):
        assert run.returncode == 0, run.stderr
        assert facts(run.stdout)["moved"] == "True"
        assert facts(run.stdout)["bytes kept"] == "True"


def test_released_deleter_runs_on_a_range_that_is_gone(released):
    assert "cuMemRetainAllocationHandle" in released.stderr
    assert "CUDA_ERROR_INVALID_VALUE" in released.stderr


def test_released_returns_no_memory(released):
    assert int(facts(released.stdout)["bytes not returned"]) == 4 << 20
    assert "left live: 2 physical allocations" in released.stderr


def test_this_package_returns_every_byte_and_address(ours):
    assert facts(ours.stdout)["bytes not returned"] == "0"
    assert facts(ours.stdout)["old addresses free"] == "True"


def test_this_package_is_quiet_and_makes_no_refused_call(ours):
    # The simulated driver reports what was left live or refused on standard error, and is silent otherwise.
    assert ours.stderr == ""
