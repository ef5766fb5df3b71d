# SPDX-License-Identifier: Apache-2.0
# Made from _event.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""CUDA events: marks in a stream that can be waited for and timed."""

from cuda.bindings import driver
from cuda.core._context import Context
from cuda.core._device import Device
from cuda.core._event_descriptor import IPCEventDescriptor
from dataclasses import dataclass
from typing_extensions import Never

__all__ = ["Event", "EventOptions"]

@dataclass
class EventOptions:
    """How to create an :class:`Event`.

    Attributes
    ----------
    timing_enabled : bool, optional
        Record times, so that two events can be subtracted.
    blocking_sync : bool, optional
        Let :meth:`Event.sync` block the thread instead of polling.
    ipc_enabled : bool, optional
        Let other processes open the event. It is then made by :meth:`Stream.record` alone, which records it once, and
        cannot record times.

    Examples
    --------
    >>> EventOptions(blocking_sync=True).blocking_sync
    True
    """

    timing_enabled: bool | None = False
    blocking_sync: bool | None = False
    ipc_enabled: bool | None = False

class Event:
    """A mark in a stream. Get one from :meth:`Device.create_event` or :meth:`Stream.record`.

    Subtracting two events made with ``timing_enabled=True`` gives the time between them in milliseconds.

    Attributes
    ----------
    device_id : int
        Ordinal of the device whose context the event belongs to.

    Notes
    -----
    Methods may be called from any thread. An event that is collected is destroyed like a closed one. What the driver
    refuses then is told of by one ``CUDAWarning``, and tried again with the next stream or event that is made or
    closed.

    Examples
    --------
    >>> timed = EventOptions(timing_enabled=True)
    >>> before = stream.record(options=timed)
    >>> buffer.fill(0, stream=stream)
    >>> after = stream.record(options=timed)
    >>> after.sync()
    >>> after - before >= 0  # milliseconds
    True
    """

    @property
    def device_id(self) -> int: ...

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def close(self) -> None:
        """Destroy the event. The driver keeps it until what waits for it has run. Closing twice is harmless.

        Raises
        ------
        CUDAError
            If the driver refuses. The event then stays open and can be closed again, unless its context can no longer
            be used.

        Examples
        --------
        >>> event = stream.record()
        >>> event.close()
        >>> event.is_closed
        True
        """

    @property
    def is_closed(self) -> bool:
        """bool: whether the event has been closed, or is that of the process which forked this one."""

    @property
    def is_timing_enabled(self) -> bool:
        """bool: whether the event records times."""

    @property
    def is_blocking_sync(self) -> bool:
        """bool: whether :meth:`sync` blocks the thread instead of polling."""

    @property
    def is_ipc_enabled(self) -> bool:
        """bool: whether other processes can open the event. True also of one that was opened here."""

    @property
    def ipc_descriptor(self) -> IPCEventDescriptor:
        """IPCEventDescriptor: the name by which another process can open the event. It keeps nothing alive.

        Raises
        ------
        RuntimeError
            If the event is closed, or was not made with ``ipc_enabled=True``.
        CUDAError
            If the driver refuses.
        """

    @classmethod
    def from_ipc_descriptor(cls, ipc_descriptor: IPCEventDescriptor) -> Event:
        """Open an event of another process, in the current context.

        Parameters
        ----------
        ipc_descriptor : IPCEventDescriptor
            What :attr:`ipc_descriptor` was there.

        Returns
        -------
        Event
            An event to wait for; it cannot be recorded again. It has no ``device`` and no ``context``.

        Raises
        ------
        TypeError
            If the argument is no descriptor of an event.
        RuntimeError
            If no context is current.
        ValueError
            If the descriptor names no event that can be opened: it is not one, or the event is gone, or this process's
            own.
        CUDAError
            If the driver refuses for another reason.

        Notes
        -----
        The exporter must keep its event until this one was waited for.

        Examples
        --------
        >>> stream.wait(Event.from_ipc_descriptor(descriptor))  # doctest: +SKIP
        """

    def __copy__(self) -> Never:
        ...

    def __deepcopy__(self, memo: object) -> Never:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @property
    def is_done(self) -> bool:
        """bool: whether all work before the event has finished. True for an event that was never recorded.

        Raises
        ------
        RuntimeError
            If the event is closed.
        CUDAError
            If the driver answers with an error.
        """

    def sync(self) -> None:
        """Wait, without the GIL, until all work before the event has finished.

        Raises
        ------
        RuntimeError
            If the event is closed.
        CUDAError
            If the driver answers with an error.

        Examples
        --------
        >>> event = stream.record()
        >>> event.sync()
        """

    @property
    def handle(self) -> driver.CUevent:
        """CUevent: the event as a ``cuda.bindings.driver`` object; ``int()`` gives its address."""

    @property
    def context(self) -> Context | None:
        """Context or None: the context that the event was created in; None for one of another process."""

    @property
    def device(self) -> Device | None:
        """Device or None: the device of the event's context; None for one of another process."""

    def __sub__(self, other: Event) -> float:
        ...

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...

    def __repr__(self) -> str:
        ...

def live_event_handles() -> int:
    """Return the number of driver events that this package owns, with those that the driver would not destroy."""
