# SPDX-License-Identifier: Apache-2.0
"""``VirtualMemoryResource``: buffers on virtual memory, which can grow."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda.core._memory._address_space cimport ensure_addresses_left
from cuda.core._memory._arguments cimport round_up, size_argument
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._ownership cimport STATE_OWNED, fresh
from cuda.core._memory._virtual_access cimport get_access, set_access
from cuda.core._memory._virtual_growth cimport grow
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase, return_range, worth_another_try
from cuda.core._memory._virtual_parts cimport ChunkRequest, Failure
from cuda.core._memory._virtual_pause cimport pause, resume
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._virtual_sharing cimport export_chunks, import_chunks, reduce_to_chunks
from cuda.core._memory._virtual_shrink cimport shrink, trim
from cuda.core._stream cimport Stream_accept, bind_default_stream, bind_stream
from cuda.core._stream_handle cimport StreamHandle

from cuda.core._error_text import for_allocation
from cuda.core._memory import _virtual_sharing

__all__ = ["VirtualMemoryResource"]


# No gc_clear: a buffer that is collected together with its resource still needs the resource's tables.
@cython.no_gc_clear
cdef class VirtualMemoryResource(VirtualMemoryBase):
    """Allocates virtual memory: physical chunks mapped into reserved address space. Its buffers can grow.

    Parameters
    ----------
    device_id : Device or int
        The device, also for memory at the host: it is the one whose nearest NUMA node ``"host_numa"`` means.
    config : VirtualMemoryResourceOptions or dict, optional
        How to allocate.

    Attributes
    ----------
    config : VirtualMemoryResourceOptions
        The options that were given. Assigning to one of them changes later allocations.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or names a device that is not there.
    RuntimeError
        If the device cannot do what the options ask for, or there is no driver.

    Notes
    -----
    Safe from any thread. Allocating and freeing are not stream-ordered by the driver: a release waits, without the
    GIL, for the stream that was recorded, and returns everything before it returns; with ``wait_on_close=False`` it
    goes to the queue where it would have to wait.

    A buffer of this resource has three sizes. ``size`` is what was asked for, rounded up to the granularity.
    ``mapped_size`` is the physical memory behind it, which is more where growth maps ahead or a shrink has cut a chunk.
    ``capacity`` is the reserved addresses: growing up to it certainly keeps the address and waits for nothing.

    Examples
    --------
    >>> mr = VirtualMemoryResource(0)
    >>> small = mr.allocate(2 << 20, stream=stream)
    >>> large = mr.modify_allocation(small, 64 << 20)
    >>> small.ownership, large.ownership
    (<Ownership.TRANSFERRED: 3>, <Ownership.OWNED: 1>)
    >>> large.close()
    <CloseResult.DONE: 0>
    """

    def __cinit__(self):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is VirtualMemoryResource:
            self.deleter = return_range

    def allocate(
        self, size: int, *, stream: Stream | GraphBuilder | None = None, reserve_size: int | None = None
    ) -> Buffer:
        """Allocate a buffer.

        Parameters
        ----------
        size : int
            Bytes wanted; rounded up to the granularity. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context;
            where no context is current either, the release waits for nothing.
        reserve_size : int, optional
            Bytes of addresses to reserve for this buffer, where that is more than its size; it is its ``capacity``
            then. By default as the options say.

        Returns
        -------
        Buffer
            The new buffer, OWNED. Its memory is usable at once.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` or ``reserve_size`` is not an integer, negative or too large, or ``stream`` is no stream. If the
            addresses would be more than this process may reserve, 64 TiB. No driver call is made.
        CUDAError
            If the driver refuses. Everything done by then is undone.

        Examples
        --------
        >>> with VirtualMemoryResource(0).allocate(5 << 20, stream=stream) as buffer:
        ...     buffer.size >> 20  # rounded up to the granularity
        6
        """
        cdef size_t wanted = size_argument(size, "size")
        cdef size_t ahead = 0
        cdef size_t rounded, reserved
        cdef StreamHandle* order = NULL
        cdef VirtualRange range_
        cdef Buffer buffer
        cdef Failure failure
        cdef ChunkRequest request
        cdef bint done
        cdef size_t granularity, alignment = 0
        cdef uintptr_t hint = 0
        if reserve_size is not None:
            ahead = size_argument(reserve_size, "reserve_size")
        failure.function = NULL
        range_ = VirtualRange.__new__(VirtualRange)
        range_.word.store(fresh(STATE_OWNED, 0))
        rounded = reserved = 0
        if wanted:
            self._refresh()
            with cython.critical_section(self):  # an assignment to its options replaces it
                request, granularity = self._request, self._granularity
                alignment, hint = self._alignment, self._hint
                if reserve_size is None:
                    ahead = self._ahead
            rounded = round_up(wanted, granularity, "size")
            reserved = max(rounded, round_up(ahead, granularity, "reserve_size"))
            if reserved > rounded:
                ensure_addresses_left(reserved)
        if stream is not None:
            order = bind_stream(Stream_accept(stream))
        elif wanted:
            order = bind_default_stream()
        # From here on the buffer holds the stream's reference, and an exception lets it go.
        buffer = new_buffer(0, 0, self, self._ordinal, order)
        if not wanted:
            buffer.begin(STATE_OWNED, range_, 0)
            return buffer
        request.size = rounded
        self._retry_leftovers()
        with nogil:
            done = range_.move(reserved, alignment, hint, &request, &failure)
            if not done and worth_another_try(&failure):
                done = range_.move(reserved, alignment, hint, &request, &failure)
        if not done:
            raise for_allocation(self._failed(range_, failure, reserved), self, rounded)
        buffer.pointer = range_.base
        buffer.size = rounded
        buffer.begin(STATE_OWNED, range_, 0)
        self.remember(buffer)
        return buffer

    def modify_allocation(
        self,
        buf: Buffer,
        new_size: int,
        config: VirtualMemoryResourceOptions | dict[str, Any] | None = None,
        *,
        keep_old: bool = False,
    ) -> Buffer:
        """Grow a buffer. The allocation moves to a new buffer, and ``buf`` becomes TRANSFERRED.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        new_size : int
            Bytes wanted in all; rounded up to the granularity.
        config : VirtualMemoryResourceOptions or dict, optional
            How to allocate what is added, by default as the resource does. It must keep the location, and it is
            not stored. Without effect where nothing is added, because an earlier grow has mapped it ahead.
        keep_old : bool, optional
            Whether the old addresses stay usable, where the buffer moves, until ``buf`` is closed or dropped: for
            kernels and graphs that hold them. They show the same memory. It is a loan on the new buffer.

        Returns
        -------
        Buffer
            A new buffer with the same contents at its start. ``buf`` itself, if it is large enough already.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an argument is wrong, or ``buf`` belongs to another resource. No driver call is made.
        OwnershipError
            If ``buf`` is BORROWED, closed, transferred, or being released or grown by another thread.
        CUDAError
            If the driver refuses. ``buf`` is then exactly what it was.

        Notes
        -----
        In this order: inside the reservation, the new memory is mapped behind the old; where the driver gives the
        addresses behind the reservation, likewise. In both cases the address stays and nothing waits. Otherwise a
        larger reservation is made and every chunk is mapped into it a second time; no byte is copied. The old
        addresses are returned after the recorded stream; if that fails, the new buffer is returned all the same, the
        failure is reported once as a ``CUDAWarning``, and the next close tries again.

        Work that uses the old address must be in the recorded stream, or finished.

        Examples
        --------
        >>> mr = VirtualMemoryResource(0, {"reserve_size": 64 << 20})
        >>> buffer = mr.allocate(2 << 20, stream=stream)
        >>> address = buffer.handle
        >>> buffer = mr.modify_allocation(buffer, 32 << 20)
        >>> buffer.handle == address
        True
        """
        return grow(self, buf, new_size, config, keep_old)

    def shrink(self, buf: Buffer, new_size: int, *, split: bool = False) -> Buffer:
        """Give memory at the end of a buffer back to the device. ``buf`` becomes TRANSFERRED, as when it grows.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource without open loans.
        new_size : int
            Bytes to keep; rounded up to the granularity. 0 keeps the addresses only.
        split : bool, optional
            What to do about a chunk of which a part is kept. The driver takes back whole chunks only: by default it
            stays mapped as a whole, as ``mapped_size`` shows. True: a new chunk of the size that is kept takes its
            place at the same address. That copies the bytes kept of it once, on the device, and needs that much more
            memory meanwhile.

        Returns
        -------
        Buffer
            A new buffer at the same address, with the same capacity. ``buf`` itself, if its size is this already.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an argument is wrong, larger than the buffer, or ``buf`` belongs to another resource. No driver call is
            made.
        BufferError
            If loans on the memory are open: which bytes they look at is not known.
        OwnershipError
            If ``buf`` is BORROWED, closed, transferred, or being released or moved by another call.
        CUDAError
            If the driver refuses, or the recorded stream is being captured. ``buf`` is then exactly what it was; but
            where the driver took a chunk that is split and would map neither the new one nor the old one again, ``buf``
            can only be closed.

        Notes
        -----
        Waits, without the GIL, for the recorded stream: the memory is gone afterwards. Once the first chunk has gone
        the new buffer is returned; what the driver refused after that stays mapped, is told by one ``CUDAWarning``,
        and goes with :meth:`trim` or the close. Safe from any thread; of two that change one buffer, one wins.

        Examples
        --------
        >>> large = mr.modify_allocation(small, 64 << 20)  # doctest: +SKIP
        >>> small_again = mr.shrink(large, 2 << 20)
        >>> small_again.size, small_again.mapped_size
        (2097152, 2097152)
        """
        return shrink(self, buf, new_size, split)

    def trim(self, buf: Buffer, *, split: bool = False) -> int:
        """Give the memory back that is mapped beyond the size of a buffer. The buffer stays what it is.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        split : bool, optional
            Whether a chunk of which a part is used is replaced by a smaller one, see :meth:`shrink`.

        Returns
        -------
        int
            How many bytes went back. ``mapped_size`` is that much less.

        Raises
        ------
        TypeError, ValueError, OwnershipError, CUDAError
            As for :meth:`shrink`.
        BufferError
            With ``split``, if loans on the memory are open.

        Notes
        -----
        Waits for the recorded stream where there is anything to give back.

        Examples
        --------
        >>> mr = VirtualMemoryResource(0, {"growth": "geometric"})  # doctest: +SKIP
        >>> buffer = mr.modify_allocation(mr.allocate(8 << 20), 10 << 20)
        >>> mr.trim(buffer, split=True)  # 4 MiB were added, and 2 of them are not used
        2097152
        """
        return trim(self, buf, split)

    def set_access(
        self, buf: Buffer, device: Device | Host | int, access: VirtualMemoryAccessType | str | None
    ) -> None:
        """Say what a place may do with the memory of a buffer, from now on.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        device : Device, int or Host
            Who: a device, or ``Host()`` for memory of the host.
        access : VirtualMemoryAccessType, str or None
            ``"rw"``, ``"r"``, or None for nothing.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, names a device that is not there, or the host for memory of a device. No driver
            call is made.
        OwnershipError
            If ``buf`` is BORROWED, closed, transferred, or being released or moved by another call.
        CUDAError
            If the driver refuses, as it does for a device that cannot reach the memory. Nothing has changed then.

        Notes
        -----
        It holds for every chunk that is mapped now, and goes with them where the buffer moves. What a later grow adds
        has the rights of its own configuration. Where a right is taken away the call waits for the recorded stream
        first, and refuses one that is being captured: work that still uses the memory would fail. Safe from any thread.

        Examples
        --------
        >>> mr.set_access(buffer, 1, "r")  # doctest: +SKIP
        >>> mr.get_access(buffer, 1)
        <VirtualMemoryAccessType.READ: 'r'>
        """
        set_access(self, buf, device, access)

    def get_access(self, buf: Buffer, device: Device | Host | int) -> VirtualMemoryAccessType | None:
        """Return what a place may do with every byte of a buffer: the least of what its chunks allow.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        device : Device, int or Host
            Who, as for :meth:`set_access`.

        Returns
        -------
        VirtualMemoryAccessType or None
            None where it may do nothing with some chunk, and for an empty buffer.

        Raises
        ------
        TypeError, ValueError, OwnershipError
            As for :meth:`set_access`.

        Notes
        -----
        Makes no driver call, but for memory that was made elsewhere, of which the driver is asked once.

        Examples
        --------
        >>> mr = VirtualMemoryResource(0)
        >>> mr.get_access(mr.allocate(2 << 20), 0)
        <VirtualMemoryAccessType.READ_WRITE: 'rw'>
        """
        return get_access(self, buf, device)

    # -- other processes ---------------------------------------------------------------------------------------------

    cdef object export_buffer(self, Record buffer):
        return export_chunks(self, buffer)

    cdef Record import_buffer(self, object descriptor, StreamHandle* order):
        return import_chunks(self, descriptor, order)

    cdef object reduce_buffer(self, Record buffer, object descriptor):
        return reduce_to_chunks(descriptor)

    # -- pause -----------------------------------------------------------------------------------------------------

    def pause(self, buffers: Buffer | Iterable[Buffer], *, keep_contents: bool = False) -> None:
        """Give the memory of buffers back to the device, and keep their addresses. All of them are paused, or none.

        A paused buffer stays OWNED and keeps its ``handle``. Until it is resumed it can be closed and asked what it is;
        to use, grow, share, detach or move it is an :class:`OwnershipError`. Graphs that were captured with it, and
        other code that knows its address, can use it again once it is resumed.

        Parameters
        ----------
        buffers : Buffer or iterable of Buffer
            OWNED buffers of this resource.
        keep_contents : bool
            Copy the bytes to pinned memory of the host, and back when the buffer is resumed. Otherwise they are lost:
            what a resumed buffer holds is undefined.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, a buffer belongs to another resource, or is given twice. No driver call is made.
        OwnershipError
            If a buffer is paused already, BORROWED, closed, imported from another process, or being used by another
            call that releases, grows or pauses it.
        BufferError
            If anybody but a graph has a loan on a buffer: a slice, a memory view, an array of another library.
        CUDAError
            If a recorded stream is being captured, there is no memory to keep the contents in, or the driver refuses.
            Every buffer is then what it was. Where the driver refuses the undo, too, the text says so: such a buffer is
            paused with its memory, and resumes with its contents.

        Notes
        -----
        Safe from any thread. The call waits, without the GIL, for the streams that the buffers have recorded, for the
        last launch of each ``Graph`` that uses them, and for the copies. Other work that uses a buffer must
        be in its recorded streams, or finished. Memory that another process
        has imported goes back when that lets it go, too; from the resume on the two have different memory.

        Memory that the driver refuses to take back at the very end is reported as a ``CUDAWarning``; resuming uses it
        again.

        Examples
        --------
        >>> cache = mr.allocate(1 << 30, stream=stream)  # doctest: +SKIP
        >>> mr.pause(cache, keep_contents=True)
        >>> cache.is_paused, cache.mapped_size
        (True, 0)
        >>> mr.resume(cache)
        """
        pause(self, buffers, keep_contents)

    def resume(self, buffers: Buffer | Iterable[Buffer]) -> None:
        """Give paused buffers memory again, at the same addresses and with the same rights. All of them, or none.

        Parameters
        ----------
        buffers : Buffer or iterable of Buffer
            Paused buffers of this resource.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, a buffer belongs to another resource, or is given twice. No driver call is made.
        OwnershipError
            If a buffer is not paused, is closed, or is being released or resumed by another call.
        CUDAError
            If there is not enough memory, or the driver refuses. All buffers stay paused, with what was kept of their
            contents; they can be resumed or closed later.

        Notes
        -----
        Safe from any thread. The memory is usable when the call returns. Where contents were kept, the call waits,
        without the GIL, for their copy.

        Examples
        --------
        >>> mr.resume([cache, other])  # doctest: +SKIP
        """
        resume(self, buffers)


_virtual_sharing.resource_type = VirtualMemoryResource
