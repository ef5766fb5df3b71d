# SPDX-License-Identifier: Apache-2.0
"""``VirtualMemoryResource``: buffers on virtual memory, which can grow."""

cimport cython
from libc.stdint cimport uintptr_t

from cuda.core._memory._arguments cimport round_up, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._ownership cimport STATE_OWNED, fresh
from cuda.core._memory._virtual_growth cimport grow
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase, return_range, worth_another_try
from cuda.core._memory._virtual_parts cimport ChunkRequest, Failure
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream cimport Stream_accept, bind_default_stream, bind_stream
from cuda.core._stream_handle cimport StreamHandle

from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions

__all__ = ["VirtualMemoryResource", "VirtualMemoryResourceOptions"]


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
    GIL, for the stream that was recorded, and returns everything before it returns.

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

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate a buffer.

        Parameters
        ----------
        size : int
            Bytes wanted; rounded up to the granularity. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context;
            where no context is current either, the release waits for nothing.

        Returns
        -------
        Buffer
            The new buffer, OWNED. Its memory is usable at once.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is no stream. No driver call is made.
        CUDAError
            If the driver refuses. Everything done by then is undone.

        Examples
        --------
        >>> with VirtualMemoryResource(0).allocate(5 << 20, stream=stream) as buffer:
        ...     buffer.size >> 20  # rounded up to the granularity
        6
        """
        cdef size_t wanted = size_argument(size, "size")
        cdef size_t rounded, reserved
        cdef StreamHandle* order = NULL
        cdef VirtualRange range_
        cdef Buffer buffer
        cdef Failure failure
        cdef ChunkRequest request
        cdef bint done
        cdef size_t alignment
        cdef uintptr_t hint
        failure.function = NULL
        range_ = VirtualRange.__new__(VirtualRange)
        range_.word.store(fresh(STATE_OWNED, 0))
        rounded = reserved = 0
        if wanted:
            self._refresh()
            rounded = round_up(wanted, self._granularity, "size")
            reserved = max(rounded, round_up(self.config.reserve_size, self._granularity, "reserve_size"))
        if stream is not None:
            order = bind_stream(Stream_accept(stream))
        elif wanted:
            order = bind_default_stream()
        # From here on the buffer holds the stream's reference, and an exception lets it go.
        buffer = new_buffer(0, 0, self, self._ordinal, order)
        if not wanted:
            buffer.begin(STATE_OWNED, range_, 0)
            return buffer
        alignment = self.config.addr_align or self._granularity
        hint = self.config.addr_hint or 0
        request = self._request
        request.size = rounded
        self._retry_leftovers()
        with nogil:
            done = range_.move(reserved, alignment, hint, &request, &failure)
            if not done and worth_another_try(&failure):
                done = range_.move(reserved, alignment, hint, &request, &failure)
        if not done:
            raise self._failed(range_, failure)
        buffer.pointer = range_.base
        buffer.size = rounded
        buffer.begin(STATE_OWNED, range_, 0)
        self.remember(buffer)
        return buffer

    def modify_allocation(
        self, buf: Buffer, new_size: int, config: VirtualMemoryResourceOptions | dict[str, Any] | None = None
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
            not stored.

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
        return grow(self, buf, new_size, config)
