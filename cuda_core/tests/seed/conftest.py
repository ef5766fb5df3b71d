# SPDX-License-Identifier: Apache-2.0
"""An environment with the released cuda-core in it, on the same simulated driver as the tests."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REQUIREMENTS = ("cuda-core==1.2.2", "cuda-bindings==13.4.4", "attrs")


def build_folder():
    """Return the folder for built things of the checkout that these tests belong to."""
    return Path(__file__).resolve().parents[3] / "build"


def copy_simulated_driver(folder, python):
    """Put this environment's simulated driver into the other one: both packages must meet the very same driver.

    One that is there already stays: tests of another process may be running on it.
    """
    import cuda_driver_sim

    source, copied = Path(cuda_driver_sim.__file__).parent, folder / "simulated-driver"
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    stamp = "".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n" for path in files)
    if copied.exists() and copied.read_text() == stamp:
        return
    query = [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    site = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    target = Path(site) / "cuda_driver_sim"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    copied.write_text(stamp)


@pytest.fixture(scope="session")
def released_python():
    """The interpreter of an environment with cuda-core 1.2.2, made on first use and kept under build/."""
    folder = build_folder() / f"released-{sysconfig.get_python_version()}"
    folder.parent.mkdir(exist_ok=True)
    python = str(folder / "bin" / "python")
    finished = folder / "finished"
    wanted = "\n".join(REQUIREMENTS)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each process that runs tests comes here
        if not finished.exists() or finished.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *REQUIREMENTS], check=True, env=plain_environment())
            finished.write_text(wanted)
        copy_simulated_driver(folder, python)
    return python


def plain_environment():
    """Return this process's environment without what would lead another interpreter to these tests' packages."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


@pytest.fixture(scope="session")
def run_on_simulated_driver():
    """Return a function that runs a script on the simulated driver: interpreter, script -> finished process."""

    def run(python, script):
        return subprocess.run(
            [python, "-m", "cuda_driver_sim", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            env=plain_environment(),
            check=False,
        )

    return run
