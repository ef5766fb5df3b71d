# SPDX-License-Identifier: Apache-2.0
"""Watching and steering the simulated driver: counts, refused calls, the log, failures on request."""

from __future__ import annotations

import contextlib
import ctypes
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import overload

from ._library import loaded_library


@dataclass(frozen=True)
class Call:
    """One answered driver call.

    Attributes
    ----------
    name
        The function, without a version suffix: ``"cuMemMap"``.
    result
        The name of its result: ``"CUDA_ERROR_INVALID_VALUE"``.
    """

    name: str
    result: str


class Calls(tuple[Call, ...]):
    """Calls in the order of their answers.

    Attributes
    ----------
    total : int
        How many there were. The list keeps the first 100,000 of them.
    """

    total: int

    def __new__(cls, calls: Iterator[Call], total: int) -> Calls:
        self = super().__new__(cls, calls)
        self.total = total
        return self


@dataclass(frozen=True)
class Overlap:
    """A driver call that came beside one of another thread, see `overlaps`.

    Attributes
    ----------
    name
        The function, without a version suffix: ``"cuMemsetD8Async"``.
    beside
        The one that the other thread called: ``"cuStreamEndCapture"``.
    """

    name: str
    beside: str


class Overlaps(tuple[Overlap, ...]):
    """Overlapping calls in the order in which they were seen.

    Attributes
    ----------
    total : int
        How many there were. The list keeps the first 100 of them.
    """

    total: int

    def __new__(cls, overlaps: Iterator[Overlap], total: int) -> Overlaps:
        self = super().__new__(cls, overlaps)
        self.total = total
        return self


_MOST = (1 << 64) - 1


def _whole(what: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}") from None


def _text(function: str, *arguments: int) -> list[str]:
    call = getattr(loaded_library(), function)
    call.restype = ctypes.c_size_t
    call.argtypes = [*(ctypes.c_int for _ in arguments), ctypes.c_char_p, ctypes.c_size_t]
    capacity = 1 << 16
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        needed = call(*arguments, buffer, capacity)
        if needed <= capacity:
            return buffer.value.decode().splitlines()
        capacity = needed + (1 << 12)


def _counts(function: str) -> dict[str, int]:
    pairs = (line.split() for line in _text(function))
    return {name: int(count) for name, count in pairs}


def _results() -> dict[str, int]:
    return _counts("cudaDriverSimResults")


def _call_list(function: str, *arguments: int) -> Calls:
    lines = _text(function, *arguments)
    names = {number: name for name, number in _results().items()}
    pairs = (line.split() for line in lines[1:])
    return Calls((Call(name, names.get(int(result), result)) for name, result in pairs), int(lines[0]))


def live() -> dict[str, int]:
    """Count the driver objects that the program has made and not given back.

    Returns
    -------
    dict of str to int
        Kind to number, without kinds of which there are none: ``"address_reservation"``,
        ``"physical_allocation"``, ``"mapping"``, ``"device_allocation"``, ``"host_allocation"``,
        ``"host_registration"``, ``"managed_allocation"``, ``"memory_pool"``, ``"pool_allocation"``,
        ``"pool_destroyed_in_use"`` (for good: a real driver may crash from then on), ``"stream"``,
        ``"event"``, ``"graph"``, ``"graph_exec"``, ``"graph_allocation"`` (made by a launch),
        ``"user_object"``, ``"primary_context"`` (retained), ``"context"``. What the driver makes by itself
        (default pools, default streams) is not counted.

    Raises
    ------
    RuntimeError
        If the simulated driver is not active in this process.

    Notes
    -----
    In front of the real driver this is a record of the calls that succeeded. What comes from a function that
    is not in `functions` is not counted. A free counts with its call, not when it has run.

    Examples
    --------
    >>> before = sim.live()
    >>> handle = driver.cuMemAlloc(1024)[1]
    >>> sim.live()["device_allocation"] - before.get("device_allocation", 0)
    1
    """
    return _counts("cudaDriverSimLive")


def calls() -> dict[str, int]:
    """Count the calls of each driver function since the last `reset`.

    Returns
    -------
    dict of str to int
        Function name without version suffix to number of calls, refused ones included; without
        functions that were not called.
    """
    return _counts("cudaDriverSimCalls")


def calls_in_children() -> dict[str, int]:
    """Count the driver calls of forked children since the last `reset`, of each function.

    Returns
    -------
    dict of str to int
        As for `calls`, of all children of this process and of theirs, also of those that have ended. Only
        those count that were forked after ``cuInit``: a real driver may hang or crash where they call it.
    """
    return _counts("cudaDriverSimCallsInChildren")


