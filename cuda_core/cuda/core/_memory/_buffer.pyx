# SPDX-License-Identifier: Apache-2.0
"""``Buffer``, the handle of an allocation, and ``MemoryResource``, what makes and frees allocations."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._driver cimport check, ensure_driver
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._arguments cimport pointer_argument, size_argument
from cuda.core._memory._ownership cimport (
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_BEGIN_RELEASE,
    STATE_BORROWED,
    STATE_OWNED,
    STATE_RELEASED,
    STATE_TRANSFERRED,
)
from cuda.core._memory._release cimport release, release_from_collection
from cuda.core._stream cimport (
    Stream,
    Stream_accept,
    StreamHandle,
    bind_default_stream,
    bind_stream,
    default_stream,
    release_stream,
    wrap_stream,
)

from cuda.core._memory._release import CloseResult

__all__ = ["Buffer", "MemoryResource"]

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef dict _asked = {}  # thread -> the record whose release is asking a subclass of a built-in resource

_RESULTS = tuple(CloseResult(number) for number in range(len(CloseResult)))


# --- buffers ------------------------------------------------------------------------------------------------------

cdef Buffer new_buffer(uintptr_t pointer, size_t size, MemoryResource resource, int device_id, StreamHandle* stream):
    """Make a buffer that owns nothing yet. The stream's reference passes to the buffer."""
    cdef Buffer self = Buffer.__new__(Buffer)
    self.pointer = pointer
    self.size = size
    self.resource = resource
    self.device_id = device_id
    self.stream = stream
    self.deleter = resource.deleter if resource is not None else NULL
    return self


cdef bint _is_ended(Record record) noexcept:
    cdef int state = record.state()
    return state == STATE_RELEASED or state == STATE_TRANSFERRED


