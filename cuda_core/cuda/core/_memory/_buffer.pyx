# SPDX-License-Identifier: Apache-2.0
"""``Buffer``, the handle of an allocation."""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc

from cuda.core._driver cimport is_finalizing
from cuda.core._memory._allocation cimport CLOSE_DONE, NEVER_WAIT, QUEUE_IF_BUSY, TOLD, WAIT, Keeper, Record, is_open
from cuda.core._memory._arguments cimport pointer_argument, size_argument, small_integer
from cuda.core._memory._asking cimport (
    Asking,
    begin_asking,
    end_asking,
    leave_outcome_before_interrupt,
    waiting_of_asked,
)
from cuda.core._memory._copy cimport copy as copy_bytes, ensure_copy_options
from cuda.core._memory._dlpack cimport classify_dl_device, export_buffer
from cuda.core._memory._fill cimport fill
from cuda.core._memory._ipc cimport IPCBufferDescriptor
from cuda.core._memory._loans cimport Loan, close_record, end_loan, lend, new_loan
from cuda.core._memory._memory_resource cimport MemoryResource, ask_python, came_behind_the_free
from cuda.core._memory._ownership cimport (
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_BEGIN_RELEASE,
    STATE_BORROWED,
    STATE_OWNED,
    STATE_RELEASED,
    STATE_TRANSFERRED,
    TAKER_DETACHED,
    TAKER_MOVED,
    VERDICT_CLOSED,
    VERDICT_NOT_OWNER,
)
from cuda.core._memory._pointer_attributes cimport pointer_attributes
from cuda.core._memory._queue cimport wait_for_room
from cuda.core._memory._release cimport comes_out_of, release_from_collection, report
from cuda.core._memory._transfer cimport Allocation, hand_over
from cuda.core._memory._virtual_descriptor cimport VirtualBufferDescriptor
from cuda.core._stream cimport Stream, Stream_accept, bind_default_stream, bind_stream, stream_for_python
from cuda.core._stream_handle cimport (
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    StreamHandle,
    add_stream,
    bind_token,
    drop_stream,
)

from cuda.core._error_text import not_a_buffer, said, shown
from cuda.core._errors import CUDAError, OwnershipError
from cuda.core._memory._allocation import FreeFunction
from cuda.core._memory._array_view import ArrayView
from cuda.core._memory._release import CloseResult

__all__ = ["Buffer"]

cdef const char* _BYTES = "B"

cdef tuple _RESULTS = tuple(CloseResult(number) for number in range(len(CloseResult)))


cdef Buffer new_buffer(uintptr_t pointer, size_t size, MemoryResource resource, int device_id, StreamHandle* stream):
    """Make a buffer of the resource's kind that owns nothing yet. The stream's reference passes to the buffer, or ends
    where there is no memory for one."""
    cdef Buffer self
    try:
        if resource is None or resource.buffer_type is None:
            self = Buffer.__new__(Buffer)
        else:
            self = resource.buffer_type.__new__(resource.buffer_type)
    except BaseException:
        drop_stream(stream)
        raise
    _describe(self, pointer, size, resource, stream)
    self.device_id = device_id
    return self


cdef void _describe(Buffer self, uintptr_t pointer, size_t size, MemoryResource resource,
                    StreamHandle* stream) noexcept:
    """Write down what a buffer that owns nothing yet is about. The stream's reference passes to the buffer."""
    self.pointer = pointer
    self.size = size
    self.resource = resource
    self.stream = stream
    self.deleter = resource.deleter if resource is not None else NULL


cdef StreamHandle* _order_of_close(Buffer self, Stream stream) except? NULL:
    """Return the handle of the stream that was given to a close; NULL for a default stream of nowhere.

    Memory that no device can reach has no stream, and its ``deallocate`` is handed a default stream, on any thread. A
    resource around it closes its inner buffer with just that stream.
    """
    cdef StreamHandle* handle
    cdef bint of_nowhere
    if self.stream == NULL and self.deleter == ask_python:
        handle = stream._hold()
        of_nowhere = handle.kind in (STREAM_LEGACY, STREAM_PER_THREAD) and handle.context == NULL
        try:
            if of_nowhere:
                return bind_token(handle)
        finally:
            drop_stream(handle)
    return bind_stream(stream)


