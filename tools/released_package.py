# SPDX-License-Identifier: Apache-2.0
"""The released cuda-core whose interface this build keeps: its wheel, fetched but never installed.

    python tools/released_package.py      fetch it, if it is not there, and print where it is

The version stands in ``pyproject.toml``, in the dependency group ``released``. The wheel lies in the environment, so it
goes when that goes. Only its sources and type stubs are read, inside the archive: no file of it can get among ours.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from requirements import requirements

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(sys.prefix) / "released"
VARIANT = "cu13"  # the wheel holds everything twice, for CUDA 12 and 13


def requirement():
    """Return the requirement, ``cuda-core==1.2.2`` say."""
    (found,) = requirements(ROOT / "pyproject.toml", ["released"])
    return found


def version():
    return requirement().partition("==")[2]


def wheel():
    """Return the path of the wheel, after fetching it if need be from whatever index pip is set up for."""
    pattern = f"cuda_core-{version()}-*.whl"
    for path in FOLDER.glob(pattern):
        return path
    FOLDER.mkdir(exist_ok=True)
    # Several test processes may get here at once: each fetches into a folder of its own, and one of them is kept.
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", folder, requirement()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(folder).glob(pattern))
        if done.returncode or not found:
            raise RuntimeError(f"{requirement()} could not be fetched:\n{done.stderr}")
        return found[0].replace(FOLDER / found[0].name)


def reader():
    """Return a function that gives the text of a module by its full name: its stub, else its source, else None."""
    archive = zipfile.ZipFile(wheel())
    names = set(archive.namelist())

    def text(module):
        parts = module.split(".")
        folders = ["/".join(parts)]
        if len(parts) > 2:
            folders.insert(0, "/".join([*parts[:2], VARIANT, *parts[2:]]))
        for folder in folders:
            for suffix in (".pyi", "/__init__.pyi", ".py", "/__init__.py"):
                if folder + suffix in names:
                    return archive.read(folder + suffix).decode()
        return None

    return text


if __name__ == "__main__":
    print(wheel())
