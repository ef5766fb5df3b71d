# SPDX-License-Identifier: Apache-2.0
"""A recording of the whole program, from the import of the package to the exit, asked for by ``CUDA_CORE_AUDIT``."""

from __future__ import annotations

import os
import sys

from cuda.core._memory import _exit_pass
from cuda.core.audit import _settings
from cuda.core.audit._recording import Recording

__all__ = ["start"]


def start(text: str) -> None:
    """Record from now on, and report when the program ends.

    Parameters
    ----------
    text : str
        What the environment variable says.

    Raises
    ------
    ValueError
        If it says something wrong.

    Notes
    -----
    Processes that this one starts are recorded, too. They write to files of their own.
    """
    settings = _settings.parse(text)
    if settings is None:
        return
    recording = Recording(settings)
    os.environ[_settings.VARIABLE] = _settings.to_text(_settings.for_children(settings))
    recording.start()
    _exit_pass.afterwards(lambda: _finish(recording))


def _finish(recording):
    try:
        recording.stop()
    except OSError as error:
        if sys.stderr is not None:
            print(f"cuda.core audit: the report could not be written: {error}", file=sys.stderr)
