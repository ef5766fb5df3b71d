# SPDX-License-Identifier: Apache-2.0
"""The resources of the guide run, pass the kit, and are what the guide shows."""

import gc
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings

from cuda.core.testing import MemoryResourceTests

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "resources"
GUIDE = ROOT / "docs" / "guides" / "write-a-memory-resource.md"
NEEDS = {"cupy_pool": "cupy", "torch_memory": "torch"}  # beside a GPU

# One of them has an own reason to be refused by the driver: none. The marks are for the rules of this suite.
SHORT = settings(max_examples=6, stateful_step_count=15, deadline=None, derandomize=True)


def load(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    specification = importlib.util.spec_from_file_location(f"{name}_example", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class TestNumpyMemory(MemoryResourceTests):
    machine_settings = SHORT

    def make_resource(self):
        return load("numpy_memory").NumpyMemoryResource()

    def in_use(self, resource):
        return len(resource.arrays)


class TestAlignedMemory(MemoryResourceTests):
    machine_settings = SHORT
    alignment = 4096

    def make_resource(self):
        return load("c_library").AlignedMemoryResource()


@pytest.fixture(scope="module", autouse=True)
def events_of_torch(devices, driver_name):
    """PyTorch keeps the events that order its frees, for good: they are made here, and not in some test."""
    if driver_name != "gpu" or importlib.util.find_spec("torch") is None:
        return
    import torch

    for _ in range(2):
        used = [torch.empty(4096, dtype=torch.uint8, device="cuda:0") for _ in range(8)]
        while used:
            used.pop().record_stream(torch.cuda.Stream())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class _OnAGpu(MemoryResourceTests):
    machine_settings = SHORT

    @pytest.fixture(autouse=True)
    def needs_a_gpu(self, driver_name):
        if driver_name != "gpu":
            pytest.skip("needs a GPU")


class TestCupyPool(_OnAGpu):
    stream_ordered = True

    pools: ClassVar[list] = []  # not the resources, of which some must be gone before the end of a test

    @pytest.fixture(autouse=True)
    def nothing_kept(self, needs_a_gpu):
        yield
        while self.pools:
            self.pools.pop().free_all_blocks()

    def make_resource(self):
        resource = load("cupy_pool").CupyPoolResource()
        self.pools.append(resource.pool)
        return resource

    @pytest.mark.provokes_refusals  # CuPy asks on where a call has failed, and tells nobody
    def test_every_driver_call_of_an_allocation_fails(self, resource, stream, driver_calls, refusals_allowed):
        super().test_every_driver_call_of_an_allocation_fails(
            resource, stream, driver_calls, refusals_allowed
        )

    def in_use(self, resource):
        return len(resource.pointers)


@pytest.mark.provokes_refusals  # PyTorch asks for the device of a context on threads that have none
class TestTorchMemory(_OnAGpu):
    stream_ordered = True
    driver_failures = (
        False  # PyTorch's allocator aborts the process where a call fails that it does not expect to
    )

    @pytest.fixture(autouse=True)
    def nothing_kept(self, needs_a_gpu):
        yield
        torch = sys.modules.get("torch")
        if torch is not None:
            gc.collect()  # the tensors of a resource that is part of a cycle
            torch.cuda.empty_cache()

    def make_resource(self):
        return load("torch_memory").TorchMemoryResource()

    def in_use(self, resource):
        return len(resource.tensors)


for _name in ("test_more_than_there_is", "test_a_size_that_is_none"):
    pytest.mark.provokes_refusals(getattr(_OnAGpu, _name))


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("numpy_memory", "arrays in use: 0"),
        ("c_library", "RELEASED"),
        ("cupy_pool", "in use: 0 bytes"),
        ("torch_memory", "tensors in use: 0"),
    ],
)
def test_each_runs(driver_name, name, last):
    if name in NEEDS and (driver_name != "gpu" or importlib.util.find_spec(NEEDS[name]) is None):
        pytest.skip(f"needs a GPU and {NEEDS[name]}")
    run = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[-1] == last


@pytest.mark.sim_only
def test_the_guide_shows_each_of_them():
    shown = re.findall(r"^```\{literalinclude\} (\S+)$", GUIDE.read_text(), re.M)
    assert sorted((GUIDE.parent / path).resolve() for path in shown) == sorted(FOLDER.glob("*.py"))


@pytest.mark.sim_only
def test_the_table_of_the_guide_is_about_the_whole_contract():
    """Each member that a resource overrides, and each check of the kit, has its place in the guide's table."""
    text = GUIDE.read_text()
    for name in (
        "allocate",
        "deallocate",
        "at_exit",
        "is_device_accessible",
        "is_host_accessible",
        "is_managed",
    ):
        assert f"`{name}" in text, name
    for name in ("device_id", "unique_addresses", "release_on_collection"):
        assert f"`{name}" in text, name
