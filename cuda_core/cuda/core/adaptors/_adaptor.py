# SPDX-License-Identifier: Apache-2.0
"""What all adaptors share: each of their buffers keeps one of the inner resource, and closes it."""

from __future__ import annotations

from typing import Any

from cuda.core import Buffer, MemoryResource, Stream
from cuda.core.adaptors._checks import address, integer
from cuda.core.adaptors._shown import shown
from cuda.core.graph import GraphBuilder
from cuda.core.typing import DevicePointerType

__all__ = ["MemoryResourceAdaptor"]


class MemoryResourceAdaptor(MemoryResource):
    """A memory resource around another one. By itself it only passes on; subclass it to see what goes by.

    Parameters
    ----------
    inner : MemoryResource
        The resource that allocates. It may be an adaptor, too.

    Raises
    ------
    TypeError
        If ``inner`` is not a memory resource.

    Notes
    -----
    Safe from any thread. Each buffer is the adaptor's own: its free asks the adaptor first, which then closes the
    buffer of the inner resource behind the same stream. Where that raises, so does the free; nothing is lost, and the
    next close asks again. Memory that the inner resource returns only behind its stream, virtual or pinned memory, is
    waited for by an explicit close, and queued by ``close(wait=False)`` and by a collection.

    Accessibility and device are the inner resource's. Any other attribute that is not a method is too, such as
    ``attributes`` of a pool or ``release_on_collection``. Its methods are not: what ``modify_allocation`` or ``close``
    does would pass by the adaptor. Call them on :attr:`inner`; closing a resource leaves the buffers valid.

    A subclass overrides :meth:`allocate` and :meth:`deallocate` and calls the inherited ones.

    Examples
    --------
    >>> from cuda.core import Device, LegacyPinnedMemoryResource
    >>> from cuda.core.adaptors import MemoryResourceAdaptor
    >>> Device(0).set_current()
    >>> class Largest(MemoryResourceAdaptor):
    ...     size = 0
    ...
    ...     def allocate(self, size, *, stream=None):
    ...         self.size = max(self.size, size)
    ...         return super().allocate(size, stream=stream)
    >>> mr = Largest(LegacyPinnedMemoryResource())
    >>> mr.allocate(4096).close().name
    'DONE'
    >>> mr.size
    4096
    """

    def __init__(self, inner: MemoryResource) -> None:
        if not isinstance(inner, MemoryResource):
            raise TypeError(f"inner must be a MemoryResource, got {type(inner).__name__}: {shown(inner)}")
        self._inner = inner
        # Each new buffer asks for it, and a name that nobody has takes the long way through __getattr__.
        if not hasattr(type(self), "unique_addresses"):
            self.unique_addresses = bool(getattr(inner, "unique_addresses", False))
        # The inner buffers by address; where an inner resource gives one address to several owners, the further ones by
        # address and id. No lock: each change is one operation of the dictionary. A lock would hang where the collector
        # runs in the middle of a change and frees a buffer of this very adaptor.
        self._buffers: dict[Any, Buffer] = {}

    @property
    def inner(self) -> MemoryResource:
        """MemoryResource: the resource inside."""
        return self._inner

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate from the inner resource.

        Parameters
        ----------
        size : int
            Bytes wanted.
        stream : Stream, optional
            The stream that orders the allocation and the free. Whether it can be left out is the inner resource's
            to say.

        Returns
        -------
        Buffer
            A buffer of this adaptor, OWNED, as large as the inner one.

        Raises
        ------
        Exception
            Whatever the inner resource raises. Nothing is allocated then.

        Examples
        --------
        >>> MemoryResourceAdaptor(pinned).allocate(64).close()
        <CloseResult.DONE: 0>
        """
        # Whether a stream is needed is for the inner resource to say.
        if type(size) is not int:
            size = integer(size, "size")
        buffer = self._inner.allocate(size, stream=stream)  # type: ignore[arg-type]
        at, size = buffer.handle, buffer.size
        if not size:
            # No memory is behind it, and its address can be that of others: there is nothing to keep.
            buffer.close()
            return Buffer.from_handle(0, 0, mr=self, stream=stream)
        try:
            self._keep(at, buffer)
            return Buffer.from_handle(at, size, mr=self, stream=stream)
        except BaseException:
            for key in (at, (at, id(buffer))):
                if self._buffers.get(key) is buffer:
                    del self._buffers[key]
            buffer.close()
            raise

    def _keep(self, at: int, buffer: Buffer) -> None:
        first = self._buffers.setdefault(at, buffer)
        if first is not buffer:
            if first.is_closed:
                self._buffers[at] = buffer
            else:
                self._buffers[at, id(buffer)] = buffer

    def _find(self, at: int, size: int) -> tuple[Any, Buffer | None]:
        """Return an inner buffer with an address and a size, and its name; without one, any with the address."""
        found: tuple[Any, Buffer | None] = (at, None)
        for key, buffer in list(self._buffers.items()):
            if key == at or (type(key) is tuple and key[0] == at):
                found = (key, buffer)
                # Of a buffer in one cycle with this one the collector may have ended the inner one first: it is empty.
                if buffer.size == size or not buffer.size:
                    break
        return found

    def _has(self, ptr: DevicePointerType) -> bool:
        """Whether something at an address is still allocated from the inner resource."""
        return self._find(address(ptr), -1)[1] is not None

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Close the inner buffer. Buffers of this adaptor do this by themselves; a subclass calls it from its own.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. It must be that of the allocation.
        stream : Stream, optional
            The stream behind which the memory is returned.

        Raises
        ------
        OwnershipError
            If it is called by hand, and an open buffer owns the address; close the buffer instead. If loans hold it. If
            another call is freeing it.
        ValueError
            If this adaptor has not allocated what is at the address, or freed it before; a buffer that was moved here
            from another adaptor can be moved back. If the size is not that of the allocation.
        Exception
            Whatever the inner resource raises. Nothing is freed then.

        Notes
        -----
        Called by hand it frees what was detached. An ``Allocation`` that is freed this way counts as handed over.

        Examples
        --------
        >>> adaptor = MemoryResourceAdaptor(pinned)
        >>> allocation = adaptor.allocate(64).detach()
        >>> adaptor.deallocate(allocation.handle, 64)
        >>> allocation.transferred_to.name
        'DETACHED'
        """
        if type(ptr) is not int:
            ptr = address(ptr)
        if type(size) is not int:
            size = integer(size, "size")
        with self.checked_free(ptr, size):
            if not ptr:
                return
            # Known here before it is taken out: an interrupt can come between any two instructions.
            key, buffer = ptr, self._buffers.get(ptr)
            while True:
                if buffer is None or (size != buffer.size and buffer.size):
                    key, buffer = self._find(ptr, size)
                if buffer is None:
                    raise ValueError(
                        f"this {type(self).__name__} has allocated nothing that is open at {ptr:#x}"
                    )
                if size != buffer.size and buffer.size:
                    raise ValueError(
                        f"size must be {buffer.size}, that of the allocation at {ptr:#x}, got {size}"
                    )
                try:
                    # Before the free: the moment the memory is free, its address may be another thread's.
                    taken = self._buffers.pop(key, None)
                    if taken is buffer:
                        buffer.close(stream)
                        return
                except BaseException:
                    if not buffer.is_closed:
                        self._keep(ptr, buffer)
                    raise
                if taken is not None:
                    self._keep(ptr, taken)
                buffer = None  # another thread was quicker; there may be a further one for this

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use the memory, as the inner resource says."""
        return self._inner.is_device_accessible

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use the memory, as the inner resource says."""
        return self._inner.is_host_accessible

    @property
    def is_managed(self) -> bool:
        """bool: whether the memory is managed, as the inner resource says."""
        return self._inner.is_managed

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is, as the inner resource says."""
        return self._inner.device_id

    def __getattr__(self, name: str) -> Any:
        # Only what is not found here comes this way. Private names do not: one may be missing because the object
        # is being made, or copied.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self._inner, name)
        if callable(value):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; the resource inside has it: .inner.{name}"
            )
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self._inner!r}>"