def refused() -> Calls:
    """List the calls that were answered with an error since the last `reset`.

    Returns
    -------
    Calls
        ``CUDA_ERROR_NOT_READY`` is an answer and not listed. Failures made by `fail` are listed.
    """
    return _call_list("cudaDriverSimRefused")


def overlaps() -> Overlaps:
    """List the calls since the last `reset` that a real driver does not keep apart from another thread's.

    Returns
    -------
    Overlaps
        Calls on a stream beside the begin or the end of its capture by another thread, and calls of two
        threads at one time on the same capture, graph or executable graph, those included that only ask
        something: there the process may crash. And ``cuGraphLaunch`` of a graph that keeps user objects
        beside ``cuStreamQuery`` or ``cuStreamSynchronize`` of the same stream by another thread: there the
        launch may be answered with ``CUDA_ERROR_UNKNOWN`` although the graph runs. A call is listed once.

    Notes
    -----
    The simulated driver does keep such calls apart, and notes them. What is listed did happen. That nothing
    is listed proves little for a single call, as two overlap by chance: call in loops, best while a further
    thread keeps the driver at work. In front of the real driver nothing is seen, and the list is empty.

    Examples
    --------
    >>> sim.reset()
    >>> run_threads()
    >>> sim.overlaps()[:1]
    (Overlap(name='cuMemsetD8Async', beside='cuStreamEndCapture'),)
    """
    lines = _text("cudaDriverSimOverlaps")
    pairs = (line.split() for line in lines[1:])
    return Overlaps((Overlap(name, beside) for name, beside in pairs), int(lines[0]))


def reset() -> None:
    """Forget the counts of `calls` and the lists of `refused` and `overlaps`.

    Objects stay, and so do logs and failures: those end with their ``with`` blocks.
    """
    loaded_library().cudaDriverSimReset()


def functions() -> tuple[str, ...]:
    """Return the names of all driver functions that are simulated, without version suffixes.

    In front of the real driver these are counted, logged and made to fail. All others reach it directly.
    """
    return tuple(_text("cudaDriverSimFunctions"))


def absent() -> tuple[str, ...]:
    """Return the names of driver functions that this process asked for and that are absent.

    Notes
    -----
    It tells something about programs that ask for what they use. ``cuda.bindings`` asks for every function
    that it knows at its first call: then this is all that the driver lacks, and what the program misses shows
    in the ``RuntimeError`` of the call itself.
    """
    return tuple(_text("cudaDriverSimAbsent"))


class Log:
    """A list of calls that is being made, see `logged`."""

    def __init__(self) -> None:
        self._number: int = loaded_library().cudaDriverSimOpenLog()
        self._stopped: Calls | None = None

    @property
    def calls(self) -> Calls:
        """The calls so far, or all of them once the context manager was left."""
        return _call_list("cudaDriverSimLog", self._number) if self._stopped is None else self._stopped

    def _stop(self) -> Calls:
        if self._stopped is None:
            library = loaded_library()
            library.cudaDriverSimCloseLog(self._number)
            self._stopped = self.calls
            library.cudaDriverSimForgetLog(self._number)
        return self._stopped


_started: Log | None = None  # by start_log


def start_log() -> None:
    """Begin a new list of calls. See `log`."""
    global _started
    stop_log()
    _started = Log()


def stop_log() -> Calls:
    """Stop listing calls, and return the list."""
    if _started is not None:
        _started._stop()
    return log()


def log() -> Calls:
    """Return the calls since `start_log`, in the order of their answers.

    Returns
    -------
    Calls
        Successful calls, too. Bounded, with the total.
    """
    return Calls(iter(()), 0) if _started is None else _started.calls


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    """List all driver calls made inside a ``with`` block.

    Notes
    -----
    All threads count. It can be nested, and several threads can use it at once: each list has all calls from
    entering to leaving.

    Examples
    --------
    >>> with sim.logged() as log:
    ...     buffer.close()
    >>> [call.name for call in log.calls]
    ['cuMemUnmap', 'cuMemAddressFree']
    """
    result = Log()
    try:
        yield result
    finally:
        result._stop()


def can_hold() -> bool:
    """Tell whether `hold`, `run` and `interleave` have an effect: not on the work of a real driver."""
    return bool(loaded_library().cudaDriverSimCanHold())


def _holding_library() -> ctypes.CDLL:
    if not can_hold():
        raise RuntimeError("the work of a real driver cannot be held back or reordered")
    return loaded_library()


# What a handle is answered with that names no stream, or a destroyed one.
_NO_STREAM = ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_NOT_INITIALIZED")


