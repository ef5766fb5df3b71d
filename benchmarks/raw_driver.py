# SPDX-License-Identifier: Apache-2.0
"""Compile and load ``raw_driver.c``: the same work as plain driver calls looped in C."""

import ctypes
import hashlib
import importlib.util
import os
import shlex
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "raw_driver.c"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def cuda_include_dirs():
    """Yield the folders in which ``cuda.h`` may be: of the nvidia-cuda-runtime wheel, then of a CUDA toolkit."""
    specification = importlib.util.find_spec("nvidia")
    for location in specification.submodule_search_locations if specification is not None else ():
        yield Path(location) / "cu13" / "include"
    yield Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"


def compile_library():
    """Return the path of the compiled library, compiled now unless it was before."""
    prebuilt = HERE / "libraw_driver.so"
    if prebuilt.exists():
        return prebuilt
    include = next((folder for folder in cuda_include_dirs() if (folder / "cuda.h").is_file()), None)
    if include is None:
        raise SystemExit("cuda.h was not found: install nvidia-cuda-runtime 13, or set CUDA_HOME")
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, f"-I{include}", str(SOURCE)]
    key = hashlib.sha256(SOURCE.read_bytes() + repr(command).encode()).hexdigest()[:12]
    target = HERE.parent / "build" / "benchmarks" / f"raw_driver-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(unfinished), "-ldl"], check=True)
        unfinished.replace(target)
    return target


class RawDriver:
    """The C loops as methods that return nanoseconds for one operation."""

    def __init__(self, library, device, stream):
        self.library = ctypes.CDLL(str(library))
        self.stream = ctypes.c_void_p(stream)
        self._call("raw_open", ctypes.c_int(device))

    def _call(self, name, *arguments):
        function = getattr(self.library, name)
        function.restype = ctypes.c_int64
        answer = function(*arguments)
        if answer < 0:
            raise RuntimeError(f"{name}: the driver answered error {-answer}")
        return answer

    def allocate_and_close(self, count, size):
        total = self._call(
            "raw_allocate_and_close", self.stream, ctypes.c_size_t(size), ctypes.c_int64(count)
        )
        return total / count

    def pool_pair(self, count, size):
        return self._call("raw_pool_pair", self.stream, ctypes.c_size_t(size), ctypes.c_int64(count)) / count

    pool_pair_of_a_bare_object = pool_pair

    def pool_pair_beside_captures(self, count, size):
        total = self._call(
            "raw_pool_pair_beside_captures", self.stream, ctypes.c_size_t(size), ctypes.c_int64(count)
        )
        return total / count

    def grow_in_place(self, count, size, step):
        total = self._call(
            "raw_grow_in_place",
            self.stream,
            ctypes.c_size_t(size),
            ctypes.c_size_t(step),
            ctypes.c_int64(count),
        )
        return total / count

    def grow_by_moving(self, count, chunks, step):
        return self._chunks("raw_grow_by_moving", count, chunks, step)

    def release(self, count, chunks, step):
        return self._chunks("raw_release", count, chunks, step)

    def release_geometric(self, count, grows, step):
        return self._chunks("raw_release_geometric", count, grows, step)

    def _chunks(self, name, count, chunks, step):
        total = self._call(
            name, self.stream, ctypes.c_size_t(step), ctypes.c_int64(chunks), ctypes.c_int64(count)
        )
        return total / count
