# SPDX-License-Identifier: Apache-2.0
"""The files of the released cuda-core that the migration table names are there."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.sim_only  # needs the checkout

# What a compiled source leaves in the release: its declarations, or the types of what it compiles to.
REMAINS = {".py": (".py",), ".pyx": (".pyi", ".pxd"), ".pxd": (".pxd",), ".hpp": (".hpp",)}


@pytest.fixture(scope="module")
def released_package(released_python):
    code = "import importlib.util; print(importlib.util.find_spec('cuda.core').submodule_search_locations[0])"
    done = subprocess.run([released_python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_each_file_that_would_change_is_in_the_release(released_package):
    page = Path(__file__).resolve().parents[3].joinpath("design", "adoption.md").read_text(encoding="utf-8")
    section = page.split("\n## File by file\n")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+)(\.\w+)`", "".join(re.findall(r"^\| (`[^|]*)\|", section, re.M)))
    assert len(named) > 30
    # The release holds one package for each major version of CUDA.
    package = released_package / "cu13"
    missing = [
        name + suffix
        for name, suffix in named
        if not any(package.joinpath(name + end).exists() for end in REMAINS[suffix])
    ]
    assert missing == []