cdef class Buffer(Record):
    """A piece of memory and the answer to the question who must return it.

    Buffers come from a :class:`MemoryResource`, from :meth:`VirtualMemoryResource.modify_allocation`, or from
    :meth:`from_handle`. Each is in one state of :class:`Ownership`, readable as :attr:`ownership`. Leaving a ``with``
    block closes the buffer; so does dropping the last reference to it.

    Notes
    -----
    Methods may be called from any thread. Where two threads close or transfer one buffer, one wins; the other gets
    :attr:`CloseResult.IN_PROGRESS`, :attr:`CloseResult.NOTHING` or an :class:`OwnershipError`, and nothing is freed
    twice.

    Examples
    --------
    >>> with mr.allocate(1 << 20, stream=stream) as buffer:  # doctest: +SKIP
    ...     buffer.ownership
    <Ownership.OWNED: 1>
    """

    def __init__(self, *args, **kwargs):
        raise RuntimeError("Buffer objects cannot be made directly; use a MemoryResource or Buffer.from_handle")

    def __del__(self):
        release_from_collection(self)

    def __dealloc__(self):
        # A backstop. An object whose __del__ did not run (another class's __del__ hid it) still asks the same word.
        # A Python-defined resource cannot be asked from here: in a reference cycle it may already be emptied.
        if self.deleter != ask_python:
            release_from_collection(self)

    @staticmethod
    def from_handle(ptr, size, mr=None, owner=None, *, stream=None):
        """Make a buffer around memory that exists already.

        Parameters
        ----------
        ptr : int, CUdeviceptr or None
            Where the memory begins.
        size : int
            Its size in bytes.
        mr : MemoryResource, optional
            The resource that frees the memory. The buffer is then OWNED, and ``mr.deallocate`` is asked once.
        owner : object, optional
            Whoever owns the memory. It is kept alive while the buffer is open; the buffer is BORROWED.
        stream : Stream, optional
            The stream that orders the free, with ``mr``. By default the default stream of the current context; a
            resource whose memory no device can reach needs none.

        Returns
        -------
        Buffer
            OWNED with ``mr``, BORROWED otherwise.

        Raises
        ------
        ValueError
            If ``mr`` and ``owner`` are both given, or ``size`` or ``ptr`` is negative.
        TypeError
            If an argument has the wrong type.
        OwnershipError
            If an open buffer of a built-in ``mr`` already owns this address.
        RuntimeError
            If a default stream would have to be recorded while no context is current.

        Notes
        -----
        A call that raises has taken nothing: the memory is still the caller's.
        """
        cdef uintptr_t address = pointer_argument(ptr, "ptr")
        cdef size_t bytes_ = size_argument(size, "size")
        cdef MemoryResource resource
        cdef StreamHandle* order = NULL
        cdef Buffer self
        if mr is not None and owner is not None:
            raise ValueError("owner and mr cannot be given together: the memory has one owner")
        if mr is None:
            if stream is not None:
                Stream_accept(stream)
            self = new_buffer(address, bytes_, None, -1, NULL)
            self.owner = owner
            self.begin(STATE_BORROWED, None, 0)
            return self
        if not isinstance(mr, MemoryResource):
            raise TypeError(f"mr must be a MemoryResource, got {type(mr).__name__}: {mr!r}")
        resource = mr
        if stream is not None:
            order = bind_stream(Stream_accept(stream))
        elif resource.deleter != ask_python or resource.is_device_accessible:
            order = bind_default_stream()
            if order == NULL:
                raise RuntimeError(
                    "the default stream cannot be recorded while no CUDA context is current; give stream=, or call "
                    "Device.set_current() first"
                )
        self = new_buffer(address, bytes_, resource, -1, order)
        resource.own(self)
        return self

    def close(self, stream=None):
        """Return the memory, or end the borrow. Closing twice is harmless.

        Parameters
        ----------
        stream : Stream, optional
            The stream that orders this release. By default the recorded one.

        Returns
        -------
        CloseResult
            What was done; ``DONE`` where the memory was returned.

        Raises
        ------
        CUDAError
            If the driver refuses. The buffer stays OWNED; the next ``close`` goes on where this one stopped.
        OwnershipError
            If another thread is moving the buffer at this moment.
        TypeError, RuntimeError
            If ``stream`` is not a stream, or closed. Nothing has happened then.
        Exception
            Whatever a Python-defined ``deallocate`` raises; by raising it promises that nothing was freed.

        Notes
        -----
        Virtual memory is returned at once: the call waits, without the GIL, for the ordering stream. A capturing
        stream is refused before anything happens.
        """
        cdef StreamHandle* order = NULL
        if stream is None:
            return _RESULTS[release(self, EVENT_BEGIN_RELEASE, NULL)]
        order = bind_stream(Stream_accept(stream))
        try:
            return _RESULTS[release(self, EVENT_BEGIN_RELEASE, order)]
        finally:
            release_stream(order)

    def __enter__(self):
        self.ensure_usable()
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        # A Python-defined deallocate that failed may have freed or not: it is asked again by an explicit close only.
        cdef int event = EVENT_BEGIN_AUTOMATIC_RELEASE if self.deleter == ask_python else EVENT_BEGIN_RELEASE
        if exc_value is None:
            release(self, event, NULL)
            return
        try:
            release(self, event, NULL)
        except Exception as error:
            _add_note(exc_value, f"leaving the block could not return {self.describe()}: {error}")

    def set_deallocation_stream(self, stream):
        """Replace the stream that orders the release. Nothing waits.

        Parameters
        ----------
        stream : Stream
            The new stream. The caller orders it behind the uses of the memory.

        Raises
        ------
        TypeError
            If ``stream`` is None or no stream; the old stream stays.
        OwnershipError
            If the buffer is closed.
        """
        cdef StreamHandle* order
        cdef StreamHandle* old
        order = bind_stream(Stream_accept(stream))
        try:
            self.ensure_usable()
            old = self.stream
            self.stream = order
            order = old
        finally:
            release_stream(order)  # the old stream, or the new one that was refused

    # -- what can be seen in every state ---------------------------------------------------------------------------

    @property
    def handle(self):
        """int: the address, 0 once the buffer is closed or transferred."""
        return 0 if _is_ended(self) else <size_t>self.pointer

    @property
    def size(self):
        """int: the size in bytes, 0 once the buffer is closed or transferred.

        Of virtual memory this is the requested size rounded up to the granularity.
        """
        return 0 if _is_ended(self) else self.size

    @property
    def memory_resource(self):
        """MemoryResource or None: what frees the memory; None once closed, and for borrowed memory."""
        return None if _is_ended(self) else self.resource

    @property
    def owner(self):
        """object or None: whoever owns borrowed memory."""
        return None if _is_ended(self) else self.owner

    @property
    def is_closed(self):
        """bool: whether the buffer no longer stands for its memory (RELEASED or TRANSFERRED)."""
        return _is_ended(self)

    def __eq__(self, other):
        cdef Buffer that
        if not isinstance(other, Buffer):
            return NotImplemented
        if self is other:
            return True
        that = other
        return (
            not _is_ended(self)
            and not _is_ended(that)
            and self.pointer == that.pointer
            and self.size == that.size
        )

    def __hash__(self):
        # Of the address and size at creation, for ever: a buffer in a set must be found after its close.
        return hash((<size_t>self.pointer, self.size))

    def __repr__(self):
        cdef int state = self.state()
        name = self.ownership.name
        if state == STATE_TRANSFERRED:
            name += f" {self.transferred_to.name}"
        return f"<{type(self).__name__} #{self.serial} {name} ptr={<size_t>self.pointer:#x} size={self.size}>"

    # -- what needs an open buffer ---------------------------------------------------------------------------------

    @property
    def mapped_size(self):
        """int: how many bytes of physical memory are mapped. The size, for memory that is not virtual."""
        self.ensure_usable()
        return self.size if self.range is None else self.range.mapped

    @property
    def capacity(self):
        """int: up to how many bytes the buffer can certainly grow without changing its address."""
        self.ensure_usable()
        return self.size if self.range is None else self.range.capacity

    @property
    def device_id(self):
        """int: ordinal of the device whose memory this is; -1 for memory of the host."""
        self.ensure_usable()
        if self.resource is not None:
            return self.resource.device_id
        return _pointer_attributes(self)[0]

    @property
    def is_device_accessible(self):
        """bool: whether a device can use the memory."""
        self.ensure_usable()
        if self.resource is not None:
            return self.resource.is_device_accessible
        return _pointer_attributes(self)[1]

    @property
    def is_host_accessible(self):
        """bool: whether the host can use the memory."""
        self.ensure_usable()
        if self.resource is not None:
            return self.resource.is_host_accessible
        return _pointer_attributes(self)[2]

    @property
    def is_managed(self):
        """bool: whether the memory is managed (moves between host and device by itself)."""
        self.ensure_usable()
        if self.resource is not None:
            return self.resource.is_managed
        return _pointer_attributes(self)[3]

    @property
    def is_mapped(self):
        """bool: whether the buffer was imported from another process. Never, in this build."""
        self.ensure_usable()
        return False


