# SPDX-License-Identifier: Apache-2.0
"""Compile the Cython modules of ``cuda.core``; everything else about the package stands in ``pyproject.toml``.

Modules are found by looking: a new ``.pyx`` below ``cuda_core/cuda/core`` needs no edit here.
"""

import importlib.util
import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
SOURCE = Path("cuda_core")
PACKAGE = SOURCE / "cuda" / "core"
# Written in Python with a .pxd beside it, so that the rule a reviewer reads is the rule that is compiled.
PURE_PYTHON_MODULES = (PACKAGE / "_memory" / "_ownership.py",)


# For tests under a sanitizer: CUDA_CORE_SANITIZE=thread. The modules then load only where its runtime is preloaded.
SANITIZE = os.environ.get("CUDA_CORE_SANITIZE")
SANITIZER_FLAGS = [f"-fsanitize={SANITIZE}"] if SANITIZE else []
# CUDA_CORE_OPTIMIZE=0 compiles three times as fast, for a build that is only to be tested.
OPTIMIZE = os.environ.get("CUDA_CORE_OPTIMIZE", "2")


def cuda_include_dir():
    """Return the folder of ``cuda.h`` in the installed ``nvidia-cuda-runtime`` wheel."""
    spec = importlib.util.find_spec("nvidia")
    for location in spec.submodule_search_locations if spec is not None else ():
        include = Path(location) / "cu13" / "include"
        if (include / "cuda.h").is_file():
            return include
    raise SystemExit(
        "cuda.h was not found: building cuda-core needs the package nvidia-cuda-runtime 13. "
        "pip installs it by itself unless build isolation is switched off."
    )


def extension_modules():
    """Return one extension for each Cython source, named after its place in the package."""
    sources = sorted(PACKAGE.rglob("*.pyx"))
    sources += [path for path in PURE_PYTHON_MODULES if path.exists()]
    if not sources:
        return []
    headers = sorted(str(path) for pattern in ("*.h", "*.hpp") for path in PACKAGE.rglob(pattern))
    header_folders = sorted({str(ROOT / Path(header).parent) for header in headers})
    include_dirs = [*header_folders, str(cuda_include_dir())]
    return [
        Extension(
            ".".join(source.relative_to(SOURCE).with_suffix("").parts),
            [str(source)],
            include_dirs=include_dirs,
            depends=headers,
            language="c++",
            # No debug information: it doubles the build time, and tracebacks do not need it.
            extra_compile_args=[
                *(["-O1", "-g1", *SANITIZER_FLAGS] if SANITIZE else [f"-O{OPTIMIZE}", "-g0"]),
                "-std=c++17",
                "-fvisibility=hidden",
            ],
            extra_link_args=SANITIZER_FLAGS,
        )
        for source in sources
    ]


# The processes that cythonize starts may import this file (with spawn, and with 3.14's forkserver): they do not build.
if __name__ == "__main__":
    os.chdir(ROOT)
    JOBS = len(os.sched_getaffinity(0))
    setup(
        ext_modules=cythonize(
            extension_modules(),
            # Outside the package: one checkout then serves several Python versions, and stays readable.
            build_dir="build/cython",
            include_path=[str(SOURCE)],
            nthreads=JOBS if JOBS > 1 else 0,
            compiler_directives={
                "language_level": 3,
                "embedsignature": True,
                # Annotations are for readers and type checkers (tools/make_stubs.py): they check and convert nothing.
                "annotation_typing": False,
                # What each module relies on instead of the GIL: design/ownership.md.
                "freethreading_compatible": True,
                "warn.maybe_uninitialized": True,
                "warn.unused": True,
            },
            show_all_warnings=False,
        ),
        options={"build_ext": {"parallel": JOBS}},
    )
