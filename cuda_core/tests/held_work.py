# SPDX-License-Identifier: Apache-2.0
"""Streams that stand still until a test lets them go on, on the simulated driver and on a GPU alike.

A stream is stopped by a host function that is the C library's own ``sem_wait``. It is no Python, so nothing here
needs the GIL but the test itself, and it really stops: whoever waits for the stream waits until the gate is open.
"""

import contextlib
import ctypes
import threading
import time
from typing import ClassVar

from cuda.bindings import driver
from support import check

_libc = ctypes.CDLL(None, use_errno=True)
_with_gil = ctypes.PyDLL(None)
_sem_wait = ctypes.cast(_libc.sem_wait, ctypes.c_void_p)
_SEMAPHORE_BYTES = 64  # sem_t is smaller everywhere
PATIENCE = (
    20  # seconds after which a closed gate opens by itself, so that a fault fails a test and hangs nothing
)


def _semaphore():
    memory = (ctypes.c_char * _SEMAPHORE_BYTES)()
    assert _libc.sem_init(memory, 0, 0) == 0
    return memory


def _launch(stream, function, memory):
    # Not through the bindings: they would call the function with the GIL held.
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    result = launch(ctypes.c_void_p(stream), function, memory)
    assert result == 0, f"cuLaunchHostFunc answered {result}"


class Gate(contextlib.AbstractContextManager):
    """Stops a stream while it is closed.

    Make it in the stream's context. A driver may run the host functions of all streams one after the other: with
    several gates, open them in the order in which they were made. Leaving the block of one opens the older ones, too.
    """

    _closed: ClassVar[list] = []

    def __init__(self, stream):
        self._gate = _semaphore()
        self.is_open = self.gave_up = False
        Gate._closed.append(self)
        stream = int(stream.handle)
        _launch(stream, _sem_wait, self._gate)
        # Not a second function: it would be called behind those of other streams that are stopped.
        self._passed = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(self._passed, stream))
        self._timer = threading.Timer(PATIENCE, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self):
        self.gave_up = True
        self._post()

    def _post(self):
        if not self.is_open:
            self.is_open = True
            Gate._closed.remove(self)
            _libc.sem_post(self._gate)

    def open(self):
        """Let the stream go on, and come back when what is in front of the gate and the gate itself has run."""
        self._post()
        until = time.monotonic() + PATIENCE
        while driver.cuEventQuery(self._passed)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            assert time.monotonic() < until, "the stream does not go on"
            time.sleep(0.001)

    def open_with_gil(self):
        """Let the stream go on without letting go of the GIL."""
        self.is_open = True
        Gate._closed.remove(self)
        _with_gil.sem_post(self._gate)

    def __exit__(self, kind, error, traceback):
        self._timer.cancel()
        if not self.is_open:
            for gate in Gate._closed[: Gate._closed.index(self)]:
                gate._post()
        self.open()
        check(driver.cuEventDestroy(self._passed))
        if error is None:
            assert not self.gave_up, "something waited for the stream that must not wait"


class Waiting:
    """Runs a function in a thread and tells whether it still runs."""

    def __init__(self, function):
        self.outcome = None

        def run():
            try:
                self.outcome = function()
            except Exception as error:
                self.outcome = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def waits(self, seconds=0.1):
        """Tell whether the function has not come back within this time."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self):
        """Return what the function returned or raised."""
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the thread hangs"
        return self.outcome


def sleep_with_gil(seconds):
    """Sleep and let no other thread run Python meanwhile."""
    _with_gil.usleep(int(seconds * 1e6))
