# SPDX-License-Identifier: Apache-2.0
"""CUDA streams: the Python object around a counted handle."""

import operator
import os
from dataclasses import dataclass

cimport cython
from cpython.ref cimport Py_INCREF, PyObject
from cuda.bindings cimport cydriver

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._context cimport ask_for_id, current_context, device_of_context, wrap_context
from cuda.core._driver cimport check, ensure_driver, is_hopeless
from cuda.core._event cimport Event, create_event
from cuda.core._stream_handle cimport (
    STREAM_FOREIGN,
    STREAM_LEGACY,
    STREAM_OWNED,
    STREAM_PER_THREAD,
    STREAM_SET,
    StreamHandle,
    StreamKind,
    always_there,
    ask_for_stream,
    bind_token,
    captured_error,
    close_stream,
    drop_stream,
    enter_stream,
    is_inherited,
    leave_stream,
    new_stream_handle,
    release_stream,
    retain_stream,
    stream_as_seen_here,
    stream_is_capturing,
)
from cuda.core._stream_order cimport (
    are_one_capture,
    ask_for_context_of,
    join_first,
    wait_behind_stream,
    wait_for_stream,
)
from cuda.core._undestroyed cimport try_undestroyed

# Imported here and not where it is used: a finalizer at exit may read a handle when nothing can be imported.
from cuda.bindings import driver

from cuda.core._address import address_of
from cuda.core._error_text import shown

