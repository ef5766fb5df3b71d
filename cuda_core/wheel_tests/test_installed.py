# SPDX-License-Identifier: Apache-2.0
"""The wheel in an environment of its own works, away from the checkout."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_it_needs_nothing_else_than_what_it_asks_for(empty):
    assert "No broken requirements" in empty.run("-m", "pip", "check").stdout
    done = empty.run("-m", "pip", "list", "--format=freeze")
    installed = {line.split("==")[0].lower() for line in done.stdout.split()}
    assert installed - {"pip", "setuptools", "wheel"} >= {"cuda-core", "cuda-bindings", "attrs", "numpy"}


# The kit for authors needs pytest, which its users have.
def test_all_modules_can_be_imported_without_a_driver(empty):
    code = """
import importlib, pathlib, cuda.core
folder = pathlib.Path(cuda.core.__file__).parent
names = {".".join(("cuda.core", *path.relative_to(folder).parts)) for pattern in ("*.py", "*.so")
         for path in folder.rglob(pattern)}
names = {name.removesuffix(".py").split(".cpython")[0].removesuffix(".__init__") for name in names}
names = {name for name in names if not name.startswith("cuda.core.testing") and not name.endswith(".__main__")}
for name in sorted(names):
    importlib.import_module(name)
print(len(names), folder)
"""
    count, folder = empty.run("-W", "error", "-c", code).stdout.split()
    assert int(count) > 80
    assert folder == str(empty.site / "cuda" / "core")


def test_the_main_job_runs(empty):
    example = shutil.copy(ROOT / "examples" / "grow_buffer.py", empty.work)
    done = empty.run("-W", "error", "-m", "cuda_driver_sim", "--strict", example)
    assert "every byte returned" in done.stdout
    assert done.stderr == ""


def test_without_a_driver_it_says_so(empty):
    done = empty.run("-c", "import cuda.core; cuda.core.Device(0)", check=False)
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert re.search(r"driver|libcuda", done.stderr.splitlines()[-1])


def test_another_compiled_module_uses_its_buffers(empty):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    empty.pip("install", "Cython>=3.3")
    client = shutil.copy(ROOT / "cuda_core" / "tests" / "cython_client.py", empty.work)
    headers = list(empty.site.rglob("cuda.h"))
    assert headers == []  # nothing but the package and Cython
    done = empty.run("-W", "error", "-m", "cuda_driver_sim", "--strict", client)
    assert done.stdout.strip() == f"used every function against {empty.site}"
    assert done.stderr == ""


def test_removing_it_leaves_nothing_but_the_bindings(make_environment, wheel):
    environment = make_environment("removed")
    environment.pip("install", "cuda-bindings==13.*", "attrs", "numpy")
    before = environment.files()
    environment.pip("install", "--no-deps", wheel)
    environment.run("-c", "import cuda.core, cuda.core.graph, cuda.core.utils, cuda.core.typing")
    environment.pip("uninstall", "--yes", "cuda-core")
    assert environment.files() == before
    assert not (environment.site / "cuda" / "core").exists()
    environment.run("-c", "import cuda.bindings.driver")
