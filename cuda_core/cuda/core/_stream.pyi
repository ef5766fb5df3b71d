# SPDX-License-Identifier: Apache-2.0
# Made from _stream.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""CUDA streams: the Python object around a counted handle."""

from cuda.bindings import driver
from cuda.core._context import Context
from cuda.core._device import Device
from cuda.core._event import Event
from cuda.core._event import EventOptions
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import IsStreamType
from dataclasses import dataclass
from typing import Any

__all__ = ["LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "Stream", "StreamOptions"]

LEGACY_DEFAULT_STREAM: Stream

PER_THREAD_DEFAULT_STREAM: Stream

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

class Stream:
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
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

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

    @property
    def is_closed(self) -> bool:
        """bool: whether the object has let go of its stream, or that is one of the process which forked this one."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, address)``, the protocol by which other libraries accept this stream."""

    @property
    def handle(self) -> driver.CUstream:
        """CUstream: the stream as a ``cuda.bindings.driver`` object; ``int()`` gives its address."""

    @property
    def is_nonblocking(self) -> bool:
        """bool: whether the stream does not wait for the legacy default stream.

        Raises
        ------
        RuntimeError
            If the stream is closed, or is being captured and was made elsewhere: the driver would be asked then, and
            the question would break the capture.
        """

    @property
    def priority(self) -> int:
        """int: the stream's priority; lower numbers run first."""

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

    def record(self, event: Event | None = None, options: EventOptions | dict[str, Any] | None = None) -> Event:
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

    @property
    def context(self) -> Context:
        """Context: the stream's; for a default stream, the calling thread's current one."""

    @property
    def device(self) -> Device:
        """Device: that of the stream's context."""

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

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...

    def __repr__(self) -> str:
        ...

class StreamCarrier:
    """Base of what is accepted wherever a stream is."""

def Stream_accept(arg: object, allow_stream_protocol: bool = False) -> Stream:
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
