# SPDX-License-Identifier: Apache-2.0
"""The tests of queue, loans and graphs on many threads, with the modules compiled under ThreadSanitizer.

Compiling takes minutes, so it runs when asked for: with ``CUDA_CORE_SANITIZERS=1`` in the environment. The
interpreter is the usual one. It is not instrumented, but takes and leaves its lock by calls that the
sanitizer sees, so what threads do without the GIL is compared: the queue and its reaper, stream handles,
driver calls. Not test_threads.py: the sanitizer itself runs out of addresses there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "cuda_core" / "tests"
SUPPRESSIONS = TESTS / "thread_sanitizer.txt"

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.skipif(not os.environ.get("CUDA_CORE_SANITIZERS"), reason="takes minutes"),
]


def runtime():
    found = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_absolute():
        pytest.skip("needs the ThreadSanitizer of gcc")
    return str(Path(found.stdout.strip()).resolve())


@pytest.fixture(scope="module")
def instrumented():
    """A copy of the package whose modules are compiled under ThreadSanitizer. Kept in ``build`` for the next time."""
    target = ROOT / "build" / "tsan"
    options = ["--build-lib", str(target / "lib"), "--build-temp", str(target / "temp")]
    command = [sys.executable, "setup.py", "-q", "build_ext", *options]
    subprocess.run(
        command, cwd=ROOT, env=os.environ | {"CUDA_CORE_SANITIZE": "thread"}, check=True, timeout=1800
    )
    for source in (ROOT / "cuda_core" / "cuda").rglob("*.p*"):
        if source.suffix in (".py", ".pyx", ".pxd"):
            copy = target / "lib" / source.relative_to(ROOT / "cuda_core")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    return target / "lib"


@pytest.mark.parametrize(
    "name", ["memory/test_queue.py", "memory/test_loans_threads.py", "graph/test_graph_life.py"]
)
def test_under_thread_sanitizer(instrumented, name, tmp_path):
    options = f"exitcode=66 history_size=4 suppressions={SUPPRESSIONS} log_path={tmp_path / 'report'}"
    environment = os.environ | {
        "LD_PRELOAD": runtime(),
        "TSAN_OPTIONS": options,
        "PYTHONPATH": os.pathsep.join([str(instrumented), os.environ.get("PYTHONPATH", "")]),
    }
    # What ends its process in the middle, or has a child of its own, says nothing here.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--driver=sim",
        "-k",
        "not exit and not fork and not dead",
    ]
    done = subprocess.run(
        [*command, str(TESTS / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    reports = "\n".join(path.read_text() for path in tmp_path.glob("report*"))
    assert not reports, reports[:5000]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
