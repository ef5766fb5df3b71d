# SPDX-License-Identifier: Apache-2.0
"""CUDA events: marks in a stream that can be waited for and timed."""

from dataclasses import dataclass

cimport cython
from cuda.bindings cimport cydriver
from libcpp.atomic cimport atomic

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport (
    ask_for_context,
    ask_for_id,
    context_is_gone,
    current_context,
    primary_context,
    wrap_context,
)
from cuda.core._driver cimport check, error_for, is_hopeless
from cuda.core._event_descriptor cimport IPCEventDescriptor, name_event
from cuda.core._fork cimport fork_generation
from cuda.core._undestroyed cimport AN_EVENT, keep_undestroyed, try_undestroyed, undestroyed

# Imported here and not where it is used: a finalizer at exit may read a handle when nothing can be imported.
from cuda.bindings import driver
from cuda.core._start_method import warn_under_fork

from cuda.core._error_text import shown

__all__ = ["Event", "EventOptions"]

cdef atomic[long] _live

# Set by the device module when it is imported; modules below it cannot import it.
device_factory = None


cpdef long live_event_handles() noexcept:
    """Return the number of driver events that this package owns, with those that the driver would not destroy."""
    return _live.load() + undestroyed(AN_EVENT)


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


cdef object _checked_options(object options):
    if options is None:
        return EventOptions()
    if isinstance(options, dict):
        return EventOptions(**options)
    if not isinstance(options, EventOptions):
        raise TypeError(f"options must be EventOptions, a dict or None, got {type(options).__name__}: {shown(options)}")
    return options


cdef cydriver.CUresult _destroy(Event owner, cydriver.CUevent event) noexcept:
    """Destroy an event, unless it is that of the process which forked this one, or went with its context."""
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    if owner._generation == fork_generation():
        with nogil:
            if not context_is_gone(owner._context, owner._context_id):
                hold_captures_off()  # it may be of one
                result = cydriver.cuEventDestroy(event)
                let_captures_begin()
            if result == cydriver.CUresult.CUDA_SUCCESS:
                try_undestroyed()
    if result == cydriver.CUresult.CUDA_SUCCESS or is_hopeless(result):
        _live.fetch_sub(1)
    return result


cdef void _end(Event owner, cydriver.CUevent event) noexcept:
    """The same where nobody can be told: what the driver refuses is kept."""
    cdef cydriver.CUresult result = _destroy(owner, event)
    if result != cydriver.CUresult.CUDA_SUCCESS and not is_hopeless(result):
        with nogil:
            keep_undestroyed(AN_EVENT, event, owner._context, owner._context_id, result)
        _live.fetch_sub(1)


cdef Event create_event(cydriver.CUcontext context, int device_id, object options, bint recorded):
    """Create an event in the calling thread's current context, which ``context`` names.

    ``recorded``: it is recorded at once. Only such an event may be for other processes.
    """
    cdef object checked = _checked_options(options)
    cdef Event self = Event.__new__(Event)
    cdef unsigned int flags = 0
    cdef const char* function = b"cuCtxGetId"
    cdef cydriver.CUresult result
    if checked.ipc_enabled:
        if not recorded:
            raise TypeError("an event for other processes is made where it is recorded: use Stream.record(options=...)")
        if checked.timing_enabled:
            raise TypeError("an event for other processes cannot record times: ipc_enabled excludes timing_enabled")
        flags |= cydriver.CUevent_flags.CU_EVENT_INTERPROCESS
        self._shared = True
    if not checked.timing_enabled:
        flags |= cydriver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    if checked.blocking_sync:
        flags |= cydriver.CUevent_flags.CU_EVENT_BLOCKING_SYNC
    self._timing = bool(checked.timing_enabled)
    self._blocking = bool(checked.blocking_sync)
    self._context = context
    self.device_id = device_id
    self._generation = fork_generation()
    with nogil:
        try_undestroyed()
        result = ask_for_id(context, &self._context_id)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuEventCreate"
            result = cydriver.cuEventCreate(&self._event, flags)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        self._event = NULL
    check(result, function)
    self._key = <size_t>self._event
    _live.fetch_add(1)
    return self