cdef tuple _pointer_attributes(Buffer buffer):
    """Ask the driver where borrowed memory lives: (device id, device accessible, host accessible, managed)."""
    cdef cydriver.CUpointer_attribute names[3]
    cdef void* values[3]
    cdef unsigned int memory_type = 0
    cdef int ordinal = -1
    cdef unsigned int managed = 0
    cdef cydriver.CUresult result
    ensure_driver()
    names[0] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    names[1] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    names[2] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    values[0], values[1], values[2] = &memory_type, &ordinal, &managed
    with nogil:
        result = cydriver.cuPointerGetAttributes(3, names, values, buffer.pointer)
    check(result, b"cuPointerGetAttributes")
    if memory_type == 0:  # not the driver's: ordinary memory of the host
        return (-1, False, True, False)
    host = memory_type == cydriver.CUmemorytype.CU_MEMORYTYPE_HOST
    return (-1 if host and not managed else ordinal, True, host or bool(managed), bool(managed))


cdef int _add_note(object error, str text) except -1:
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:  # Python 3.10 has no notes; the same list, for tools that print it
        error.__dict__.setdefault("__notes__", []).append(text)
    return 0


# --- resources ----------------------------------------------------------------------------------------------------

cdef int ask_python(Record record, StreamHandle* order) except -1:
    """The deleter of Python-defined resources: ask ``deallocate``, once, with the size that was allocated."""
    cdef Stream stream = default_stream() if order == NULL else wrap_stream(order)
    cdef object thread, outer
    if record.range is None:
        record.resource.deallocate(<size_t>record.pointer, record.size, stream=stream)
        return 0
    # A subclass of a built-in resource: its deallocate will call the built-in one, which must find this record.
    thread = PyThread_get_thread_ident()
    outer = _asked.get(thread)
    _asked[thread] = record
    try:
        record.resource.deallocate(<size_t>record.pointer, record.size, stream=stream)
    finally:
        if outer is None:
            del _asked[thread]
        else:
            _asked[thread] = outer
    return 0


