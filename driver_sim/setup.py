# SPDX-License-Identifier: Apache-2.0
"""Builds the shared library; everything else is in pyproject.toml."""

import glob
import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


def cuda_include():
    """The folder of cuda.h: that of the nvidia-cuda-runtime distribution, or of CUDA_HOME."""
    candidates = [os.path.join(p, "nvidia", "cu13", "include") for p in sys.path]
    if home := os.environ.get("CUDA_HOME"):
        candidates.insert(0, os.path.join(home, "include"))
    for folder in candidates:
        if os.path.exists(os.path.join(folder, "cuda.h")):
            return folder
    raise SystemExit("cuda.h was not found: install nvidia-cuda-runtime==13.* or set CUDA_HOME")


class BuildLibrary(build_ext):
    """The extension is a plain shared library that has to keep the name of the real driver's."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")[:-1], "libcuda.so.1")

    def get_export_symbols(self, ext):
        return []

    def build_extensions(self):
        for ext in self.extensions:
            ext.include_dirs.append(cuda_include())
        super().build_extensions()


class AnyPython(bdist_wheel):
    """No part of the library depends on the Python version."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


flags = ["-std=c++17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
extra = os.environ.get("CUDA_DRIVER_SIM_BUILD_FLAGS", "").split()
setup(
    ext_modules=[
        Extension(
            "cuda_driver_sim.lib.libcuda",
            sources=sorted(glob.glob("src/*.cpp")),
            depends=sorted(glob.glob("src/*.h")),
            language="c++",
            extra_compile_args=flags + extra,
            extra_link_args=["-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-pthread"] + extra,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPython},
)
