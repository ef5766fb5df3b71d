# SPDX-License-Identifier: Apache-2.0
"""Tests of what is published: the wheel and the source distribution, not the checkout.

    make wheel-test

They take minutes and fetch packages, so that they stand beside the other tests and not among them. Nothing of the
checkout is imported here: each environment gets what it needs by pip, and programs run in folders of their own.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_sizes = pytest.StashKey[list]()


def pytest_addoption(parser):
    parser.addoption("--built", type=Path, help="the folder of the wheel and the source distribution")
    parser.addoption("--simulator", type=Path, help="the folder of the simulated driver's wheel")


def pytest_configure(config):
    config.stash[_sizes] = []


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[_sizes]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def sizes(pytestconfig):
    """Lines about sizes, which are shown at the end."""
    return pytestconfig.stash[_sizes]


def the_one(config, option, pattern):
    folder = config.getoption(option)
    if folder is None:
        pytest.skip(f"needs {option}: make wheel-test gives it")
    (found,) = folder.resolve().glob(pattern)
    return found


@pytest.fixture(scope="session")
def wheel(pytestconfig):
    return the_one(pytestconfig, "--built", "cuda_core-*.whl")


@pytest.fixture(scope="session")
def archive(pytestconfig):
    return the_one(pytestconfig, "--built", "cuda_core-*.tar.gz")


@pytest.fixture(scope="session")
def simulator(pytestconfig):
    return the_one(pytestconfig, "--simulator", "cuda_driver_sim-*.whl")


@pytest.fixture(scope="session")
def names_in_wheel(wheel):
    with zipfile.ZipFile(wheel) as opened:
        return [name for name in opened.namelist() if not name.endswith("/")]


class Environment:
    """A virtual environment of its own, without anything of this one."""

    # What would lead a program to packages of the caller.
    HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PIP_REQUIRE_VIRTUALENV")

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
        self.python = folder / "bin" / "python"
        self.variables = {name: value for name, value in os.environ.items() if name not in self.HIDDEN}
        self.variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        (self.site,) = folder.glob("lib/python3*/site-packages")
        self.work = folder / "work"  # where programs run
        self.work.mkdir()

    def run(self, *arguments, check=True):
        done = subprocess.run(
            [str(self.python), *map(str, arguments)],
            cwd=self.work,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def pip(self, *arguments):
        return self.run("-m", "pip", "--quiet", *arguments)

    def files(self, where="."):
        """Return all files below a folder of the environment's packages, by name."""
        folder = self.site / where
        return sorted(str(path.relative_to(self.site)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory):
    def make(name):
        return Environment(tmp_path_factory.mktemp(name) / "venv")

    return make


@pytest.fixture(scope="session")
def empty(make_environment, wheel, simulator):
    """An environment with the wheel, what it asks for, and the simulated driver."""
    environment = make_environment("empty")
    environment.pip("install", wheel, simulator)
    return environment
