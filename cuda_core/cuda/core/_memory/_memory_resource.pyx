# SPDX-License-Identifier: Apache-2.0
"""``MemoryResource``, what makes and frees allocations, and how one that is written in Python is asked to free."""

from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._ownership cimport STATE_OWNED
from cuda.core._memory._unique_addresses cimport enter_unique, unique_owner
from cuda.core._stream cimport Stream, stream_for_python
from cuda.core._stream_handle cimport StreamHandle, release_stream

from cuda.core._errors import OwnershipError
from cuda.core._memory import _exit_pass

__all__ = ["MemoryResource"]

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef dict _asked = {}  # thread -> the record whose release is asking a subclass of a built-in resource


cdef int ask_python(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of Python-defined resources: ask ``deallocate``, once, with the size that was allocated."""
    cdef Stream stream = stream_for_python(order)
    cdef object thread, outer
    if not (<MemoryResource>record.resource).indexed:
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
        cdef bint unique = buffer.size and getattr(self, "unique_addresses", False)
        if unique and unique_owner(self, buffer) is not None:
            raise OwnershipError(
                f"{<size_t>buffer.pointer:#x} of this {type(self).__name__} has an owner already, "
                f"{unique_owner(self, buffer).describe()}"
            )
        if unique:
            enter_unique(self, buffer)  # it may fail, and until the next line nothing is owned
        self.begin_owning(buffer)
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
                enter_unique(self, target)
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
        release_stream(order)
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
        NotImplementedError
            Always in this class. An author raises what describes the failure best.

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

        Examples
        --------
        >>> allocation = mr.allocate(1024, stream=stream).detach()
        >>> mr.deallocate(allocation.handle, allocation.size, stream=stream)
        """
        raise TypeError(f"{type(self).__name__}.deallocate must be overridden by the subclass")

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
