# SPDX-License-Identifier: Apache-2.0
"""What is installed is what the checkout says."""

import importlib.machinery
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cuda.core
from cuda.core._memory import _ownership

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cuda_core" / "cuda" / "core"
INSTALLED = Path(cuda.core.__file__).parent


def test_the_version_stands_in_one_form():
    assert cuda.core.__version__ == importlib.metadata.version("cuda-core")


def test_it_requires_only_what_it_imports_at_run_time():
    required = [line for line in importlib.metadata.requires("cuda-core") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in required} == {"attrs", "cuda-bindings", "numpy"}


def test_importing_it_does_not_load_numpy():
    code = "import sys, cuda.core; print(sorted({'numpy', 'multiprocessing'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_rules_can_be_read_beside_the_module_compiled_from_them():
    compiled = Path(_ownership.__file__)
    assert compiled.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    assert compiled.with_name("_ownership.py").read_text(encoding="utf-8").startswith("# SPDX")


@pytest.mark.sim_only
def test_every_module_and_declaration_is_installed():
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    expected = {path.relative_to(SOURCES) for path in SOURCES.rglob("*.py")}
    for pattern in ("*.pxd", "*.pyi", "py.typed"):
        expected |= {path.relative_to(SOURCES) for path in SOURCES.rglob(pattern)}
    assert Path("py.typed") in expected
    expected |= {path.relative_to(SOURCES).with_suffix(suffix) for path in SOURCES.rglob("*.pyx")}
    assert sorted(str(path) for path in expected if not (INSTALLED / path).exists()) == []


@pytest.mark.sim_only
def test_the_rules_that_are_installed_are_those_of_the_checkout():
    name = Path("_memory") / "_ownership.py"
    assert (INSTALLED / name).read_bytes() == (SOURCES / name).read_bytes()


@pytest.mark.sim_only
def test_it_claims_the_python_versions_that_ci_tests():
    claimed = importlib.metadata.metadata("cuda-core").get_all("Classifier")
    claimed = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(claimed), re.M)
    tested = re.search(
        r'^readonly VERSIONS="(.*)"$', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M
    )
    assert claimed == tested[1].split()


@pytest.mark.sim_only
def test_a_process_of_the_build_that_imports_its_script_builds_nothing():
    """Those that cythonize starts do, with spawn and with forkserver, which is the usual way since 3.14."""
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    code = "import runpy; runpy.run_path('setup.py', run_name='__mp_main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.sim_only
def test_no_compiled_comprehension_drops_an_item_twice():
    """Cython 3.3.1 drops the item of a list comprehension twice where Python has no memory to append it.

    It does so for every item that is computed; a loop with ``append`` does not. Generators that are given to ``tuple``,
    ``join``, ``sorted`` and their like are compiled as list comprehensions.
    """
    generated = ROOT / "build" / "cython" / "cuda_core" / "cuda" / "core"
    found, looked = [], 0
    for source in [*SOURCES.rglob("*.pyx"), SOURCES / "_memory" / "_ownership.py"]:
        code = (generated / source.relative_to(SOURCES)).with_suffix(".cpp")
        if not code.is_file() or code.stat().st_mtime < source.stat().st_mtime:
            continue
        looked += 1
        call = r"[(!]__Pyx_ListComp_AppendAndDecref\(.*__PYX_ERR\(\d+, (\d+)"
        found += [f"{source.name}:{line}" for line in re.findall(call, code.read_text(encoding="utf-8"))]
    if not looked:
        pytest.skip("needs what was generated for a build in this checkout")
    assert found == []
