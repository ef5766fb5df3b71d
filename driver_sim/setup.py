# SPDX-License-Identifier: Apache-2.0
"""Builds the shared library; everything else is in pyproject.toml."""

import glob
import os
import re
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


def functions_declared(include):
    """The names of all functions that the driver's headers declare, with all their versions and variants."""
    text = ""
    for header in sorted(glob.glob(os.path.join(include, "cuda*.h"))):
        if os.path.basename(header).startswith(("cuda.h", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")):
            with open(header) as file:
                text += file.read()
    names = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    names.update(re.findall(r"\bPFN_(cu[A-Z]\w*?)_v\d", text))
    names.update(re.findall(r"#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)", text))
    for suffix, name in re.findall(r"__CUDA_API_(PTSZ|PTDS)\((cu[A-Z]\w*)\)", text):
        names.update((name, f"{name}_{suffix.lower()}"))
    return sorted(names)


def write_entries(include, folder):
    """Write the list that src/front/entries.cpp includes."""
    names = functions_declared(include)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "entries.inc"), "w") as file:
        file.writelines(f"ENTRY({name})\n" for name in names)


class BuildLibrary(build_ext):
    """The extensions are plain shared libraries that have to keep the name of the real driver's."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")[:-1], "libcuda.so.1")

    def get_export_symbols(self, ext):
        return []

    def build_extensions(self):
        include = cuda_include()
        write_entries(include, self.build_temp)
        simulated, front = self.extensions
        for ext in self.extensions:
            ext.include_dirs += [include, self.build_temp]
        # The same objects and one more, so that nothing is compiled twice.
        front.extra_objects = self.compiler.object_filenames(simulated.sources, output_dir=self.build_temp)
        super().build_extensions()


class AnyPython(bdist_wheel):
    """No part of the library depends on the Python version."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


# Without debug information, which Python's own flags ask for: it makes a library twenty times as large.
flags = ["-std=c++17", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
extra = os.environ.get("CUDA_DRIVER_SIM_BUILD_FLAGS", "").split()
# Symbolic: in a process with two libraries of this kind, one in front of the other, each calls itself.
link = ["-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-pthread"]
sources = sorted(glob.glob("src/*.cpp"))
headers = sorted(glob.glob("src/*.h"))
common = {"language": "c++", "extra_compile_args": flags + extra, "extra_link_args": link + extra}
setup(
    ext_modules=[
        Extension("cuda_driver_sim.lib.libcuda", sources=sources, depends=headers, **common),
        Extension(
            "cuda_driver_sim.front.libcuda",
            sources=["src/front/entries.cpp"],
            depends=headers + sources,
            **common,
        ),
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPython},
)
