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


def run_watched(command, reports, packages=()):
    """Run a command with ThreadSanitizer loaded before the interpreter; return how it ended, and what was reported."""
    options = f"exitcode=66 history_size=4 suppressions={SUPPRESSIONS} log_path={reports / 'report'}"
    environment = os.environ | {
        "LD_PRELOAD": runtime(),
        "TSAN_OPTIONS": options,
        "PYTHONPATH": os.pathsep.join([*map(str, packages), os.environ.get("PYTHONPATH", "")]),
        "CUDA_CORE_RACE_ROUNDS": "200",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    return done, "\n".join(path.read_text() for path in reports.glob("report*"))


@pytest.mark.parametrize(
    "name",
    [
        "memory/test_races.py",
        "memory/test_free_threading.py",
        "memory/test_queue.py",
        "memory/test_loans_threads.py",
        "graph/test_graph_life.py",
    ],
)
def test_under_thread_sanitizer(instrumented, name, tmp_path):
    # What ends its process in the middle, or has a child of its own, says nothing here.
    options = ["-q", "-p", "no:cacheprovider", "--driver=sim", "-k", "not exit and not fork and not dead"]
    command = [sys.executable, "-m", "pytest", *options, str(TESTS / name)]
    done, reports = run_watched(command, tmp_path, [instrumented])
    assert not reports, reports[:5000]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


PLANTED = """
#include <unistd.h>
static volatile long counter;
extern "C" long count(long rounds) {
    for (long round = 0; round < rounds; round++, usleep(1000)) counter = counter + 1;
    return counter;
}
"""
MEET = """
import ctypes, sys, threading
count = ctypes.CDLL(sys.argv[1]).count  # which lets go of the interpreter's lock, as the modules do
threads = [threading.Thread(target=count, args=(50,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_planted_race_is_found(tmp_path):
    """Without this, silence could mean that nobody listens."""
    source, library = tmp_path / "planted.cpp", tmp_path / "planted.so"
    source.write_text(PLANTED)
    flags = ["-fsanitize=thread", "-O1", "-g1", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
    done, reports = run_watched([sys.executable, "-c", MEET, str(library)], tmp_path)
    assert done.returncode == 66, done.stderr[-2000:]
    assert "data race" in reports
    assert "planted.cpp" in reports
