# SPDX-License-Identifier: Apache-2.0
# Made from _buffer.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""``Buffer``, the handle of an allocation."""

from collections.abc import Callable
from collections.abc import Sequence
from cuda.core._memory import DeviceMemoryResource
from cuda.core._memory import PinnedMemoryResource
from cuda.core._memory import VirtualMemoryResource
from cuda.core._memory._allocation import Record
from cuda.core._memory._array_view import ArrayView
from cuda.core._memory._copy_options import CopyOptions
from cuda.core._memory._ipc import IPCBufferDescriptor
from cuda.core._memory._memory_resource import MemoryResource
from cuda.core._memory._release import CloseResult
from cuda.core._memory._transfer import Allocation
from cuda.core._memory._virtual_descriptor import VirtualBufferDescriptor
from cuda.core._stream import Stream
from cuda.core.graph._graph_builder import GraphBuilder
from cuda.core.typing import DevicePointerType
from types import TracebackType
from typing_extensions import Buffer as BufferProtocol
from typing_extensions import Never
from typing_extensions import Self

__all__ = ["Buffer"]

class Buffer(Record):
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
        ...

    @staticmethod
    def from_handle(ptr: DevicePointerType, size: int, mr: MemoryResource | None = None, owner: object | None = None, *, stream: Stream | GraphBuilder | None = None, deallocate: Callable[[int, int, Stream | None], object] | None = None) -> Buffer:
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

    def __enter__(self) -> Self:
        ...

    def __exit__(self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None) -> None:
        ...

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

    @property
    def release_on_collection(self) -> bool:
        """bool: whether a collection may free the memory. False: it reports and leaves the memory allocated.

        For memory whose free has to happen at a place that the program decides, such as a collective one. A resource
        can say so for all its buffers by an attribute of the same name.
        """

    @release_on_collection.setter
    def release_on_collection(self, value: bool) -> None:
        ...

    def copy_to(self, dst: Buffer | None = None, *, stream: Stream | GraphBuilder, options: CopyOptions | None = None) -> Buffer:
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

    def copy_from(self, src: Buffer, *, stream: Stream | GraphBuilder, options: CopyOptions | None = None) -> None:
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

    def fill(self, value: int | BufferProtocol, *, stream: Stream | GraphBuilder) -> None:
        r"""Fill the memory with a repeated pattern, in the order of a stream. Nothing waits.

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
        >>> buffer.fill(b"\xff\x00", stream=stream)
        """

    def __getitem__(self, key: slice) -> Buffer:
        """Return the bytes of a slice as a buffer of their own: BORROWED, with a loan on this one while it is open."""

    def array_view(self, typestr: str = '|u1', shape: int | Sequence[int] | None = None) -> ArrayView:
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

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
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

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the memory lies as a DLPack device type and device id.

        Raises
        ------
        OwnershipError
            If the buffer is closed.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

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

    @classmethod
    def from_ipc_descriptor(cls, mr: DeviceMemoryResource | PinnedMemoryResource | VirtualMemoryResource, ipc_descriptor: IPCBufferDescriptor | VirtualBufferDescriptor, *, stream: Stream | GraphBuilder) -> Buffer:
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

    def __copy__(self) -> Never:
        ...

    def __deepcopy__(self, memo: object) -> Never:
        ...

    def __reduce__(self) -> tuple[object, ...]:
        ...

    @property
    def handle(self) -> int:
        """int: the address, 0 once the buffer is closed or transferred."""

    @property
    def size(self) -> int:
        """int: the size in bytes, 0 once the buffer is closed or transferred.

        Of virtual memory this is the requested size rounded up to the granularity.
        """

    @property
    def memory_resource(self) -> MemoryResource | None:
        """MemoryResource or None: what frees the memory; None once closed, and for borrowed memory."""

    @property
    def owner(self) -> object:
        """object or None: whoever is kept alive for the memory; of a slice, the buffer that it is a part of."""

    @property
    def is_closed(self) -> bool:
        """bool: whether the buffer no longer stands for its memory (RELEASED or TRANSFERRED)."""

    def __eq__(self, other: object) -> bool:
        ...

    def __hash__(self) -> int:
        ...

    def __repr__(self) -> str:
        ...

    @property
    def mapped_size(self) -> int:
        """int: how many bytes of physical memory are mapped; 0 while paused. The size, where memory is not virtual."""

    @property
    def is_paused(self) -> bool:
        """bool: whether the memory is away and only the addresses are there; see :meth:`VirtualMemoryResource.pause`.

        Raises
        ------
        OwnershipError
            If the buffer is closed, or being released or moved by another call.
        """

    @property
    def capacity(self) -> int:
        """int: up to how many bytes the buffer can certainly grow without changing its address."""

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is; -1 for memory of the host."""

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use the memory."""

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use the memory."""

    @property
    def is_managed(self) -> bool:
        """bool: whether the memory is managed (moves between host and device by itself)."""

    @property
    def is_mapped(self) -> bool:
        """bool: whether the memory is another process's, imported here."""
