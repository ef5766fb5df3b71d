# SPDX-License-Identifier: Apache-2.0
"""Finding the real driver, which is never one of the libraries of this package."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Iterator

SONAME = "libcuda.so.1"
VARIABLE = "CUDA_DRIVER_SIM_REAL"

# Where drivers are installed: distributions, containers, WSL, NixOS.
_FOLDERS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)


def _candidates() -> Iterator[str]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder:
            yield os.path.join(folder, SONAME)
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            listing = subprocess.run([command, "-p"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        for line in listing.splitlines():
            name, _, path = line.partition("=>")
            if name.split()[:1] == [SONAME] and path:
                yield path.strip()
        break
    for pattern in _FOLDERS:
        yield from (os.path.join(folder, SONAME) for folder in sorted(glob.glob(pattern)))


def _is_simulated(path: str) -> bool:
    # The real driver is some hundred times larger: only a small file is worth reading.
    if os.path.getsize(path) > 20 << 20:
        return False
    with open(path, "rb") as file:
        return b"cudaDriverSimInterfaceVersion" in file.read()


def _is_of_this_machine(path: str) -> bool:
    # A folder can hold the library of another word size or processor. Its ELF header differs in there.
    def kind(file: str) -> bytes:
        with open(file, "rb") as opened:
            header = opened.read(20)
        return header[:5] + header[18:20]

    return kind(path) == kind("/proc/self/exe")


def real_driver() -> str:
    """Return the path of the real driver.

    Returns
    -------
    str
        What the environment variable ``CUDA_DRIVER_SIM_REAL`` names, if that is a path. Otherwise the first
        ``libcuda.so.1`` of ``LD_LIBRARY_PATH``, of the dynamic linker's list and of the usual folders that
        is not a simulated one.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    named = os.environ.get(VARIABLE, "")
    if os.sep in named:
        if not os.path.exists(named):
            raise RuntimeError(f"{VARIABLE} names {named!r}, which does not exist")
        return os.path.abspath(named)
    for path in _candidates():
        if os.path.isfile(path) and _is_of_this_machine(path) and not _is_simulated(path):
            return os.path.realpath(path)
    raise RuntimeError(
        f"no real CUDA driver was found: {SONAME} is neither in LD_LIBRARY_PATH nor in the dynamic linker's "
        f"list nor in the usual folders. Name it with the environment variable {VARIABLE}."
    )
