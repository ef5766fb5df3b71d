# SPDX-License-Identifier: Apache-2.0
"""``MemoryResource``, what makes and frees allocations, and how one that is written in Python is asked to free."""

cimport cython
from libc.stdint cimport uint64_t, uintptr_t

from cuda.core._memory._allocation cimport CLOSE_DONE, Record, end_left_behind, open_records_of, put_back_left
from cuda.core._memory._arguments cimport pointer_argument, size_argument
from cuda.core._memory._asking cimport (
    Asking,
    begin_asking,
    end_asking,
    is_freed_by_asking,
    leave_outcome_before_interrupt,
    record_being_asked,
)
from cuda.core._memory._interrupts cimport is_interrupt
from cuda.core._memory._ownership cimport CLAIM_MASK, LOANS_MASK, STATE_OWNED, TAKER_DETACHED, TAKER_LOANS
from cuda.core._memory._release cimport comes_out_of
from cuda.core._memory._transfer cimport (
    Allocation,
    abort_hand_over,
    begin_hand_over,
    commit_hand_over,
    has_passed_on,
)
from cuda.core._memory._unique_addresses cimport enter_unique, unique_entry, unique_owner
from cuda.core._stream cimport Stream, stream_for_python
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._errors import OwnershipError
from cuda.core._memory import _exit_pass

__all__ = ["MemoryResource"]

cdef object _taking = object()