@overload
def run(stream: None = None) -> None: ...
@overload
def run(stream: int) -> None: ...
def run(stream: int | None = None) -> None:
    """Run held work.

    Parameters
    ----------
    stream
        The handle of a stream: its work, and what that depends on, runs. 0 is the legacy default stream.
        None: all work.

    Raises
    ------
    ValueError
        If there is no such stream.
    RuntimeError
        In front of the real driver. If the driver refuses to use the stream: no context is current on this
        thread, its context has a fault, or this thread is the one that runs host functions.

    Notes
    -----
    It returns when the work has run, host functions included. In the child of a fork nothing is queued.
    """
    function = _holding_library().cudaDriverSimRun
    function.argtypes = [ctypes.c_void_p]
    number = None if stream is None else int(stream) or 1  # null is all work to the library
    if number is not None and not 0 < number <= _MOST:
        raise ValueError(f"{stream!r} is not the handle of a live stream")
    if result := function(number):
        name = {value: key for key, value in _results().items()}.get(result, str(result))
        if number in (1, 2) or name not in _NO_STREAM:
            raise RuntimeError(f"the work of stream {stream!r} cannot be run: {name}")
        raise ValueError(f"{stream!r} is not the handle of a live stream")


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Hold back all work that is submitted to streams.

    Inside, work stays queued until something waits for it: a synchronisation of a stream, an event or a
    context, a synchronous copy, a free that waits, or `run`. What is left runs at the end. Without
    `hold`, work runs when it is submitted.

    Raises
    ------
    RuntimeError
        In front of the real driver.

    Notes
    -----
    It counts for the whole process, and can be nested.

    Examples
    --------
    >>> with sim.hold():
    ...     driver.cuMemsetD8Async(pointer, 1, 16, stream)   # has not run yet
    ...     sim.run(int(stream))                             # now it has
    """
    library = _holding_library()
    library.cudaDriverSimHold(1)
    try:
        yield
    finally:
        library.cudaDriverSimHold(0)


_seeds: list[int] = []  # of the blocks that are open


@contextlib.contextmanager
def interleave(seed: int) -> Iterator[None]:
    """Let held work of several streams run in a pseudo-random order.

    Parameters
    ----------
    seed
        The same seed gives the same order for the same work. The order on each stream, and what events
        and the legacy stream demand, is kept.

    Raises
    ------
    TypeError, ValueError
        If `seed` is no integer of at most 64 bits.
    RuntimeError
        In front of the real driver.

    Notes
    -----
    It counts for the whole process. Nested, the inner seed counts, and afterwards the outer one from its
    beginning. Work of other streams may then run while something waits for one stream, as on a real device.
    """
    seed = _whole("seed", seed)
    if not -(1 << 63) <= seed <= _MOST:
        raise ValueError(f"seed must have at most 64 bits, not {seed}")
    function = _holding_library().cudaDriverSimInterleave
    function.argtypes = [ctypes.c_int, ctypes.c_ulonglong]
    _seeds.append(seed)
    function(1, seed)
    try:
        yield
    finally:
        _seeds.remove(seed)
        function(int(bool(_seeds)), _seeds[-1] if _seeds else 0)


def _time(function: str, rounds: int, size: int) -> float:
    for what, value in (("rounds", rounds), ("size", size)):
        if not 1 <= _whole(what, value) <= _MOST:
            raise ValueError(f"{what} must be at least 1, not {value}")
    call = getattr(loaded_library(), function)
    call.restype = ctypes.c_double
    call.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t]
    result = float(call(rounds, size))
    if result < 0:
        raise RuntimeError("a driver call was refused: is the driver initialised and a context current?")
    return result


def time_pool_pair(rounds: int = 1_000_000, size: int = 4096) -> float:
    """Measure a pool allocation and its free, looped in C.

    Parameters
    ----------
    rounds
        How many pairs.
    size
        Bytes of each allocation.

    Returns
    -------
    float
        Microseconds of one pair.

    Raises
    ------
    TypeError, ValueError
        If `rounds` or `size` is no integer, or less than 1.
    RuntimeError
        If a call is refused, for instance as no context is current.
    """
    return _time("cudaDriverSimTimePoolPair", rounds, size)


def time_virtual_round(rounds: int = 1000, size: int = 2 << 20) -> float:
    """Measure one round of virtual memory: reserve, create, map, access, unmap, release, free.

    Parameters
    ----------
    rounds
        How many rounds.
    size
        Bytes, a multiple of 2 MiB.

    Returns
    -------
    float
        Microseconds of one round, looped in C.
    """
    return _time("cudaDriverSimTimeVirtualRound", rounds, size)
