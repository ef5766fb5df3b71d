# SPDX-License-Identifier: Apache-2.0
"""Loading the shared library: the one that simulates, or the one in front of the real driver."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ._real import SONAME, VARIABLE, real_driver

_loaded: ctypes.CDLL | None = None


def _path(front: bool) -> str:
    return str(Path(__file__).resolve().parent / ("front" if front else "lib") / SONAME)


def library_path(*, real: bool = False) -> str:
    """Return the path of this package's shared library.

    Parameters
    ----------
    real
        The library that stands in front of the real driver, instead of the simulated driver.

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
    return _path(real)


def _text(library: ctypes.CDLL, function: str) -> str:
    call = getattr(library, function)
    call.restype = ctypes.c_size_t
    call.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(1 << 13)
    call(buffer, len(buffer))
    return buffer.value.decode()


def _is_ours(library: ctypes.CDLL) -> bool:
    return hasattr(library, "cudaDriverSimInterfaceVersion")


def _is_front(library: ctypes.CDLL) -> bool:
    return bool(library.cudaDriverSimIsFront())


def _already_loaded() -> ctypes.CDLL | None:
    # RTLD_NOLOAD finds a library of this name only if the process has one.
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def is_active() -> bool:
    """Tell whether the ``libcuda.so.1`` of this process is a library of this package.

    Returns
    -------
    bool
        Also True in a process that was started with the library on its path and has loaded it, and when it
        stands in front of the real driver (see `real_path`).
    """
    library = _already_loaded()
    return library is not None and _is_ours(library)


def real_path() -> str | None:
    """Tell which real driver this package stands in front of.

    Returns
    -------
    str or None
        The path of its library. None: the driver is simulated.

    Raises
    ------
    RuntimeError
        If the package is not active in this process.
    """
    library = loaded_library()
    return _text(library, "cudaDriverSimReal") if _is_front(library) else None


def activate(*, real: bool | None = None) -> None:
    """Make the simulated driver the CUDA driver of this process and of its children.

    The library is loaded before anything else can load another ``libcuda.so.1``; whatever asks for
    that name afterwards (``cuda.bindings`` does, at its first driver call) gets this one.
    ``LD_LIBRARY_PATH`` carries it into processes started from now on. Calling it again does nothing.

    Parameters
    ----------
    real
        True: the library stands in front of the real driver. Every call reaches that, and is counted,
        logged and refused on request as in the simulation. False: the simulated driver. None, the default:
        what is loaded already, else in front of the real driver if the environment variable
        ``CUDA_DRIVER_SIM_REAL`` is set, else the simulated one.

    Raises
    ------
    RuntimeError
        If a ``libcuda.so.1`` that is not the wanted one is already loaded in this process: a loaded
        library cannot be replaced. If the real driver is wanted and cannot be found or loaded. If the package
        is installed in a folder with a colon or semicolon in its name.

    Notes
    -----
    Importing `cuda_driver_sim` alone has no effect. The function is not meant to race with another
    thread's first driver call.

    ``CUDA_DRIVER_SIM_REAL`` may hold the path of the real driver's library, or anything else (``1``) to have
    it found. It is set for child processes.

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
    if real is None:
        real = _is_front(library) if library is not None else bool(os.environ.get(VARIABLE))
    if library is not None and real != _is_front(library):
        wanted, loaded = ("real", "simulated") if real else ("simulated", "real")
        raise RuntimeError(
            f"the {wanted} driver cannot be activated: this process uses the {loaded} one already"
        )
    if real:
        os.environ[VARIABLE] = real_driver()
    else:
        os.environ.pop(VARIABLE, None)
    put_first_in_library_path(real)
    path = _path(real)
    if library is None:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    if trouble := _text(library, "cudaDriverSimOpenReal"):
        raise RuntimeError(f"the real driver cannot be loaded: {trouble}")
    _loaded = library


def put_first_in_library_path(real: bool) -> bool:
    """Let child processes find the library; return whether anything changed."""
    folder, other = os.path.dirname(_path(real)), os.path.dirname(_path(not real))
    if ":" in folder or ";" in folder:  # both divide that list, and nothing quotes them
        raise RuntimeError(
            f"the driver cannot be found by child processes: LD_LIBRARY_PATH cannot name {folder!r}"
        )
    before = os.environ.get("LD_LIBRARY_PATH", "")
    folders = [f for f in before.split(os.pathsep) if f and f not in (folder, other)]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([folder, *folders])
    return os.environ["LD_LIBRARY_PATH"] != before


def _first_in_library_path() -> str | None:
    # The child of a process where it is active has no library before its first driver call, and then ours.
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        path = os.path.join(folder, SONAME)
        if folder and os.path.exists(path):
            ours = (_path(False), _path(True))
            return next((own for own in ours if os.path.exists(own) and os.path.samefile(own, path)), None)
    return None


def loaded_library() -> ctypes.CDLL:
    """Return the loaded library, or raise if this process does not use one of this package."""
    global _loaded
    if _loaded is None:
        library = _already_loaded()
        if library is None and (path := _first_in_library_path()):
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        if library is None or not _is_ours(library):
            raise RuntimeError("the simulated driver is not active: call cuda_driver_sim.activate() first")
        _loaded = library
    return _loaded
