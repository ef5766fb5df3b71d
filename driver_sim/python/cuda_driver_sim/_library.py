# SPDX-License-Identifier: Apache-2.0
"""Finding and loading the shared library."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SONAME = "libcuda.so.1"

_loaded: ctypes.CDLL | None = None


def library_path() -> str:
    """Return the path of the simulated driver's shared library.

    Returns
    -------
    str
        The file, named ``libcuda.so.1``. Its folder is what `activate` puts into ``LD_LIBRARY_PATH``.

    Examples
    --------
    >>> import cuda_driver_sim as sim
    >>> sim.library_path().endswith("libcuda.so.1")
    True
    """
    return str(Path(__file__).resolve().parent / "lib" / SONAME)


def _is_ours(library: ctypes.CDLL) -> bool:
    return hasattr(library, "cudaDriverSimInterfaceVersion")


def _already_loaded() -> ctypes.CDLL | None:
    # RTLD_NOLOAD finds a library of this name only if the process has one.
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def is_active() -> bool:
    """Tell whether the ``libcuda.so.1`` of this process is the simulated driver.

    Returns
    -------
    bool
        Also True in a process that was started with the library on its path and has loaded it.
    """
    library = _already_loaded()
    return library is not None and _is_ours(library)


def activate() -> None:
    """Make the simulated driver the CUDA driver of this process and of its children.

    The library is loaded before anything else can load another ``libcuda.so.1``; whatever asks for
    that name afterwards (``cuda.bindings`` does, at its first driver call) gets this one.
    ``LD_LIBRARY_PATH`` carries it into processes started from now on. Calling it again does nothing.

    Raises
    ------
    RuntimeError
        If a ``libcuda.so.1`` that is not the simulated driver is already loaded in this process: a
        loaded library cannot be replaced.

    Notes
    -----
    Importing `cuda_driver_sim` alone has no effect. The function is not meant to race with another
    thread's first driver call.

    Examples
    --------
    >>> import cuda_driver_sim
    >>> cuda_driver_sim.activate()
    >>> from cuda.bindings import driver
    >>> driver.cuInit(0)
    (<CUresult.CUDA_SUCCESS: 0>,)
    """
    global _loaded
    library = _already_loaded()
    if library is not None and not _is_ours(library):
        raise RuntimeError(
            f"the simulated driver cannot be activated: another {SONAME} is already loaded in this process. "
            "Call cuda_driver_sim.activate() before the first CUDA call of any package (cuda.bindings loads "
            "the driver then), or run the program with 'python -m cuda_driver_sim'."
        )
    path = library_path()
    if library is None:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    _loaded = library
    folder = os.path.dirname(path)
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f]
    if folder not in folders:
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([folder, *folders])


def loaded_library() -> ctypes.CDLL:
    """Return the loaded library, or raise if this process does not use the simulated driver."""
    global _loaded
    if _loaded is None:
        library = _already_loaded()
        if library is None or not _is_ours(library):
            raise RuntimeError("the simulated driver is not active: call cuda_driver_sim.activate() first")
        _loaded = library
    return _loaded