__all__ = ["LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "Stream", "StreamOptions"]

# Set by the device and the graph module when they are imported; modules below them cannot import them.
device_factory = None
graph_builder_factory = None


# --- from handles to streams and back -----------------------------------------------------------------------------

cdef tuple streams_of(StreamHandle* handle):
    """Return the streams behind a handle as Python objects."""
    cdef list streams = []
    if handle == NULL:
        return ()
    if handle.kind != STREAM_SET:
        return (wrap_stream(handle),)
    for member in range(handle.member_count):
        streams.append(wrap_stream(handle.members[member]))
    return tuple(streams)


cdef Stream _named_here(StreamHandle* handle):
    """Return the stream of a handle as this thread can name it: the legacy stream for another's per-thread stream."""
    cdef StreamHandle* legacy
    cdef Stream named
    if stream_as_seen_here(handle) == handle.stream:
        return wrap_stream(handle)
    legacy = new_stream_handle(<cydriver.CUstream>1, handle.context, handle.device_id, STREAM_LEGACY)
    legacy.context_id = handle.context_id
    named = wrap_stream(legacy)
    drop_stream(legacy)
    return named


cdef Stream stream_for_python(StreamHandle* handle):
    """Return one stream that stands for the handle: of a set the first, made to wait for the others.

    An author's code names it on this thread, where the number of a per-thread stream means another one.

    Raises
    ------
    CUDAError
        If some streams of a set are being captured, and not all of them in one capture: a wait would break the capture,
        or take a stream into it that nobody captures. Or if the driver refuses.
    """
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    cdef bint capturing
    if handle == NULL:
        return default_stream()
    if handle.kind != STREAM_SET:
        return _named_here(handle)
    with nogil:
        result = join_first(handle, &capturing, &function)
    check(result, function)
    if not capturing:
        return _named_here(handle.members[0])
    streams = streams_of(handle)
    if not are_one_capture(handle.members, handle.member_count):
        raise captured_error(
            "a stream that orders this release is being captured, and the release has several; release the buffer "
            "after the capture has ended, or close it with one stream"
        )
    for other in streams[1:]:
        streams[0].wait(other)
    return streams[0]


cdef StreamHandle* bind_stream(Stream stream) except NULL:
    """Return a counted handle that still means the same stream on another thread or in another context."""
    cdef StreamHandle* handle = stream._hold()
    cdef StreamHandle* bound
    if handle.kind not in (STREAM_LEGACY, STREAM_PER_THREAD) or handle.context != NULL:
        return handle
    bound = bind_token(handle)
    drop_stream(handle)
    if bound == NULL:
        raise RuntimeError(
            "a default stream cannot be recorded while no CUDA context is current; call Device.set_current() first"
        )
    return bound


cdef StreamHandle* bind_default_stream() except? NULL:
    """Return a counted handle of the default stream, or NULL where no context is current."""
    return bind_token((<Stream>_DEFAULT_STREAM)._handle)


# --- the Python object --------------------------------------------------------------------------------------------


@dataclass
class StreamOptions:
    """How to create a :class:`Stream`.

    Attributes
    ----------
    nonblocking : bool, optional
        Do not wait for the legacy default stream, nor let it wait. (Default True)
    priority : int, optional
        Lower numbers run first. None takes the lowest priority of the device.

    Examples
    --------
    >>> StreamOptions(nonblocking=False).nonblocking
    False
    """

    nonblocking: bool = True
    priority: int | None = None


cdef object _checked_options(object options):
    if options is None:
        return StreamOptions()
    if isinstance(options, dict):
        return StreamOptions(**options)
    if not isinstance(options, StreamOptions):
        raise TypeError(
            f"options must be StreamOptions, a dict or None, got {type(options).__name__}: {shown(options)}"
        )
    return options


cdef int _ensure_usable(StreamHandle* handle) except -1:
    """Raise unless a Stream has a handle that can be used. In a critical section of the Stream."""
    if handle == NULL:
        raise RuntimeError("Stream has been closed")
    if is_inherited(handle):
        raise RuntimeError("the Stream was made before this process was forked, and is lost in it")
    return 0


cdef Stream wrap_stream(StreamHandle* handle):
    """Make a Stream object around a handle, taking one more reference."""
    cdef Stream self = Stream.__new__(Stream)
    self._handle = retain_stream(handle)
    self._key = <size_t>handle.stream
    self._nonblocking = -1
    return self


cdef object _priority_argument(object priority):
    """Return a priority as a C integer, or None. Which of them the device has is the driver's to say."""
    cdef int number
    if priority is None:
        return None
    try:
        number = operator.index(priority)
        return number
    except TypeError:
        raise TypeError(f"priority must be an integer or None, got {shown(priority)}") from None
    except OverflowError:
        raise OverflowError(f"priority must fit into 32 bits, got {shown(priority)}") from None


cdef Stream create_stream(cydriver.CUcontext context, int device_id, object options):
    """Create a stream in the calling thread's current context, which ``context`` names."""
    cdef object checked = _checked_options(options)
    cdef bint nonblocking = checked.nonblocking
    cdef object wanted = _priority_argument(checked.priority)
    # All that needs memory comes first: a stream without a holder would never be destroyed.
    cdef Stream self = Stream.__new__(Stream)
    cdef StreamHandle* handle
    cdef cydriver.CUresult result
    cdef int low = 0, high = 0, priority = 0
    cdef const char* function = b"cuCtxGetId"
    cdef unsigned int flags = (
        cydriver.CUstream_flags.CU_STREAM_NON_BLOCKING if nonblocking else cydriver.CUstream_flags.CU_STREAM_DEFAULT
    )
    if wanted is not None:
        with nogil:
            result = cydriver.cuCtxGetStreamPriorityRange(&low, &high)
        check(result, b"cuCtxGetStreamPriorityRange")
        if not high <= wanted <= low:
            raise ValueError(f"priority must lie between {high} and {low}, got {shown(wanted)}")
        priority = wanted
    handle = new_stream_handle(NULL, context, device_id, STREAM_OWNED)
    with nogil:
        try_undestroyed()
        result = ask_for_id(context, &handle.context_id)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuStreamCreateWithPriority"
            result = cydriver.cuStreamCreateWithPriority(&handle.stream, flags, priority)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        handle.kind = STREAM_FOREIGN  # there is none to destroy
        drop_stream(handle)
        check(result, function)
    self._handle = handle
    self._key = <size_t>handle.stream
    self._nonblocking = nonblocking
    return self


cdef cydriver.CUresult _enter_with(
    StreamHandle* handle, Event mark, bint* pushed, const char** function
) noexcept nogil:
    """Enter a stream for a call that names it and an event, if both are there. With captures held off."""
    cdef cydriver.CUresult result = ask_for_stream(handle, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = mark.ask_whether_there(function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = enter_stream(handle, pushed, function)
    return result


cdef class Stream:
    """A queue of work on a device. Get one from :meth:`Device.create_stream` or :meth:`Stream.from_handle`.

    Notes
    -----
    Methods may be called from any thread. A buffer that was allocated or closed with a stream keeps the driver's
    stream alive until the buffer is returned, also when the ``Stream`` object was closed before. A memory pool with
    options of its own keeps up to four streams in which its memory was freed last.

    Examples
    --------
    >>> with_priority = device.create_stream(options=StreamOptions(priority=-1))
    >>> buffer.fill(0, stream=with_priority)
    >>> with_priority.sync()
    >>> with_priority.close()
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("Stream objects cannot be made directly; use Device.create_stream or Stream.from_handle")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Stream objects cannot be copied or pickled: each stands for one stream of this process")

    @staticmethod
    def _token(size_t token):
        cdef StreamKind kind = STREAM_LEGACY if token == 1 else STREAM_PER_THREAD
        cdef StreamHandle* handle = new_stream_handle(<cydriver.CUstream>token, NULL, -1, kind)
        cdef Stream self = wrap_stream(handle)
        drop_stream(handle)
        always_there()
        return self

    @staticmethod
    def from_handle(handle: driver.CUstream | int) -> Stream:
        """Wrap a ``CUstream`` that somebody else owns.

        Parameters
        ----------
        handle : int
            Address of the stream. 0 and 1 name the legacy default stream, 2 the per-thread default stream.

        Returns
        -------
        Stream
            An object that never destroys the stream. The caller keeps it alive for as long as it is used.

        Raises
        ------
        TypeError, OverflowError
            If ``handle`` is not an integer or an object that converts to one, or does not fit into 64 bits.

        Examples
        --------
        >>> same = Stream.from_handle(int(stream.handle))
        >>> same == stream
        True
        """
        return _wrap_foreign(_address(handle), None)

    cdef int _ensure_open(self) except -1:
        with cython.critical_section(self):  # a close lets go of the handle behind one
            return _ensure_usable(self._handle)

    cdef StreamHandle* _hold(self) except NULL:
        """Return the handle, one reference of it the caller's: another thread may close the object meanwhile."""
        cdef StreamHandle* handle
        with cython.critical_section(self):
            _ensure_usable(self._handle)
            handle = retain_stream(self._handle)
        return handle

    def close(self) -> None:
        """Let go of the stream. Closing twice is harmless.

        A stream created here is destroyed once no buffer holds it any more; the driver finishes its work first.
        The two default streams are shared by the whole process and are not closed by this.

        Raises
        ------
        CUDAError
            If the driver refuses to destroy a stream that nobody else holds. The object stays open then and can be
            closed again, unless the context of the stream can no longer be used.

        Notes
        -----
        Where a buffer is the last holder, or the object is collected, nobody can be told by an exception: what the
        driver refuses there is told of by one ``CUDAWarning``, and tried again with the next stream or event that is
        made or closed.

        Examples
        --------
        >>> stream.close()
        >>> stream.is_closed
        True
        """
        cdef StreamHandle* handle
        cdef cydriver.CUresult result
        with cython.critical_section(self):
            handle = self._handle
            if handle != NULL and handle.kind in (STREAM_LEGACY, STREAM_PER_THREAD) and handle.context == NULL:
                return
            self._handle = NULL
        with nogil:
            result = close_stream(handle)
        if result != cydriver.CUresult.CUDA_SUCCESS and not is_hopeless(result):
            with cython.critical_section(self):
                self._handle = handle
        check(result, b"cuStreamDestroy")

    def __dealloc__(self):
        cdef StreamHandle* handle = self._handle
        self._handle = NULL
        if handle != NULL:
            with nogil:
                release_stream(handle)

    @property
    def is_closed(self) -> bool:
        """bool: whether the object has let go of its stream, or that is one of the process which forked this one."""
        with cython.critical_section(self):
            return self._handle == NULL or is_inherited(self._handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, address)``, the protocol by which other libraries accept this stream."""
        with cython.critical_section(self):
            _ensure_usable(self._handle)
            return (0, <size_t>self._handle.stream)

    @property
    def handle(self) -> driver.CUstream:
        """CUstream: the stream as a ``cuda.bindings.driver`` object; ``int()`` gives its address."""
        cdef size_t address = 0
        with cython.critical_section(self):
            if self._handle != NULL and not is_inherited(self._handle):
                address = <size_t>self._handle.stream
        return driver.CUstream(address)

    @property
    def is_nonblocking(self) -> bool:
        """bool: whether the stream does not wait for the legacy default stream.

        Raises
        ------
        RuntimeError
            If the stream is closed, or is being captured and was made elsewhere: the driver would be asked then, and
            the question would break the capture.
        """
        cdef unsigned int flags = 0
        cdef bint capturing = False
        cdef const char* function = b"cuStreamGetFlags"
        cdef cydriver.CUresult result
        cdef StreamHandle* handle
        self._ensure_open()
        if self._nonblocking < 0:
            ensure_driver()
            handle = self._hold()
            with nogil:
                hold_captures_off()
                result = ask_for_stream(handle, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    result = stream_is_capturing(handle, &capturing, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS and not capturing:
                    function = b"cuStreamGetFlags"
                    result = cydriver.cuStreamGetFlags(handle.stream, &flags)
                let_captures_begin()
                release_stream(handle)
            check(result, function)
            if capturing:
                raise RuntimeError(f"whether {self!r} is non-blocking cannot be asked while it is being captured")
            self._nonblocking = bool(flags & cydriver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return bool(self._nonblocking)

    @property
    def priority(self) -> int:
        """int: the stream's priority; lower numbers run first."""
        cdef int priority = 0
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef StreamHandle* handle
        self._ensure_open()
        if self._priority is None:
            ensure_driver()
            handle = self._hold()
            with nogil:
                hold_captures_off()
                result = ask_for_stream(handle, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuStreamGetPriority"
                    result = cydriver.cuStreamGetPriority(handle.stream, &priority)
                let_captures_begin()
                release_stream(handle)
            check(result, function)
            self._priority = priority
        return self._priority

    def sync(self) -> None:
        """Wait, without the GIL, until all work in the stream has run.

        Raises
        ------
        RuntimeError
            If the stream is closed.
        CUDAError
            If the stream is being captured, which goes on; or if the driver answers with an error, also one of earlier
            work.

        Notes
        -----
        Other threads may use the stream meanwhile. What they put into it behind the call is not waited for.

        Examples
        --------
        >>> buffer.fill(0, stream=stream)
        >>> stream.sync()
        """
        cdef cydriver.CUresult result
        cdef const char* function = NULL
        cdef bint capturing
        cdef StreamHandle* handle = self._hold()
        try:
            ensure_driver()
            with nogil:
                result = wait_for_stream(handle, &capturing, &function)
        finally:
            drop_stream(handle)
        check(result, function)
        if capturing:
            raise captured_error("a stream that is being captured cannot be waited for")

    def record(
        self, event: Event | None = None, options: EventOptions | dict[str, Any] | None = None
    ) -> Event:
        """Put an event into the stream.

        Parameters
        ----------
        event : Event, optional
            The event to record. A new one is created where it is None.
        options : EventOptions, optional
            How to create the new event. One with ``ipc_enabled=True`` is recorded once, by this call.

        Returns
        -------
        Event
            The event that was recorded.

        Raises
        ------
        TypeError
            If ``event`` is no event, or one that is shared with other processes; if the options are wrong.
        RuntimeError
            If the stream or the event is closed.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> event = stream.record()
        >>> event.sync()
        >>> event.is_done
        True
        """
        cdef cydriver.CUresult result
        cdef cydriver.CUevent handle
        cdef StreamHandle* order
        cdef const char* function = NULL
        cdef bint pushed = False
        cdef Event mark
        self._ensure_open()
        if event is None:
            mark = self._new_event(options)
        elif not isinstance(event, Event):
            raise TypeError(f"event must be an Event or None, got {type(event).__name__}: {shown(event)}")
        else:
            mark = event
            mark.ensure_recordable()
        handle = mark.hold()
        try:
            order = self._hold()
            with nogil:
                hold_captures_off()
                result = _enter_with(order, mark, &pushed, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuEventRecord"
                    result = cydriver.cuEventRecord(handle, stream_as_seen_here(order))
                leave_stream(pushed)
                let_captures_begin()
                release_stream(order)
        finally:
            mark.let_go()
        check(result, function)
        return mark

    def _new_event(self, options):
        cdef cydriver.CUcontext context = self._context_handle()
        cdef cydriver.CUcontext popped = NULL
        cdef cydriver.CUresult result
        with nogil:
            result = cydriver.cuCtxPushCurrent(context)
        check(result, b"cuCtxPushCurrent")
        try:
            return create_event(context, device_of_context(context), options, True)
        finally:
            with nogil:
                cydriver.cuCtxPopCurrent(&popped)

    def wait(self, event_or_stream: Event | Stream | IsStreamType) -> None:
        """Let all later work of this stream wait for an event, or for what is in another stream now.

        Parameters
        ----------
        event_or_stream : Event or Stream
            What to wait for. An object with ``__cuda_stream__`` counts as a stream.

        Raises
        ------
        ValueError
            If it is neither.
        RuntimeError
            If one of the two is closed.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> later = device.create_stream()
        >>> later.wait(stream)
        >>> later.wait(stream.record())
        """
        cdef cydriver.CUresult result
        cdef cydriver.CUevent handle
        cdef StreamHandle* order
        cdef const char* function = NULL
        cdef bint pushed = False
        cdef Event mark
        self._ensure_open()
        if not isinstance(event_or_stream, Event):
            if not isinstance(event_or_stream, Stream) and not hasattr(event_or_stream, "__cuda_stream__"):
                raise ValueError(
                    "only an Event, a Stream or an object with __cuda_stream__ can be waited for, got "
                    f"{type(event_or_stream).__name__}: {shown(event_or_stream)}"
                )
            self._wait_for_stream(Stream_accept(event_or_stream, True))
            return
        mark = event_or_stream
        handle = mark.hold()
        try:
            order = self._hold()
            with nogil:
                hold_captures_off()  # the event may be of a capture, and take this stream into it
                result = _enter_with(order, mark, &pushed, &function)
                if result == cydriver.CUresult.CUDA_SUCCESS:
                    function = b"cuStreamWaitEvent"
                    result = cydriver.cuStreamWaitEvent(stream_as_seen_here(order), handle, 0)
                leave_stream(pushed)
                let_captures_begin()
                release_stream(order)
        finally:
            mark.let_go()
        check(result, function)

    cdef int _wait_for_stream(self, Stream other) except -1:
        """Wait for what is in another stream. No capture ends between the mark there and the wait for it."""
        cdef StreamHandle* later
        cdef StreamHandle* earlier
        cdef cydriver.CUresult result
        cdef const char* function = NULL
        cdef bint gone
        other._context_handle()
        self._context_handle()
        later = self._hold()
        try:
            earlier = other._hold()
        except BaseException:
            drop_stream(later)
            raise
        with nogil:
            try_undestroyed()
            hold_captures_off()
            result = wait_behind_stream(later, earlier, True, &gone, &function)
            let_captures_begin()
            release_stream(later)
            release_stream(earlier)
        check(result, function)
        return 0

    cdef cydriver.CUcontext _context_handle(self) except NULL:
        cdef cydriver.CUcontext context = NULL
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef StreamHandle* handle = self._hold()
        try:
            if handle.kind in (STREAM_LEGACY, STREAM_PER_THREAD) and handle.context == NULL:
                context = current_context()
                if context == NULL:
                    raise RuntimeError(
                        "a default stream has no context while none is current; call Device.set_current()"
                    )
            else:
                ensure_driver()
                with nogil:
                    result = ask_for_context_of(handle, &context, &function)
                check(result, function)
        finally:
            drop_stream(handle)
        return context

    @property
    def context(self) -> Context:
        """Context: the stream's; for a default stream, the calling thread's current one."""
        cdef cydriver.CUcontext context = self._context_handle()
        return wrap_context(context, device_of_context(context))

    @property
    def device(self) -> Device:
        """Device: that of the stream's context."""
        return device_factory(device_of_context(self._context_handle()))

    def create_graph_builder(self) -> GraphBuilder:
        """Make a builder that captures what is put into this stream while it is building.

        Returns
        -------
        GraphBuilder
            A new builder. It does not own the stream.

        Raises
        ------
        RuntimeError
            If the stream is closed.

        Examples
        --------
        >>> builder = stream.create_graph_builder()
        >>> builder.close()
        """
        self._ensure_open()
        return graph_builder_factory(self, False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        if self is other:
            return True
        return self._key == (<Stream>other)._key and self._is_there() and (<Stream>other)._is_there()

    cdef bint _is_there(self) noexcept:
        with cython.critical_section(self):
            return self._handle != NULL

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def __repr__(self) -> str:
        cdef bint closed, lost
        cdef size_t context
        with cython.critical_section(self):
            closed = self._handle == NULL
            lost = not closed and is_inherited(self._handle)
            context = 0 if closed else <size_t>self._handle.context
        if closed:
            return f"<Stream handle={self._key:#x} closed>"
        if lost:
            return f"<Stream handle={self._key:#x} lost in a forked process>"
        return f"<Stream handle={self._key:#x}{f' context={context:#x}' if context else ''}>"

    def __getattr__(self, name):
        if name == "resources":
            raise AttributeError(f"Stream.{name} is not in this build, which has the memory layer of cuda-core")
        raise AttributeError(f"'Stream' object has no attribute {name!r}")


cdef class StreamCarrier:
    """Base of what is accepted wherever a stream is."""

    cdef Stream carried(self):
        raise NotImplementedError


cdef object _address(object handle):
    """Return the address that a handle stands for: an integer, or an object such as ``driver.CUstream``."""
    try:
        address = address_of(handle)
    except TypeError:
        raise TypeError(
            f"the handle of a stream must be an integer, got {type(handle).__name__}: {shown(handle)}"
        ) from None
    if not 0 <= address < 2**64:
        raise OverflowError(f"the handle of a stream must lie between 0 and 2**64 - 1, got {shown(address)}")
    return address


cdef Stream _wrap_foreign(size_t address, object owner):
    cdef StreamHandle* handle
    cdef Stream self
    if address <= 1:
        return LEGACY_DEFAULT_STREAM
    if address == 2:
        return PER_THREAD_DEFAULT_STREAM
    handle = new_stream_handle(<cydriver.CUstream>address, NULL, -1, STREAM_FOREIGN)
    if owner is not None:
        Py_INCREF(owner)
        handle.owner = <PyObject*>owner
    self = wrap_stream(handle)
    drop_stream(handle)
    return self


cpdef Stream Stream_accept(object arg, bint allow_stream_protocol=False):
    """Return the stream that an argument names.

    Parameters
    ----------
    arg : Stream, GraphBuilder or object with ``__cuda_stream__``
        What the caller was given as a stream.
    allow_stream_protocol : bool
        Whether objects that are not a ``Stream`` may speak for themselves through ``__cuda_stream__``.

    Raises
    ------
    TypeError
        If ``arg`` is None or no stream.
    RuntimeError
        If the stream is closed, or what ``__cuda_stream__`` gives is not what the protocol says.
    """
    cdef Stream stream
    if isinstance(arg, Stream):
        stream = arg
        stream._ensure_open()
        return stream
    if isinstance(arg, StreamCarrier):
        stream = (<StreamCarrier>arg).carried()
        stream._ensure_open()
        return stream
    if arg is None:
        raise TypeError(
            "stream is required and must not be None: pass device.default_stream to mean the default stream"
        )
    protocol = getattr(arg, "__cuda_stream__", None) if allow_stream_protocol else None
    if protocol is None:
        raise TypeError(f"Stream or GraphBuilder expected, got {type(arg).__name__}: {shown(arg)}")
    answer = protocol() if callable(protocol) else protocol
    try:
        version, address = answer
    except (TypeError, ValueError):
        raise RuntimeError(
            f"__cuda_stream__ of {type(arg).__name__} must give a sequence with 2 elements, (version, address), "
            f"got {shown(answer)}"
        ) from None
    if version != 0:
        raise RuntimeError(f"__cuda_stream__ of {type(arg).__name__} gave version {shown(version)}; 0 is understood")
    return _wrap_foreign(_address(address), arg)


LEGACY_DEFAULT_STREAM: Stream = Stream._token(1)
PER_THREAD_DEFAULT_STREAM: Stream = Stream._token(2)


cdef Stream _chosen_default():
    cdef str chosen = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0")
    try:
        return PER_THREAD_DEFAULT_STREAM if int(chosen) else LEGACY_DEFAULT_STREAM
    except ValueError:
        return LEGACY_DEFAULT_STREAM


cdef Stream _DEFAULT_STREAM = _chosen_default()


cpdef Stream default_stream():
    """Return the stream that stands for "no stream".

    It is the legacy default stream, or the per-thread one where the environment variable
    ``CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM`` was a number other than 0 when the package was imported.
    """
    return _DEFAULT_STREAM
