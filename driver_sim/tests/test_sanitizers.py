# SPDX-License-Identifier: Apache-2.0
"""Eight threads of mixed calls under the sanitizers; set CUDA_DRIVER_SIM_SANITIZERS=1 to run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.skipif(not os.environ.get("CUDA_DRIVER_SIM_SANITIZERS"), reason="takes minutes"),
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
]


def cuda_include():
    folders = [Path(p) / "nvidia" / "cu13" / "include" for p in sys.path]
    return next((f for f in folders if (f / "cuda.h").exists()), None)


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_mixed_calls(sanitizer, tmp_path):
    include = cuda_include()
    if include is None:
        pytest.skip("needs the cuda.h of nvidia-cuda-runtime")
    program = tmp_path / "mixed_calls"
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        f"-fsanitize={sanitizer}",
        f"-I{include}",
        f"-I{ROOT / 'src'}",
        "-pthread",
    ]
    sources = [*sorted((ROOT / "src").glob("*.cpp")), ROOT / "tests" / "stress" / "mixed_calls.cpp"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(program)], check=True, timeout=600)
    done = subprocess.run([str(program), "4000"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
