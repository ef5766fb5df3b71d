# SPDX-License-Identifier: Apache-2.0
"""Eight threads of mixed calls, beside another process, under the sanitizers.

It takes minutes to compile, so it runs when asked for (``CUDA_DRIVER_SIM_SANITIZERS=1 pytest
tests/test_sanitizers.py``). Without sanitizers the same program runs always.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cuda_driver_sim as sim

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "stress" / "mixed_calls.cpp"


def cuda_include():
    folders = [Path(p) / "nvidia" / "cu13" / "include" for p in sys.path]
    return next((f for f in folders if (f / "cuda.h").exists()), None)


pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
    pytest.mark.skipif(cuda_include() is None, reason="needs the cuda.h of nvidia-cuda-runtime"),
]


def compile_with(flags, source, target):
    include = [f"-I{cuda_include()}", f"-I{ROOT / 'src'}"]
    command = ["g++", "-std=c++17", *flags, *include, "-pthread", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=900)


def run(program, rounds, **env):
    done = subprocess.run(
        [str(program), str(rounds)], capture_output=True, text=True, timeout=900, env={**os.environ, **env}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_mixed_calls(tmp_path):
    library = sim.library_path()
    flags = ["-O1", "-Wl,--no-as-needed", library, f"-Wl,-rpath,{Path(library).parent}"]
    compile_with(flags, PROGRAM, tmp_path / "mixed_calls")
    run(tmp_path / "mixed_calls", 3000)


@pytest.mark.skipif(not os.environ.get("CUDA_DRIVER_SIM_SANITIZERS"), reason="takes minutes")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_mixed_calls_under(sanitizer, tmp_path):
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}"]
    sources = [*sorted((ROOT / "src").glob("*.cpp")), PROGRAM]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source, target: compile_with([*flags, "-c"], source, target), sources, objects))
    link = ["g++", f"-fsanitize={sanitizer}", "-pthread", *map(str, objects), "-ldl", "-o"]
    subprocess.run([*link, str(tmp_path / "mixed_calls")], check=True, timeout=900)
    run(tmp_path / "mixed_calls", 4000, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="halt_on_error=1")
