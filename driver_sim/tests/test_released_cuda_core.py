# SPDX-License-Identifier: Apache-2.0
"""The released cuda-core 1.2.2, unmodified, on the simulated driver.

It runs in an environment of its own, which the tests of the memory layer make (they compare with it);
without the checkout around this folder there is none. What a scenario leaves live or has refused is part
of what is expected: nothing, but for the faults of 1.2.2 named here.
"""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import cuda_driver_sim as sim

SCENARIOS = Path(__file__).with_name("released") / "scenarios.py"
MAKES_THE_ENVIRONMENT = Path(__file__).parents[2] / "cuda_core" / "tests" / "seed" / "conftest.py"

pytestmark = pytest.mark.skipif(not MAKES_THE_ENVIRONMENT.exists(), reason="needs the checkout")
if MAKES_THE_ENVIRONMENT.exists():
    _spec = importlib.util.spec_from_file_location("released_environment", MAKES_THE_ENVIRONMENT)
    _environment = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_environment)
    released_python = _environment.released_python

# 1.2.2 takes the rights of every device away before it destroys a pool, also those of the pool's own device.
TAKES_OWN_ACCESS = "refused: 1 driver call", "cuMemPoolSetAccess: CUDA_ERROR_INVALID_DEVICE"
# 1.2.2 keeps the creation reference of each chunk of virtual memory for ever.
KEEPS_A_CHUNK = ("left live: 1 physical allocation",)

# A spawned child asks for the current device before there is one, and takes device 0 then.
ASKS_TOO_EARLY = "refused: 1 driver call", "cuCtxGetDevice: CUDA_ERROR_INVALID_CONTEXT"

# What the driver reports at the end of the scenarios that 1.2.2 does not leave clean.
REPORTS = {
    "device_pool": TAKES_OWN_ACCESS,
    "device_pool_between_processes": (*TAKES_OWN_ACCESS, "a child", *TAKES_OWN_ACCESS),
    "pinned_pool_between_processes": ("a child", *ASKS_TOO_EARLY),
    "child_sends_a_buffer_and_an_event": (*TAKES_OWN_ACCESS, "a child", *TAKES_OWN_ACCESS),
    "pinned_pool_without_access": ("refused: 1 driver call", "cuMemsetD8Async: CUDA_ERROR_INVALID_VALUE"),
    "managed_pool": ("refused: 3 driver calls", "cuMemAdvise: CUDA_ERROR_NOT_SUPPORTED (3 times)"),
    "virtual_memory": KEEPS_A_CHUNK,
    "copies_between_resources": KEEPS_A_CHUNK,
    # The grow frees the old range by hand; then the old buffer's deleter asks for it once more.
    "virtual_memory_grown": (
        "left live: 2 physical allocations",
        "refused: 1 driver call",
        "cuMemRetainAllocationHandle: CUDA_ERROR_INVALID_VALUE",
    ),
}
MARK = "cuda_driver_sim:"
NAMES = re.findall(r"^@scenario\ndef (\w+)", SCENARIOS.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name, released_python):
    if name == "batched_copies" and "cuMemcpyBatchAsync" not in sim.functions():
        pytest.skip("this driver has no cuMemcpyBatchAsync")
    done = subprocess.run(
        [released_python, "-m", "cuda_driver_sim", str(SCENARIOS), name],
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment.plain_environment(),
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    lines = done.stderr.splitlines()
    report = [line.removeprefix(MARK).strip() for line in lines if line.startswith(MARK)]
    report = [re.sub(r"^process \d+ \(python .*\):$", "a child", line) for line in report]
    assert tuple(report) == REPORTS.get(name, ())
    warnings = [line for line in lines if not line.startswith(MARK)]
    if name == "virtual_memory_grown":
        assert "deallocate() failed" in warnings.pop()
    assert not warnings


def test_what_is_reported_names_scenarios():
    assert NAMES and REPORTS.keys() <= set(NAMES)