cdef int ask_python(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of Python-defined resources: ask ``deallocate``, once, with the size that was allocated.

    What it frees with, the ``deallocate`` of a built-in resource or :meth:`MemoryResource.checked_free`, must find this
    record, and by it tell a release from a call by hand.
    """
    cdef Stream stream = stream_for_python(order)
    cdef Asking outer = begin_asking(record, waiting)
    cdef int outcome = CLOSE_DONE
    cdef bint done = False
    try:
        record.resource.deallocate(<size_t>record.pointer, record.size, stream=stream)
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


cdef bint came_behind_the_free(Record record, object error) noexcept:
    """Whether an interrupt has come where an author's code had freed already: between two of its instructions.

    The memory is back, so the release is done. The interrupt is raised behind it.
    """
    return is_interrupt(error) and is_freed_by_asking(record)


cdef class _CheckedFree:
    """What :meth:`MemoryResource.checked_free` returns: it claims an ``Allocation`` while its memory is freed."""

    cdef Allocation allocation      # None where there is nobody to be told
    cdef uintptr_t pointer
    cdef bint was_left              # with nobody to return it

    def __enter__(self):
        if self.allocation is not None:
            begin_hand_over(self.allocation, TAKER_DETACHED, "freed")
        self.was_left = end_left_behind(self.pointer)

    def __exit__(self, kind, value, traceback):
        cdef Allocation allocation = self.allocation
        self.allocation = None
        if kind is not None:
            if self.was_left:
                put_back_left(self.pointer)
            if allocation is not None:
                abort_hand_over(allocation)
            return
        if allocation is not None:
            commit_hand_over(allocation, None, TAKER_DETACHED)
            allocation.forget()


cdef _CheckedFree _NOBODY_TO_TELL = _CheckedFree.__new__(_CheckedFree)


cdef Allocation detached_at(object resource, uintptr_t pointer):
    """Return the ``Allocation`` that has an address of a resource, or None.

    Raises
    ------
    OwnershipError
        If an open buffer or loans have it, or another call is freeing or moving it.
    """
    cdef Allocation found = None
    cdef Record record
    cdef uint64_t bits
    for record in open_records_of(resource):
        if record.pointer != pointer:
            continue
        bits = record.word.load()
        if record.state() == STATE_OWNED:
            if bits & CLAIM_MASK:
                raise OwnershipError(f"another call is freeing the allocation at {<size_t>pointer:#x}, or moving it")
            if not isinstance(record, Allocation):
                raise OwnershipError(
                    f"an open buffer owns the allocation at {<size_t>pointer:#x}; close the buffer instead"
                )
            found = record
        elif record.taker() == TAKER_LOANS and bits & (LOANS_MASK | CLAIM_MASK):
            raise OwnershipError(
                f"loans hold the allocation at {<size_t>pointer:#x}; it goes with the last of them"
            )
        elif has_passed_on(record):
            raise OwnershipError(f"another call is moving the allocation at {<size_t>pointer:#x}")
    return found


cdef object device_of_resource(MemoryResource resource):
    try:
        return resource.device_id
    except (RuntimeError, TypeError):
        return -1  # of the host


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

    A subclass with a method ``at_exit(self)`` has it called once when the program ends, while Python still runs. After
    that no ``deallocate`` is asked any more.

    Examples
    --------
    Around another resource. An error in ``deallocate`` promises that nothing was freed, so what was forgotten for
    the free comes back:

    >>> from cuda.core import Buffer, Device, LegacyPinnedMemoryResource, MemoryResource
    >>> Device(0).set_current()
    >>> class Counting(MemoryResource):
    ...     is_device_accessible, is_host_accessible = True, True
    ...
    ...     def __init__(self, inner):
    ...         self.inner, self.buffers = inner, {}
    ...
    ...     def allocate(self, size, *, stream=None):
    ...         inner = self.inner.allocate(size, stream=stream)
    ...         self.buffers[inner.handle] = inner
    ...         return Buffer.from_handle(inner.handle, inner.size, mr=self, stream=stream)
    ...
    ...     def deallocate(self, ptr, size, *, stream=None):
    ...         inner = self.buffers.pop(ptr)  # before the free: then the address can be another thread's
    ...         try:
    ...             inner.close(stream)
    ...         except BaseException:
    ...             self.buffers[ptr] = inner
    ...             raise
    >>> counting = Counting(LegacyPinnedMemoryResource())
    >>> with counting.allocate(4096) as buffer:
    ...     print(buffer.size, len(counting.buffers))
    4096 1
    >>> len(counting.buffers)
    0

    With a ``deallocate`` of two steps, here the free of a pinned page beside each allocation of device memory. After
    an error the buffer is OWNED, and can be used: the memory itself goes last, and what is done by then is
    remembered, as ``deallocate`` is asked again from its beginning:

    >>> from cuda.bindings import driver
    >>> def value(answer):
    ...     error, *values = answer
    ...     if error != driver.CUresult.CUDA_SUCCESS:
    ...         raise RuntimeError(error.name)
    ...     return int(values[0]) if values else None
    >>> class WithPage(MemoryResource):
    ...     is_device_accessible, is_host_accessible, device_id = True, False, 0
    ...
    ...     def __init__(self):
    ...         self.pages = {}
    ...
    ...     def allocate(self, size, *, stream=None):
    ...         ptr = value(driver.cuMemAlloc(size))
    ...         try:
    ...             self.pages[ptr] = value(driver.cuMemAllocHost(4096))
    ...             return Buffer.from_handle(ptr, size, mr=self, stream=stream)
    ...         except BaseException:
    ...             self.deallocate(ptr, size)
    ...             raise
    ...
    ...     def deallocate(self, ptr, size, *, stream=None):
    ...         if ptr in self.pages:
    ...             value(driver.cuMemFreeHost(self.pages[ptr]))
    ...             del self.pages[ptr]
    ...         value(driver.cuMemFree(ptr))
    >>> buffer = WithPage().allocate(4096)
    >>> buffer.close().name
    'DONE'
    """

    def __cinit__(self):
        self.deleter = ask_python
        if hasattr(type(self), "at_exit"):
            _exit_pass.enter(self)

    cdef int own(self, Record buffer) except -1:
        """Let a buffer own memory that exists already. Raises before anything is taken."""
        cdef Record other
        cdef object entry
        if not buffer.size or not getattr(self, "unique_addresses", False):
            return self.begin_owning(buffer)
        entry = unique_entry(self, buffer)  # which may fail, and until the begin nothing is owned
        with cython.critical_section(_taking):  # of two that take one address at the same time, one does
            other = unique_owner(self, buffer)
            if other is None:
                enter_unique(self, buffer, entry)
                self.begin_owning(buffer)
        if other is not None:
            raise OwnershipError(
                f"{<size_t>buffer.pointer:#x} of this {type(self).__name__} has an owner already, {other.describe()}"
            )
        return 0

    cdef int begin_owning(self, Record buffer) except -1:
        buffer.begin(STATE_OWNED, None, 0)
        return 0

    cdef int ensure_same_kind(self, MemoryResource before) except -1:
        """Refuse to take over what another kind of resource has made."""
        if type(before) is not type(self):
            raise ValueError(f"mr is a {type(self).__name__}, the memory was made by a {type(before).__name__}")
        if before is not self and device_of_resource(before) != device_of_resource(self):
            raise ValueError(
                f"mr is for device {device_of_resource(self)}, the memory is of device {device_of_resource(before)}"
            )
        return 0

    cdef int ensure_adoptable(self, Record source) except -1:
        return 0

    cdef object prepare_entry(self, Record source, Record target):
        """Make what it takes to know ``target`` as the owner of what ``source`` owns now. May fail; no harm is done."""
        return True if source.size and getattr(self, "unique_addresses", False) else None

    cdef void enter_owner(self, Record source, Record target, MemoryResource before, object prepared) noexcept:
        """Know ``target`` as the owner from now on. The hand-over is done, so this cannot fail.

        Where memory is short the address is not watched any more. Its owner frees it all the same.
        """
        if prepared is not None:
            try:
                enter_unique(self, target, unique_entry(self, target))
            except MemoryError:
                pass

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{type(self).__name__} objects cannot be copied or pickled: each stands for memory of this process"
        )

    cdef object export_buffer(self, Record buffer):
        """Return the descriptor by which another process can import memory of this resource."""
        raise RuntimeError(f"{type(self).__name__} is not IPC-enabled")

    cdef object reduce_buffer(self, Record buffer, object descriptor):
        """Return what makes a buffer of a descriptor in the process that unpickles it; None for an import through the
        resource, which is then pickled along."""
        return None

    cdef Record import_buffer(self, object descriptor, StreamHandle* order):
        """Make a buffer for what another process has described, freed behind ``order``, whose reference is taken over.

        With NULL it is the default stream of the device's primary context.
        """
        drop_stream(order)
        raise RuntimeError(f"{type(self).__name__} is not IPC-enabled")

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
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

        Raises
        ------
        TypeError
            Always in this class: a subclass overrides it, and raises what describes a failure best.

        Examples
        --------
        >>> mr.allocate(1024, stream=stream).close()
        <CloseResult.DONE: 0>
        """
        raise TypeError(f"{type(self).__name__}.allocate must be overridden by the subclass")

    def deallocate(self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder) -> None:
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

        Notes
        -----
        A buffer that it closes is a part of the release that has asked. Asked by ``close()``, it is waited for. Asked
        by ``close(wait=False)`` or by a collection, it is queued where it would have to be waited for.

        Examples
        --------
        >>> allocation = mr.allocate(1024, stream=stream).detach()
        >>> mr.deallocate(allocation.handle, allocation.size, stream=stream)
        """
        raise TypeError(f"{type(self).__name__}.deallocate must be overridden by the subclass")

    def checked_free(self, ptr: DevicePointerType, size: int) -> AbstractContextManager[None]:
        """Have a ``deallocate`` that is called by hand follow the rules of built-in resources. For authors.

        Parameters
        ----------
        ptr : int
            Where the allocation begins, as ``deallocate`` was given it.
        size : int
            Its size in bytes, likewise.

        Returns
        -------
        context manager
            Free inside its ``with`` block. If an ``Allocation`` has the address, it counts as handed over behind the
            block, or has the memory as before if the block raises.

        Raises
        ------
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If loans hold it. If another call is freeing
            or moving it.
        ValueError
            If an ``Allocation`` has the address, and ``size`` is not its size.

        Notes
        -----
        Where a buffer or a loan asks to free its own memory, this does nothing and is quick. Called by hand, it looks
        through everything that is live. An address that nobody has passes: whether the resource knows it is its own to
        say, and what was handed over is freed in this way.

        Examples
        --------
        >>> from cuda.core import Buffer, Device, MemoryResource
        >>> Device(0).set_current()
        >>> class Blocks(MemoryResource):
        ...     is_device_accessible, is_host_accessible, device_id = False, True, -1
        ...     blocks = {}
        ...
        ...     def allocate(self, size, *, stream=None):
        ...         block = bytearray(size)
        ...         self.blocks[id(block)] = block  # stands for an address
        ...         return Buffer.from_handle(id(block), size, mr=self, stream=stream)
        ...
        ...     def deallocate(self, ptr, size, *, stream=None):
        ...         with self.checked_free(ptr, size):
        ...             del self.blocks[ptr]
        >>> blocks = Blocks()
        >>> buffer = blocks.allocate(64)
        >>> blocks.deallocate(buffer.handle, 64)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        cuda.core...OwnershipError: an open buffer owns the allocation at 0x...; close the buffer instead
        >>> allocation = buffer.detach()
        >>> blocks.deallocate(allocation.handle, 64)
        >>> allocation.transferred_to.name
        'DETACHED'
        """
        cdef uintptr_t address = pointer_argument(ptr, "ptr")
        cdef size_t bytes_ = size_argument(size, "size")
        cdef Allocation allocation
        cdef _CheckedFree guard
        if not address or record_being_asked(self, address) is not None:
            return _NOBODY_TO_TELL
        allocation = detached_at(self, address)
        if allocation is not None and bytes_ != allocation.size:
            raise ValueError(
                f"size must be {allocation.size}, that of the allocation at {<size_t>address:#x}, got {bytes_}"
            )
        guard = _CheckedFree.__new__(_CheckedFree)
        guard.allocation, guard.pointer = allocation, address
        return guard

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use this resource's memory. To be overridden."""
        raise TypeError(f"{type(self).__name__}.is_device_accessible must be overridden by the subclass")

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use this resource's memory. To be overridden."""
        raise TypeError(f"{type(self).__name__}.is_host_accessible must be overridden by the subclass")

    @property
    def is_managed(self) -> bool:
        """bool: whether this resource's memory is managed."""
        return False

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is. To be overridden where there is one."""
        raise TypeError(f"{type(self).__name__}.device_id must be overridden by the subclass")