cdef int ask_function(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of ``from_handle(deallocate=)``."""
    cdef Stream stream = stream_for_python(order)
    cdef Asking outer = begin_asking(record, waiting)
    cdef int outcome = CLOSE_DONE
    cdef bint done = False
    try:
        record.resource.function(<size_t>record.pointer, record.size, stream)
    except BaseException as error:
        done = came_behind_the_free(record, error)
        if not done:
            comes_out_of(record, error)
        raise
    finally:
        outcome = end_asking(record, outer)
        if done:
            leave_outcome_before_interrupt(outcome)
    return outcome


cdef int take_handle(Buffer self, object ptr, object size, object mr, object owner, object stream,
                     object deallocate) except -1:
    """Let a new buffer stand for memory that exists already: what :meth:`Buffer.from_handle` does."""
    cdef long long number = small_integer(ptr)
    cdef uintptr_t address = <uintptr_t>number if number >= 0 else pointer_argument(ptr, "ptr")
    cdef size_t bytes_
    cdef MemoryResource resource
    cdef StreamHandle* order = NULL
    number = small_integer(size)
    bytes_ = <size_t>number if number >= 0 else size_argument(size, "size")
    if bytes_ and address + (bytes_ - 1) < address:
        raise ValueError(f"ptr and size must name memory within 64 bits, got {bytes_} bytes at {address:#x}")
    if mr is not None and owner is not None:
        raise ValueError("owner and mr cannot be given together: the memory has one owner")
    if deallocate is not None:
        if mr is not None:
            raise ValueError("deallocate and mr cannot be given together: the memory is freed once")
        if not callable(deallocate):
            raise TypeError(f"deallocate must be callable, got {type(deallocate).__name__}: {shown(deallocate)}")
        order = bind_default_stream() if stream is None else bind_stream(Stream_accept(stream))
        _describe(self, address, bytes_, None, order)
        self.owner = owner
        self.resource = FreeFunction(deallocate)
        self.deleter = ask_function
        self.begin(STATE_OWNED, None, 0)
        return 0
    if mr is None:
        if stream is not None:
            Stream_accept(stream)
        _describe(self, address, bytes_, None, NULL)
        self.owner = owner
        self.begin(STATE_BORROWED, None, 0)
        return 0
    if not isinstance(mr, MemoryResource):
        raise TypeError(f"mr must be a MemoryResource, got {type(mr).__name__}: {shown(mr)}")
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
    _describe(self, address, bytes_, resource, order)
    resource.own(self)
    return 0


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
    >>> with mr.allocate(1 << 20, stream=stream) as buffer:
    ...     buffer.ownership
    <Ownership.OWNED: 1>
    >>> buffer.ownership
    <Ownership.RELEASED: 0>
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("Buffer objects cannot be made directly; use a MemoryResource or Buffer.from_handle")

    def __del__(self):
        if is_open(self):
            release_from_collection(self)

    cdef void end_unfinished(self) noexcept:
        # A backstop. An object whose __del__ did not run (another class's __del__ hid it) still asks the same word.
        # A Python-defined resource cannot be asked from here: in a reference cycle it may already be emptied.
        if self.deleter != ask_python and self.deleter != ask_function:
            release_from_collection(self)
        elif self.state() == STATE_OWNED and self.reported != TOLD and not is_finalizing():
            self.reported = TOLD
            report(
                f"{self.describe()} was dropped without its finalizer: a class derived from {Buffer.__name__} has a "
                "__del__ that does not call the inherited one. It stays allocated."
            )

    @staticmethod
    def from_handle(
        ptr: DevicePointerType,
        size: int,
        mr: MemoryResource | None = None,
        owner: object | None = None,
        *,
        stream: Stream | GraphBuilder | None = None,
        deallocate: Callable[[int, int, Stream | None], object] | None = None,
    ) -> Buffer:
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
        deallocate : callable, optional
            What frees the memory, asked once as ``deallocate(ptr, size, stream)``. The buffer is then OWNED. With
            ``owner``, the owner is kept alive until after the call.

        Returns
        -------
        Buffer
            OWNED with ``mr`` or ``deallocate``, BORROWED otherwise.

        Raises
        ------
        ValueError
            If ``mr`` and ``owner`` are both given, ``size`` or ``ptr`` is negative, or the memory would not end within
            64 bits.
        TypeError
            If an argument has the wrong type.
        OwnershipError
            If an open buffer of a built-in ``mr`` already owns this address.
        RuntimeError
            If a default stream would have to be recorded while no context is current.

        Notes
        -----
        A call that raises has taken nothing: the memory is still the caller's.

        Examples
        --------
        >>> view = Buffer.from_handle(buffer.handle, buffer.size, owner=buffer)
        >>> view.ownership
        <Ownership.BORROWED: 2>
        >>> def free(ptr, size, stream):
        ...     pinned.deallocate(ptr, size)
        >>> allocation = pinned.allocate(64).detach()
        >>> address, size = allocation.handle, allocation.size
        >>> allocation.handed_over()
        >>> with Buffer.from_handle(address, size, deallocate=free) as taken:
        ...     taken.ownership
        <Ownership.OWNED: 1>
        """
        cdef Buffer self = Buffer.__new__(Buffer)
        take_handle(self, ptr, size, mr, owner, stream, deallocate)
        return self

    def detach(self) -> Allocation:
        """Give the allocation out of the hands of buffers; the buffer becomes TRANSFERRED.

        Returns
        -------
        Allocation
            The allocation with everything that its free needs. Somebody must adopt it, or declare that foreign code
            frees it.

        Raises
        ------
        BufferError
            If loans on the memory are open.
        OwnershipError
            If the buffer is BORROWED, closed, or being released or moved by another call.

        Examples
        --------
        >>> allocation = buffer.detach()
        >>> buffer.transferred_to
        <TransferredTo.DETACHED: 2>
        >>> buffer = Buffer.adopt(allocation)
        """
        cdef object held = self.held_resource()
        cdef MemoryResource resource = held if isinstance(held, MemoryResource) else None
        cdef Allocation allocation
        cdef object entry
        cdef int where = (<Record>self).device_id
        if where < 0 and self.state() == STATE_OWNED:
            where = _device_of_memory(self)
        # What may fail comes before the hand-over: after it the buffer owns nothing that could stay with it.
        allocation = Allocation.__new__(Allocation)
        entry = resource.prepare_entry(self, allocation) if resource is not None else None
        hand_over(self, allocation, TAKER_DETACHED, "detached")
        allocation.device_id = where
        if resource is not None:
            resource.enter_owner(self, allocation, resource, entry)
        self.forget()
        return allocation

    @staticmethod
    def adopt(allocation: Allocation, mr: MemoryResource | None = None) -> Buffer:
        """Take up a detached allocation, once.

        Parameters
        ----------
        allocation : Allocation
            What :meth:`detach` returned.
        mr : MemoryResource, optional
            The resource that shall free it, of the same type and device as the one that made it. By default that one.

        Returns
        -------
        Buffer
            A new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong. The allocation can still be adopted.
        OwnershipError
            If it was adopted or handed over before.

        Examples
        --------
        >>> again = Buffer.adopt(buffer.detach())
        >>> again.close()
        <CloseResult.DONE: 0>
        """
        if not isinstance(allocation, Allocation):
            raise TypeError(f"allocation must be an Allocation, got {type(allocation).__name__}: {shown(allocation)}")
        return _take(allocation, mr, "adopted")

    def move_to(self, mr: MemoryResource) -> Buffer:
        """Let another resource of the same type and device free the memory; the buffer becomes TRANSFERRED.

        Parameters
        ----------
        mr : MemoryResource
            The new resource.

        Returns
        -------
        Buffer
            A new buffer for the same memory, OWNED.

        Raises
        ------
        BufferError
            If loans on the memory are open.
        TypeError, ValueError, OwnershipError
            If ``mr`` or the buffer does not allow it. Nothing has changed then.

        Examples
        --------
        >>> other = VirtualMemoryResource(device)
        >>> buffer = VirtualMemoryResource(device).allocate(2 << 20)
        >>> moved = buffer.move_to(other)
        >>> moved.memory_resource is other, buffer.transferred_to
        (True, <TransferredTo.MOVED: 3>)
        """
        self.ensure_usable()
        if mr is None:
            raise TypeError("mr must be a MemoryResource, got None")
        return _take(self, mr, "moved")

    def close(self, stream: Stream | GraphBuilder | None = None, *, wait: bool | None = None) -> CloseResult:
        """Return the memory, or end the borrow. Closing twice is harmless.

        Parameters
        ----------
        stream : Stream, optional
            The stream that orders this release. By default the recorded one.
        wait : bool, optional
            False: where work in flight would have to be waited for, queue the release behind it and return. True: wait.
            By default True, or what the resource says by an option ``wait_on_close``. The queue has a bound: while 1024
            releases of the process are queued, counted as allocations whatever their size, a call with False waits for
            one of them to be made. Where all of them are behind a capture it does not.

        Returns
        -------
        CloseResult
            What was done; ``DONE`` where the memory was returned, ``QUEUED`` where it will be.

        Raises
        ------
        CUDAError
            If the driver refuses. The buffer stays OWNED; the next ``close`` goes on where this one stopped.
        OwnershipError
            If another thread is moving the buffer at this moment.
        TypeError, RuntimeError
            If ``stream`` is not a stream, or closed, or ``wait`` is none of its values. Nothing has happened then.
        Exception
            Whatever a Python-defined ``deallocate`` raises; by raising it promises that nothing was freed.
        KeyboardInterrupt
            Or whatever the handler of a signal raises, while a full queue is waited for. Nothing has happened then: the
            buffer stays OWNED.

        Notes
        -----
        Virtual memory is returned at once: the call waits, without the GIL, for the ordering stream. A capturing
        stream is refused before anything happens. That wait is one of the driver's, which no signal ends; the wait for
        room in the queue looks for signals every 10 ms.

        Examples
        --------
        >>> buffer.close()
        <CloseResult.DONE: 0>
        >>> buffer.close()
        <CloseResult.NOTHING: 4>
        """
        cdef StreamHandle* order = NULL
        cdef int waiting = WAIT
        if wait is not None or self.range is not None:
            waiting = _how_to_wait(self, wait)
        if stream is None:
            return _RESULTS[close_record(self, EVENT_BEGIN_RELEASE, NULL, waiting)]
        order = _order_of_close(self, Stream_accept(stream))
        try:
            return _RESULTS[close_record(self, EVENT_BEGIN_RELEASE, order, waiting)]
        finally:
            drop_stream(order)

    def __enter__(self) -> Self:
        self.ensure_usable()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        # A Python-defined deallocate that failed may have freed or not: it is asked again by an explicit close only.
        cdef bint cannot_know = self.deleter == ask_python or self.deleter == ask_function
        cdef int event = EVENT_BEGIN_AUTOMATIC_RELEASE if cannot_know else EVENT_BEGIN_RELEASE
        if exc_val is None:
            close_record(self, event, NULL, _how_to_wait(self, None))
            return
        try:
            close_record(self, event, NULL, _how_to_wait(self, None))
        except Exception as error:
            _add_note(exc_val, f"leaving the block could not return {self.describe()}: {said(error)}")

    def set_deallocation_stream(self, stream: Stream | GraphBuilder) -> None:
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

        Examples
        --------
        >>> later = device.create_stream()
        >>> later.wait(stream)
        >>> buffer.set_deallocation_stream(later)
        """
        cdef StreamHandle* order
        self.ensure_usable()
        order = bind_stream(Stream_accept(stream))
        try:
            self.ensure_usable()  # another thread may have closed it meanwhile
            order = self.swap_stream(order)
        finally:
            drop_stream(order)  # the old stream, or the new one that was refused

    def record_stream(self, stream: Stream | GraphBuilder) -> None:
        """Add a stream to those that order the release. Nothing waits.

        Parameters
        ----------
        stream : Stream
            A stream that uses the memory. Giving one again changes nothing.

        Raises
        ------
        TypeError
            If ``stream`` is None or no stream.
        OwnershipError
            If the buffer is closed.

        Examples
        --------
        >>> second = device.create_stream()
        >>> second.wait(stream)
        >>> buffer.fill(0, stream=second)
        >>> buffer.record_stream(second)
        >>> buffer.close()  # behind the work of both
        <CloseResult.DONE: 0>
        """
        cdef StreamHandle* order
        self.ensure_usable()
        order = bind_stream(Stream_accept(stream))
        try:
            self.ensure_usable()  # another thread may have closed it meanwhile
        except BaseException:
            drop_stream(order)
            raise
        with cython.critical_section(self):
            self.stream = add_stream(self.stream, order)

    @property
    def release_on_collection(self) -> bool:
        """bool: whether a collection may free the memory. False: it reports and leaves the memory allocated.

        For memory whose free has to happen at a place that the program decides, such as a collective one. A resource
        can say so for all its buffers by an attribute of the same name.
        """
        self.ensure_usable()
        return not self.kept_by_collector and bool(getattr(self.held_resource(), "release_on_collection", True))

    @release_on_collection.setter
    def release_on_collection(self, value: bool) -> None:
        self.ensure_usable()
        self.kept_by_collector = not value

    # -- bytes -----------------------------------------------------------------------------------------------------

    def copy_to(
        self, dst: Buffer | None = None, *, stream: Stream | GraphBuilder, options: CopyOptions | None = None
    ) -> Buffer:
        """Copy all bytes to another buffer, in the order of a stream. Nothing waits.

        Parameters
        ----------
        dst : Buffer, optional
            Where to, of the same size. By default a new buffer of this buffer's resource, closed if the copy fails.
        stream : Stream
            The stream that orders the copy. It does not order the release of either buffer: see
            :meth:`record_stream`.
        options : CopyOptions, optional
            Hints for the copy. Not with ``LEGACY_DEFAULT_STREAM``, nor with a stream that is being captured. A driver
            older than CUDA 13.2 ignores them.

        Returns
        -------
        Buffer
            The destination.

        Raises
        ------
        ValueError
            If the sizes differ, the two overlap in a part, or ``dst`` is None and the buffer has no resource.
        TypeError
            If an argument has the wrong type, or the options do not go with the stream.
        OwnershipError
            If a buffer is closed, or being released or moved by another call.
        RuntimeError
            If the options ask for ``DURING_API_CALL`` and the driver is older than CUDA 13.2.
        CUDAError
            If the driver refuses.

        Notes
        -----
        Both buffers are lent for the length of the call. On a stream that is being captured, the graph holds both
        loans until it and everything made from it are gone. Memory of the host that the driver does not know is read,
        or written, before the call returns.

        Examples
        --------
        >>> copy = buffer.copy_to(stream=stream)
        >>> copy.size == buffer.size
        True
        """
        cdef Buffer target
        cdef object resource
        cdef bint made = dst is None
        self.ensure_usable()
        order = Stream_accept(stream)
        if made:
            resource = self.held_resource()
            if not isinstance(resource, MemoryResource) or self.state() == STATE_BORROWED:
                raise ValueError("a destination buffer must be provided (this buffer does not have a memory_resource)")
            ensure_copy_options(options, order, "copy_to")
            dst = resource.allocate(self.size, stream=order)
        if not isinstance(dst, Buffer):
            raise TypeError(not_a_buffer(dst, "dst"))
        target = dst
        try:
            copy_bytes(target, self, order, options, "copy_to")
        except BaseException as error:
            if made and target is not self:
                _close_unfilled(target, order, error)
            raise
        return dst

    def copy_from(
        self, src: Buffer, *, stream: Stream | GraphBuilder, options: CopyOptions | None = None
    ) -> None:
        """Copy all bytes from another buffer, in the order of a stream. Nothing waits.

        Parameters
        ----------
        src : Buffer
            Where from, of the same size.
        stream : Stream
            The stream that orders the copy, as for :meth:`copy_to`.
        options : CopyOptions, optional
            Hints for the copy, as for :meth:`copy_to`.

        Raises
        ------
        ValueError, TypeError, OwnershipError, RuntimeError, CUDAError
            As for :meth:`copy_to`.

        Notes
        -----
        The notes of :meth:`copy_to` hold here too.

        Examples
        --------
        >>> staging = pinned.allocate(buffer.size)
        >>> memoryview(staging)[:5] = b"hello"
        >>> buffer.copy_from(staging, stream=stream)
        >>> stream.sync()
        """
        cdef Buffer source
        self.ensure_usable()
        order = Stream_accept(stream)
        if not isinstance(src, Buffer):
            raise TypeError(not_a_buffer(src, "src"))
        source = src
        copy_bytes(self, source, order, options, "copy_from")

    def fill(self, value: int | BufferProtocol, *, stream: Stream | GraphBuilder) -> None:
        """Fill the memory with a repeated pattern, in the order of a stream. Nothing waits.

        Parameters
        ----------
        value : int or object with the buffer protocol
            An integer in [0, 256), or 1, 2 or 4 contiguous bytes, in the order in which they shall lie in memory.
        stream : Stream
            The stream that orders it. It does not order the release of the buffer: see :meth:`record_stream`.

        Raises
        ------
        TypeError
            If ``value`` is neither, or ``stream`` is no stream.
        OverflowError
            If an integer is outside [0, 256).
        ValueError
            If the pattern has another length, or size and address of the buffer are not multiples of it.
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        CUDAError
            If the driver refuses, as it does for memory of the host that it does not know.

        Notes
        -----
        The buffer is lent for the length of the call; on a stream that is being captured, to the graph.

        Examples
        --------
        >>> buffer.fill(0, stream=stream)
        >>> buffer.fill(b"\\xff\\x00", stream=stream)
        """
        self.ensure_usable()
        fill(self, value, Stream_accept(stream))

    # -- loans -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: slice) -> Buffer:
        """Return the bytes of a slice as a buffer of their own: BORROWED, with a loan on this one while it is open."""
        cdef Buffer part
        cdef Loan loan
        if not isinstance(key, slice):
            raise TypeError(f"a buffer is indexed by slices of bytes, got {type(key).__name__}: {shown(key)}")
        self.ensure_usable()
        begin, end, step_ = key.indices(self.size)
        if step_ != 1:
            raise ValueError(f"the slice must have step 1, got {shown(step_)}")
        loan = new_loan(self, "sliced")
        part = new_buffer(self.pointer + <size_t>begin, max(0, end - begin), None, self.device_id, NULL)
        part.owner = loan
        part.begin(STATE_BORROWED, None, 0)
        return part

    def array_view(self, typestr: str = "|u1", shape: int | Sequence[int] | None = None) -> ArrayView:
        """Return a view with the array interfaces of other libraries. Its life is a loan on this buffer.

        Parameters
        ----------
        typestr : str or numpy.dtype, optional
            Type of an element, as the array interface writes it. Bytes by default.
        shape : int or tuple of int, optional
            Extent of each dimension, in C order. By default everything, in one dimension.

        Returns
        -------
        ArrayView
            A view; close it or leave its ``with`` block when the last consumer is done.

        Raises
        ------
        TypeError, ValueError
            If the shape does not fit into the buffer, or an argument is wrong.
        OwnershipError
            If the buffer is closed.

        Examples
        --------
        >>> with pinned.allocate(64).array_view("<f4", shape=(4, 4)) as view:
        ...     numpy.asarray(view).shape
        (4, 4)
        """
        self.ensure_usable()
        return ArrayView(self, typestr, shape)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Lend the bytes to another library, in a capsule of DLPack. Its life is a loan on this buffer.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream: 1 and 2 for the default streams, or an address. Its later work waits for the
            streams recorded here, and it joins the streams that order the release: it must live until the memory is
            returned. None stands for the legacy default stream; for memory that the host can use, the call waits for
            the recorded streams instead. -1 orders nothing.
        max_version : tuple of int, optional
            The newest version of DLPack that the consumer understands.
        dl_device : tuple of int, optional
            Where the consumer wants the data, as a device type and device id. By default where it is.
        copy : bool, optional
            True: export a copy. False: never copy. None: copy where ``dl_device`` makes it necessary.

        Returns
        -------
        PyCapsule
            A one-dimensional array of ``int8``.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; ``stream=0`` is. No driver call is made.
        BufferError
            If the device or the copy asked for cannot be given.
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        CUDAError
            If the driver refuses, or one of the streams is being captured and the other is not in that capture.

        Examples
        --------
        >>> array = numpy.from_dlpack(pinned_buffer)  # doctest: +SKIP
        """
        return export_buffer(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the memory lies as a DLPack device type and device id.

        Raises
        ------
        OwnershipError
            If the buffer is closed.
        """
        self.ensure_usable()
        return classify_dl_device(self)

    def __getbuffer__(self, Py_buffer* view, int flags):
        cdef Py_ssize_t* extent
        try:
            lend(self, "exported")
        except OwnershipError as error:
            view.obj = None
            raise BufferError(str(error)) from error
        try:
            if not _is_host_accessible(self):
                raise BufferError(f"the host cannot reach this memory ({self.describe()})")
            if self.pointer == 0 and self.size:
                raise BufferError(f"nothing is at address 0 ({self.describe()})")
            extent = <Py_ssize_t*>malloc(2 * sizeof(Py_ssize_t))
            if extent == NULL:
                raise MemoryError("no memory for a view")
        except BaseException:
            view.obj = None
            end_loan(self)
            raise
        extent[0] = self.size
        extent[1] = 1
        view.buf = <void*>self.pointer
        view.len = self.size
        view.itemsize = 1
        view.readonly = 0
        view.ndim = 1
        view.format = <char*>_BYTES if flags & PyBUF_FORMAT else NULL
        view.shape = extent if flags & PyBUF_ND else NULL
        view.strides = extent + 1 if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = extent
        view.obj = self

    def __releasebuffer__(self, Py_buffer* view):
        free(view.internal)
        end_loan(self)

    # -- other processes -------------------------------------------------------------------------------------------

    @property
    def ipc_descriptor(self) -> IPCBufferDescriptor | VirtualBufferDescriptor:
        """IPCBufferDescriptor or VirtualBufferDescriptor: what another process needs to import the memory.

        For memory of a pool it is a name that keeps nothing alive; of a buffer that was imported, it is the exporter's.
        For virtual memory each reading makes a new one, which holds file descriptors until it is closed or gone.

        Raises
        ------
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        RuntimeError
            If the buffer is not of a resource that was made with ``ipc_enabled=True``, or is virtual memory that was
            made with ``handle_type=None`` or imported itself.
        CUDAError
            If the driver refuses.
        """
        self.ensure_usable()
        known = self._name()
        if known is not None and not isinstance(known, IPCBufferDescriptor):
            return known.descriptor
        if known is None:
            resource = self.held_resource()
            if self.state() == STATE_BORROWED or not isinstance(resource, MemoryResource):
                raise RuntimeError(f"the memory is of no resource that could share it ({self.describe()})")
            lend(self, "exported")
            try:
                known = (<MemoryResource>resource).export_buffer(self)
                if not isinstance(known, IPCBufferDescriptor):
                    return known  # it holds something for the caller to close
                with cython.critical_section(self):  # the first name stays
                    if self.known_as is None:
                        self.known_as = known
            finally:
                end_loan(self)
            known = self._name()
        return known

    cdef object _name(self):
        with cython.critical_section(self):
            return self.known_as

    @classmethod
    def from_ipc_descriptor(
        cls,
        mr: DeviceMemoryResource | PinnedMemoryResource | VirtualMemoryResource,
        ipc_descriptor: IPCBufferDescriptor | VirtualBufferDescriptor,
        *,
        stream: Stream | GraphBuilder,
    ) -> Buffer:
        """Import a buffer of another process.

        Parameters
        ----------
        mr : DeviceMemoryResource, PinnedMemoryResource or VirtualMemoryResource
            The resource of the exporter, opened here with ``from_allocation_handle`` or received through
            ``multiprocessing``. For virtual memory any resource of this process for the same place: the rights are
            those of its options.
        ipc_descriptor : IPCBufferDescriptor or VirtualBufferDescriptor
            What :attr:`ipc_descriptor` was there. It stays the caller's, and can be imported again.
        stream : Stream
            The stream that orders the release.

        Returns
        -------
        Buffer
            A buffer that owns its import: it must be closed here. The memory is the exporter's.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If the descriptor names no memory of this resource, or says a size beyond what is there.
        RuntimeError
            If the resource is not IPC-enabled, or closed.
        CUDAError
            If the driver refuses. Nothing is left, and the descriptor can be imported again.

        Notes
        -----
        Safe from any thread. What is imported twice is one mapping, which goes with the last buffer; the free is
        ordered behind the streams of all of them. The work of the exporter is ordered by an event that is shared, or by
        waiting.

        Examples
        --------
        >>> there = Buffer.from_ipc_descriptor(mr, descriptor, stream=stream)  # doctest: +SKIP
        """
        cdef MemoryResource resource
        if not isinstance(mr, MemoryResource):
            raise TypeError(f"mr must be a MemoryResource, got {type(mr).__name__}: {shown(mr)}")
        if not isinstance(ipc_descriptor, (IPCBufferDescriptor, VirtualBufferDescriptor)):
            raise TypeError(
                f"ipc_descriptor must be an IPCBufferDescriptor or a VirtualBufferDescriptor, "
                f"got {type(ipc_descriptor).__name__}: {shown(ipc_descriptor)}"
            )
        resource = mr
        return resource.import_buffer(ipc_descriptor, bind_stream(Stream_accept(stream)))

    @staticmethod
    def _reduce_helper(mr, ipc_descriptor):
        """Import a buffer that was received. The current context stays what it is."""
        cdef MemoryResource resource
        if not isinstance(mr, MemoryResource) or not isinstance(ipc_descriptor, IPCBufferDescriptor):
            raise ValueError(f"what was received is no buffer: {shown(mr)}, {shown(ipc_descriptor)}")
        resource = mr
        return resource.import_buffer(ipc_descriptor, NULL)

    def __copy__(self) -> Never:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it stands for one allocation; see copy_to")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it stands for one allocation; see copy_to")

    def __reduce__(self) -> tuple[object, ...]:
        known = self._name()
        if known is not None and not isinstance(known, IPCBufferDescriptor):
            return Buffer._reduce_helper, (known.resource_or_name(), known.descriptor)
        descriptor = self.ipc_descriptor
        resource = self.held_resource()
        reduced = (<MemoryResource>resource).reduce_buffer(self, descriptor)
        return reduced if reduced is not None else (Buffer._reduce_helper, (resource, descriptor))

    # -- what can be seen in every state ---------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """int: the address, 0 once the buffer is closed or transferred."""
        return <size_t>self.pointer if is_open(self) else 0

    @property
    def size(self) -> int:
        """int: the size in bytes, 0 once the buffer is closed or transferred.

        Of virtual memory this is the requested size rounded up to the granularity.
        """
        return self.size if is_open(self) else 0

    @property
    def memory_resource(self) -> MemoryResource | None:
        """MemoryResource or None: what frees the memory; None once closed, and for borrowed memory."""
        resource = self.held_resource()
        return resource if is_open(self) and isinstance(resource, MemoryResource) else None

    @property
    def owner(self) -> object:
        """object or None: whoever is kept alive for the memory; of a slice, the buffer that it is a part of."""
        owner = self.held_owner()
        if not is_open(self) or isinstance(owner, Keeper):
            return None
        return (<Loan>owner).held_record() if isinstance(owner, Loan) else owner

    @property
    def is_closed(self) -> bool:
        """bool: whether the buffer no longer stands for its memory (RELEASED or TRANSFERRED)."""
        return not is_open(self)

    def __eq__(self, other: object) -> bool:
        cdef Buffer that
        if not isinstance(other, Buffer):
            return NotImplemented
        if self is other:
            return True
        that = other
        return (
            is_open(self)
            and is_open(that)
            and self.pointer == that.pointer
            and self.size == that.size
        )

    def __hash__(self) -> int:
        # Of the address and size at creation, for ever: a buffer in a set must be found after its close.
        return hash((<size_t>self.pointer, self.size))

    def __repr__(self) -> str:
        cdef int state = self.state()
        name = self.ownership.name
        if state == STATE_TRANSFERRED:
            name += f" {self.transferred_to.name}"
        elif state == STATE_RELEASED and self.is_lost():
            name += " lost"
        elif state == STATE_OWNED and self.range is not None and self.range.paused.load():
            name += " paused"
        return f"<{type(self).__name__} #{self.serial} {name} ptr={<size_t>self.pointer:#x} size={self.size}>"

    # -- what needs an open buffer ---------------------------------------------------------------------------------

    @property
    def mapped_size(self) -> int:
        """int: how many bytes of physical memory are mapped; 0 while paused. The size, where memory is not virtual."""
        self.ensure_usable()
        if self.range is None:
            return self.size
        return 0 if self.range.paused.load() else self.range.mapped.load()

    @property
    def is_paused(self) -> bool:
        """bool: whether the memory is away and only the addresses are there; see :meth:`VirtualMemoryResource.pause`.

        Raises
        ------
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        """
        self.ensure_usable()
        return self.range is not None and self.range.paused.load() != 0

    @property
    def capacity(self) -> int:
        """int: up to how many bytes the buffer can certainly grow without changing its address."""
        self.ensure_usable()
        return self.size if self.range is None else self.range.capacity.load()

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is; -1 for memory of the host."""
        self.ensure_usable()
        source = _source_of_attributes(self)
        return source.device_id if source is not None else pointer_attributes(self.pointer)[0]

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use the memory."""
        self.ensure_usable()
        source = _source_of_attributes(self)
        return source.is_device_accessible if source is not None else pointer_attributes(self.pointer)[1]

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use the memory."""
        self.ensure_usable()
        return _is_host_accessible(self)

    @property
    def is_managed(self) -> bool:
        """bool: whether the memory is managed (moves between host and device by itself)."""
        self.ensure_usable()
        source = _source_of_attributes(self)
        return source.is_managed if source is not None else pointer_attributes(self.pointer)[3]

    @property
    def is_mapped(self) -> bool:
        """bool: whether the memory is another process's, imported here."""
        self.ensure_usable()
        owner = _parent(self).held_owner()
        return isinstance(owner, Keeper) and (<Keeper>owner).imported is not None


cdef int _how_to_wait(Buffer self, object wait) except -1:
    """Return what a close does about work in flight. Only resources of virtual memory have a choice of their own."""
    if wait is None:
        wait = self.range is None or getattr(self.held_resource(), "wait_on_close", True)
    elif wait is not True and wait is not False:
        raise TypeError(f"wait must be True, False or None, got {type(wait).__name__}: {shown(wait)}")
    if wait:
        return WAIT
    if waiting_of_asked(QUEUE_IF_BUSY) < NEVER_WAIT:  # no part of a collection, which nothing holds up
        wait_for_room()
    return QUEUE_IF_BUSY


cdef Record _parent(Record record):
    """Return the record that a slice is a part of, however often it was sliced; of others, the record itself."""
    cdef Record above
    owner = record.held_owner()
    while isinstance(owner, Loan):
        above = (<Loan>owner).held_record()
        if above is None:  # the slice was closed meanwhile
            break
        record, owner = above, above.held_owner()
    return record


cdef object _source_of_attributes(Record record):
    """Return the resource that knows where the memory lives, or None: then the driver is asked."""
    cdef Record heir = None
    record = _parent(record)  # a slice is where its parent is
    resource = record.held_resource()
    if resource is None and record.range is not None:
        with cython.critical_section(record.range):
            heir = record.range.heir  # the parent was closed, and the loans hold its memory
        if heir is not None:
            resource = heir.held_resource()
    return resource if isinstance(resource, MemoryResource) else None


cdef bint _is_host_accessible(Buffer buffer) except -1:
    source = _source_of_attributes(buffer)
    return source.is_host_accessible if source is not None else pointer_attributes(buffer.pointer)[2]


cdef int _device_of_memory(Buffer buffer) except? -2:
    """Return the device of memory whose record does not say it, or -1 where nobody knows."""
    try:
        return (<object>buffer).device_id  # the property, not the field of the same name
    except (CUDAError, RuntimeError, TypeError):
        return -1


cdef Buffer _take(Record source, object mr, str what):
    """Make a new buffer the owner of what ``source`` owns, freed by ``mr`` if one is given."""
    cdef object resource = source.held_resource()
    cdef MemoryResource before = resource if isinstance(resource, MemoryResource) else None
    cdef MemoryResource after = before
    cdef Buffer buffer
    cdef object entry = None
    if mr is not None:
        if not isinstance(mr, MemoryResource):
            raise TypeError(f"mr must be a MemoryResource, got {type(mr).__name__}: {shown(mr)}")
        if source.state() == STATE_BORROWED:
            raise source.refusal(VERDICT_NOT_OWNER, what)
        if source.state() != STATE_OWNED:
            raise source.refusal(VERDICT_CLOSED, what)
        if before is None:
            raise ValueError(
                f"the memory is freed by a function, not by a resource like {shown(mr)} ({source.describe()})"
            )
        after = mr
        after.ensure_same_kind(before)
    if after is not None:
        after.ensure_adoptable(source)
    buffer = new_buffer(0, 0, after, -1, NULL)
    if after is not None:
        entry = after.prepare_entry(source, buffer)
    hand_over(source, buffer, TAKER_MOVED, what)
    if isinstance(buffer.owner, Keeper):
        buffer.known_as = (<Keeper>buffer.owner).imported
    if after is not None:
        after.enter_owner(source, buffer, before, entry)
    source.forget()
    return buffer


cdef int _close_unfilled(Buffer target, Stream order, object error) except -1:
    """Close the destination of a copy that failed, which nobody else has. A failure is a note of the copy's."""
    try:
        target.close(order)
    except Exception as failed:
        _add_note(error, f"the new destination could not be returned, {target.describe()}: {said(failed)}")
    return 0


cdef int _add_note(object error, str text) except -1:
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:  # Python 3.10 has no notes; the same list, for tools that print it
        error.__dict__.setdefault("__notes__", []).append(text)
    return 0
