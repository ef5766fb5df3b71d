# SPDX-License-Identifier: Apache-2.0
"""What the process at the top says at the end, of itself and of those it started.

The library says it, as the last thing before the process ends: until then Python frees what is still there.
"""

from __future__ import annotations

import ctypes
import os
import sys

from ._control import _text
from ._library import loaded_library

VARIABLE = "CUDA_DRIVER_SIM_REPORTS"
LEFT_LIVE = 1  # the exit code of a strict run


class Ending:
    """The end of this process, which speaks for those that it starts from now on.

    Started by a program that is watched, it tells that one what it leaves, and is silent.
    """

    def __init__(self, strict: bool) -> None:
        place = "".join(_text("cudaDriverSimOpenReports"))
        if place and place != "told":
            os.environ[VARIABLE] = place
        elif not place:
            os.environ.pop(VARIABLE, None)
        # Without a standard error its number can be that of a file.
        self._says = place != "told" and sys.stderr is not None
        loaded_library().cudaDriverSimAtEnd(int(self._says), LEFT_LIVE if strict else 0)
        ctypes.pythonapi.Py_AtExit(loaded_library().cudaDriverSimEnd)

    def keep_exit_code(self) -> None:
        """The program fails by itself: nothing that is left changes its exit code."""
        loaded_library().cudaDriverSimAtEnd(int(self._says), 0)
