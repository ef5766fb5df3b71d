# SPDX-License-Identifier: Apache-2.0
"""Make a folder that carries this package and its tests to a machine with a GPU and no network.

    python tools/make_gpu_bundle.py FOLDER [--python python3.12]

Over there ``run_on_gpu.sh`` in the folder installs the wheels aside and runs the tests, the example, the benchmarks
and the checks with other libraries. Needs a C++ compiler and a package index here, and the same Python there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The version that the driver's recorded answers were taken with.
BINDINGS = "cuda-bindings==13.4.4"
RELEASED = "cuda-core==1.2.2"  # timed beside this package
FETCHED = (BINDINGS, "attrs", "pytest", "pytest-xdist", "hypothesis")
CARRIED = ("cuda_core/tests", "examples", "benchmarks", "design", "README.md", "LICENSE", "pyproject.toml")
LARGEST = 40 << 20


def find_python(version="3.12"):
    """Return an interpreter of that version: from the search path, else from pyenv's folder."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (f"python{version}", *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        found = shutil.which(candidate)
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if (
            found
            and subprocess.run([found, "-c", code], capture_output=True, text=True).stdout.strip() == version
        ):
            return found
    raise SystemExit(f"no Python {version} was found; name one with --python")


def make_wheels(python, wheels, released):
    """Build this package's wheels, and fetch those that it needs and the release, for one interpreter.

    Returns the paths of what the benchmarks compile: the C library and the module.
    """
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([python, "-m", "venv", scratch], check=True)
        inside = str(Path(scratch) / "bin" / "python")
        pip = [inside, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        listing = [inside, str(ROOT / "tools" / "requirements.py"), str(ROOT / "pyproject.toml"), "build"]
        needs = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
        subprocess.run([*pip, "install", *needs, BINDINGS], check=True)
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
        subprocess.run([*build, str(ROOT), str(ROOT / "driver_sim")], check=True)
        fetch = [*pip, "download", "--only-binary=:all:"]
        subprocess.run([*fetch, "--dest", str(wheels), *FETCHED], check=True)
        subprocess.run([*fetch, "--dest", str(released), "--no-deps", RELEASED], check=True)
        # With cuda.h from here, so that nothing has to be compiled there.
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import bare_object, raw_driver; "
            "print(raw_driver.compile_library()); print(bare_object.compile_module())"
        )
        command = [inside, "-B", "-c", code, str(ROOT / "benchmarks")]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [Path(line) for line in printed.splitlines()[-2:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--python", help="the interpreter to build for, of the version that the other machine has"
    )
    options = parser.parse_args()
    if options.folder.exists():
        raise SystemExit(f"{options.folder} is there already")
    python = options.python or find_python()

    wheels = options.folder / "wheels"
    wheels.mkdir(parents=True)
    raw_library, bare_module = make_wheels(python, wheels, options.folder / "released")
    for name in CARRIED:
        source, target = ROOT / name, options.folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "evidence"))
        elif source.exists():
            shutil.copy2(source, target)
    shutil.copy2(raw_library, options.folder / "benchmarks" / "libraw_driver.so")
    shutil.copy2(bare_module, options.folder / "benchmarks" / f"prebuilt_{bare_module.name}")
    for script in (ROOT / "tools" / "gpu_bundle").iterdir():
        if script.is_file():
            shutil.copy2(script, options.folder)

    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print("\n".join(sorted(path.name for path in wheels.iterdir())))
    print(f"{options.folder}: {size / (1 << 20):.1f} MiB")
    return 0 if size <= LARGEST else f"larger than {LARGEST >> 20} MiB"


if __name__ == "__main__":
    sys.exit(main())
