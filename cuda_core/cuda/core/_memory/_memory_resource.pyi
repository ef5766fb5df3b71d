# SPDX-License-Identifier: Apache-2.0
# Made from _memory_resource.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``MemoryResource``, what makes and frees allocations, and how one that is written in Python is asked to free."""

from contextlib import AbstractContextManager
from cuda.core._memory import Buffer
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["MemoryResource"]

class MemoryResource:
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

    def __reduce__(self) -> tuple[object, ...]:
        ...

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

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use this resource's memory. To be overridden."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use this resource's memory. To be overridden."""

    @property
    def is_managed(self) -> bool:
        """bool: whether this resource's memory is managed."""

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is. To be overridden where there is one."""
