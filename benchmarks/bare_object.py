# SPDX-License-Identifier: Apache-2.0
"""Compile and load ``bare_object.pyx``: what a pair of driver calls takes from Python where nothing else is done."""

import hashlib
import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

from raw_driver import cuda_include_dirs

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "bare_object.pyx"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

_SETUP = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
source, include, target = sys.argv.pop(), sys.argv.pop(), sys.argv.pop()
flags = ["-O2", "-std=c++17"]
module = Extension("bare_object", [source], include_dirs=[include], language="c++", extra_compile_args=flags)
directives = {"language_level": 3, "freethreading_compatible": True}
setup(
    script_args=["--quiet", "build_ext", "--build-lib", target, "--build-temp", target],
    ext_modules=cythonize([module], build_dir=target, compiler_directives=directives, quiet=True),
)
"""


def compile_module():
    """Return the path of the compiled module, compiled now unless it was before."""
    prebuilt = (
        HERE / f"prebuilt_bare_object{SUFFIX}"
    )  # a name of its own: a module of this one's would hide it
    if prebuilt.exists():
        return prebuilt
    key = hashlib.sha256(SOURCE.read_bytes() + _SETUP.encode()).hexdigest()[:12]
    folder = HERE.parent / "build" / "benchmarks" / f"bare_object-{key}"
    target = folder / f"bare_object{SUFFIX}"
    if not target.exists():
        include = next((each for each in cuda_include_dirs() if (each / "cuda.h").is_file()), None)
        if include is None:
            raise SystemExit("cuda.h was not found: install nvidia-cuda-runtime 13, or set CUDA_HOME")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-c", _SETUP, str(folder), str(include), SOURCE.name], cwd=HERE, check=True
        )
    return target


def load():
    """Return the module, which ``compile_module`` has compiled."""
    loader = importlib.machinery.ExtensionFileLoader("bare_object", str(compile_module()))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bare_object", loader))
    loader.exec_module(module)
    return module