cdef class Event:
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

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("Event objects cannot be made directly; use Device.create_event or Stream.record")

    cdef int _ensure_open(self) except -1:
        with cython.critical_section(self):
            return self._ensure_usable()

    cdef int _ensure_usable(self) except -1:
        """The same, in a critical section of the event. One inside another would let go of the outer one."""
        if self._event == NULL:
            raise RuntimeError("Event has been closed")
        if self._generation != fork_generation():
            raise RuntimeError("the Event was made before this process was forked, and is lost in it")
        return 0

    cdef int ensure_recordable(self) except -1:
        """Raise TypeError if others may be waiting for what the event was recorded for."""
        self._ensure_open()
        if self._shared:
            raise TypeError("an event that is shared with other processes is recorded once; make a new one")
        return 0

    cdef cydriver.CUresult ask_whether_there(self, const char** function) noexcept nogil:
        function[0] = b"cuCtxGetId"
        return ask_for_context(self._context, self._context_id)

    cdef cydriver.CUevent hold(self) except NULL:
        cdef cydriver.CUevent event
        with cython.critical_section(self):
            self._ensure_usable()
            self._users += 1
            event = self._event
        return event

    cdef void let_go(self) noexcept:
        cdef cydriver.CUevent event = NULL
        with cython.critical_section(self):
            self._users -= 1
            if not self._users:
                event = self._ending
                self._ending = NULL
        if event != NULL:
            _end(self, event)

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
        cdef cydriver.CUevent event
        cdef cydriver.CUresult result
        with cython.critical_section(self):
            event = self._event
            self._event = NULL
            if self._users and event != NULL:  # a second close finds none, and must leave the one that is in use
                self._ending = event
                event = NULL
        if event == NULL:
            return
        result = _destroy(self, event)
        if result != cydriver.CUresult.CUDA_SUCCESS and not is_hopeless(result):
            with cython.critical_section(self):
                self._event = event
        check(result, b"cuEventDestroy")

    def __dealloc__(self):
        if self._event != NULL:
            _end(self, self._event)

    @property
    def is_closed(self) -> bool:
        """bool: whether the event has been closed, or is that of the process which forked this one."""
        return self._address() == 0 or self._generation != fork_generation()

    cdef size_t _address(self) noexcept:
        with cython.critical_section(self):
            return <size_t>self._event

    @property
    def is_timing_enabled(self) -> bool:
        """bool: whether the event records times."""
        self._ensure_open()
        return self._timing

    @property
    def is_blocking_sync(self) -> bool:
        """bool: whether :meth:`sync` blocks the thread instead of polling."""
        self._ensure_open()
        return self._blocking

    @property
    def is_ipc_enabled(self) -> bool:
        """bool: whether other processes can open the event. True also of one that was opened here."""
        self._ensure_open()
        return self._shared

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
        cdef cydriver.CUipcEventHandle name
        cdef cydriver.CUevent event
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        self._ensure_open()
        if not self._shared:
            raise RuntimeError("Event is not IPC-enabled: it was not made with ipc_enabled=True")
        if self._descriptor is None:
            event = self.hold()
            with nogil:
                result = self.ask_whether_there(&function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuIpcGetEventHandle"
                    result = cydriver.cuIpcGetEventHandle(&name, event)
            self.let_go()
            check(result, function)
            self._descriptor = name_event(&name, self._blocking)
        return self._descriptor

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
        if not isinstance(ipc_descriptor, IPCEventDescriptor):
            raise TypeError(
                f"ipc_descriptor must be an IPCEventDescriptor, got {type(ipc_descriptor).__name__}: "
                f"{shown(ipc_descriptor)}"
            )
        if current_context() == NULL:
            raise RuntimeError("no CUDA context is current in which to open the event; call Device.set_current() first")
        return _open_event(ipc_descriptor)

    def __copy__(self) -> Never:
        raise TypeError("Event objects cannot be copied: each stands for one event of the driver")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError("Event objects cannot be copied: each stands for one event of the driver")

    def __reduce__(self) -> tuple[object, ...]:
        descriptor = self.ipc_descriptor
        warn_under_fork()
        return _receive_event, (descriptor, None if self._opened else self.device_id)

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
        cdef cydriver.CUresult result
        cdef const char* function = NULL
        cdef cydriver.CUevent event = self.hold()
        with nogil:
            result = self.ask_whether_there(&function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuEventQuery"
                hold_captures_off()  # another thread may have recorded it in a capture
                result = cydriver.cuEventQuery(event)
                let_captures_begin()
        self.let_go()
        if result == cydriver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check(result, function)
        return True

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
        cdef cydriver.CUresult result
        cdef cydriver.CUevent event = self.hold()
        cdef const char* function = NULL
        with nogil:
            result = self.ask_whether_there(&function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuEventQuery"
                hold_captures_off()
                result = cydriver.cuEventQuery(event)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuEventSynchronize"
                    result = cydriver.cuEventSynchronize(event)  # at once; a driver gives back here what it keeps
                let_captures_begin()
            if result == cydriver.CUresult.CUDA_ERROR_NOT_READY:
                function = b"cuEventSynchronize"
                result = cydriver.cuEventSynchronize(event)
        self.let_go()
        check(result, function)

    @property
    def handle(self) -> driver.CUevent:
        """CUevent: the event as a ``cuda.bindings.driver`` object; ``int()`` gives its address."""
        return driver.CUevent(0 if self._generation != fork_generation() else self._address())

    @property
    def context(self) -> Context | None:
        """Context or None: the context that the event was created in; None for one of another process."""
        self._ensure_open()
        return None if self._opened else wrap_context(self._context, self.device_id)

    @property
    def device(self) -> Device | None:
        """Device or None: the device of the event's context; None for one of another process."""
        self._ensure_open()
        return None if self._opened else device_factory(self.device_id)

    def __sub__(self, other: Event) -> float:
        cdef float milliseconds = 0
        cdef Event later, earlier
        cdef cydriver.CUevent begin, end
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        if not isinstance(self, Event) or not isinstance(other, Event):
            return NotImplemented
        later, earlier = self, other
        later._ensure_open()
        earlier._ensure_open()
        if not (later._timing and earlier._timing):
            raise RuntimeError("both events must be created with timing_enabled=True to be subtracted")
        end = later.hold()
        try:
            begin = earlier.hold()
            with nogil:
                result = later.ask_whether_there(&function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    result = earlier.ask_whether_there(&function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuEventElapsedTime"
                    hold_captures_off()
                    result = cydriver.cuEventElapsedTime(&milliseconds, begin, end)
                    let_captures_begin()
            earlier.let_go()
        finally:
            later.let_go()
        if result == cydriver.CUresult.CUDA_ERROR_NOT_READY:
            raise RuntimeError("an event has not completed yet; call sync() on the later one first")
        if result == cydriver.CUresult.CUDA_ERROR_INVALID_HANDLE:
            raise RuntimeError("both events must be recorded before they can be subtracted")
        check(result, function)
        return milliseconds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        cdef size_t mine = self._address()
        return self is other or (mine != 0 and mine == (<Event>other)._address())

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def __repr__(self) -> str:
        state = " closed" if not self._address() else " lost in a forked process" if self.is_closed else ""
        return f"<Event handle={self._key:#x} device={self.device_id}{state}>"


# --- events of other processes ------------------------------------------------------------------------------------


cdef Event _open_event(IPCEventDescriptor name):
    """Open an event in the current context."""
    cdef Event self = Event.__new__(Event)
    cdef cydriver.CUresult result
    self._generation = fork_generation()
    with nogil:
        result = cydriver.cuIpcOpenEventHandle(&self._event, name.handle)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        self._event = NULL
    if result in (
        cydriver.CUresult.CUDA_ERROR_INVALID_VALUE,
        cydriver.CUresult.CUDA_ERROR_INVALID_HANDLE,
        cydriver.CUresult.CUDA_ERROR_INVALID_CONTEXT,  # of this very process
        cydriver.CUresult.CUDA_ERROR_MAP_FAILED,
    ):
        raise ValueError("the descriptor names no event of another process that could be opened") from error_for(
            result, b"cuIpcOpenEventHandle"
        )
    check(result, b"cuIpcOpenEventHandle")
    self._key = <size_t>self._event
    self.device_id = -1
    self._blocking = name.blocking
    self._shared = self._opened = True
    self._descriptor = name
    _live.fetch_add(1)
    return self


def _receive_event(descriptor, device_id):
    """Open an event that was received. The current context stays what it is.

    The event is opened in the primary context of the device that it is of, or in the current one where that is not
    known.
    """
    cdef cydriver.CUcontext context, popped = NULL
    cdef cydriver.CUresult result
    if not isinstance(descriptor, IPCEventDescriptor):
        raise ValueError(f"what was received is no event: {shown(descriptor)}")
    if device_id is None:
        context = current_context()
        device_id = 0
    else:
        context = NULL
        if type(device_id) is not int or device_factory is None:
            raise ValueError(f"what was received is no device: {shown(device_id)}")
    if context == NULL:
        context = primary_context(device_factory(device_id).device_id)  # which looks whether it is there
    with nogil:
        result = cydriver.cuCtxPushCurrent(context)
    check(result, b"cuCtxPushCurrent")
    try:
        return _open_event(descriptor)
    finally:
        with nogil:
            cydriver.cuCtxPopCurrent(&popped)