cdef Record record_being_asked(MemoryResource resource, uintptr_t pointer):
    """Return the record whose release is asking ``resource`` on this thread to free ``pointer``, or None."""
    cdef Record record = _asked.get(PyThread_get_thread_ident())
    if record is None or record.resource is not resource or record.pointer != pointer:
        return None
    return record


cdef class MemoryResource:
    """Base class of everything that allocates memory; subclass it in Python to define your own.

    A subclass overrides :meth:`allocate`, :meth:`deallocate` and the properties. It need not call
    ``super().__init__``.

    Notes
    -----
    ``allocate`` makes its buffer with ``Buffer.from_handle(ptr, size, mr=self, stream=stream)``. ``deallocate`` is
    then asked exactly once, with the size that was allocated, at close or collection, on whatever thread that
    happens. It must be safe to call from any thread and must not rely on the GIL for more than a single operation.
    Raising promises that nothing was freed: the close raises the same exception, and the next explicit close asks
    again. No lock of this package is held meanwhile, so it may allocate and close other buffers.

    Examples
    --------
    >>> class Counting(MemoryResource):
    ...     def __init__(self, inner):
    ...         self.inner, self.live = inner, 0
    ...     def deallocate(self, ptr, size, *, stream):
    ...         self.live -= size
    """

    def __cinit__(self, *args, **kwargs):
        self.deleter = ask_python

    cdef int own(self, Buffer buffer) except -1:
        """Let a buffer own memory that exists already. Raises before anything is taken."""
        buffer.begin(STATE_OWNED, None, 0)
        return 0

    def allocate(self, size, *, stream):
        """Allocate memory. To be overridden.

        Parameters
        ----------
        size : int
            Bytes wanted.
        stream : Stream
            The stream that orders the allocation.

        Returns
        -------
        Buffer
            The new buffer, OWNED.
        """
        raise TypeError(f"{type(self).__name__}.allocate must be overridden by the subclass")

    def deallocate(self, ptr, size, *, stream):
        """Free memory that :meth:`allocate` made. To be overridden.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            The size that was allocated, in bytes.
        stream : Stream
            A live stream that orders the free; never None.

        Raises
        ------
        Exception
            Anything. It promises that nothing was freed.
        """
        raise TypeError(f"{type(self).__name__}.deallocate must be overridden by the subclass")

    @property
    def is_device_accessible(self):
        """bool: whether a device can use this resource's memory. To be overridden."""
        raise TypeError(f"{type(self).__name__}.is_device_accessible must be overridden by the subclass")

    @property
    def is_host_accessible(self):
        """bool: whether the host can use this resource's memory. To be overridden."""
        raise TypeError(f"{type(self).__name__}.is_host_accessible must be overridden by the subclass")

    @property
    def is_managed(self):
        """bool: whether this resource's memory is managed."""
        return False

    @property
    def device_id(self):
        """int: ordinal of the device whose memory this is. To be overridden where there is one."""
        raise TypeError(f"{type(self).__name__}.device_id must be overridden by the subclass")
