# SPDX-License-Identifier: Apache-2.0
"""What built-in resources share that free by an address: each address has one owner, and the resource knows which.

The index is read where an address comes from outside (``from_handle``, ``adopt``, a direct ``deallocate``); a release
finds everything it needs in the record.
"""

import weakref

from libc.stdint cimport uintptr_t

from cuda.core._driver cimport ensure_driver
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._arguments cimport pointer_argument, size_argument
from cuda.core._memory._buffer cimport Buffer, MemoryResource, record_being_asked
from cuda.core._memory._ownership cimport STATE_OWNED
from cuda.core._memory._transfer cimport Allocation
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream cimport Stream_accept, StreamHandle, release_stream, retain_stream

from cuda.core._errors import OwnershipError


cdef class Holding:
    """One address of a resource: how large, and who has it."""


cdef class IndexedResource(MemoryResource):
    """A built-in resource with one owner for each address."""

    def __cinit__(self, *args, **kwargs):
        self._holdings = {}

    cdef int remember(self, Record record) except -1:
        """Enter a record that owns its address from now on. An address fresh from the driver always wins."""
        cdef Holding holding
        if not record.size:
            return 0
        holding = Holding.__new__(Holding)
        holding.size = record.size
        holding.range = record.range
        if isinstance(record, Allocation):
            holding.allocation = weakref.ref(record)
        self._holdings[<size_t>record.pointer] = holding
        return 0

    cdef Holding take_out(self, uintptr_t address, VirtualRange range_):
        """Remove an entry before its free: the moment the address is free, it may be another's. None if not there."""
        cdef Holding holding = self._holdings.get(<size_t>address)
        if holding is None or holding.range is not range_:
            return None
        del self._holdings[<size_t>address]
        return holding

    cdef int put_back(self, uintptr_t address, Holding holding) except -1:
        if holding is not None:
            self._holdings.setdefault(<size_t>address, holding)
        return 0

    cdef int own(self, Buffer buffer) except -1:
        if buffer.size and <size_t>buffer.pointer in self._holdings:
            raise OwnershipError(
                f"{<size_t>buffer.pointer:#x} of this {type(self).__name__} has an owner already; two would free it twice"
            )
        self.begin_owning(buffer)
        return self.remember(buffer)

    cdef int detached(self, Buffer buffer, Record allocation) except -1:
        return self.remember(allocation)

    cdef int adopted(self, Record allocation, Buffer buffer, MemoryResource before) except -1:
        if before is not self:
            (<IndexedResource>before).take_out(buffer.pointer, buffer.range)
        return self.remember(buffer)

    def deallocate(self, ptr, size, *, stream=None):
        """Free an allocation by its address. Buffers do this by themselves; a subclass calls it from its own.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : Stream, optional
            What to wait for first. None waits for nothing.

        Raises
        ------
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        ValueError
            If the size is not that of the detached allocation.
        CUDAError
            If the driver refuses. Nothing is lost: the same call can be made again.

        Notes
        -----
        An ``Allocation`` that is freed this way counts as handed over. An address that this resource does not know is
        freed as told.
        """
        cdef uintptr_t address = pointer_argument(ptr, "ptr")
        cdef size_t bytes_ = size_argument(size, "size")
        cdef StreamHandle* order = NULL
        cdef Record record
        cdef Holding holding
        if stream is not None:
            order = retain_stream(Stream_accept(stream)._handle)
        try:
            record = record_being_asked(self, address)
            if record is not None:
                return self.free_record(record, order)
            if not address or not bytes_:
                return
            ensure_driver()
            holding = self._holdings.get(<size_t>address)
            if holding is None:
                return self.free_unknown(address, bytes_, order)
            self._free_detached(address, bytes_, holding, order)
        finally:
            release_stream(order)

    cdef int _free_detached(self, uintptr_t address, size_t size, Holding holding, StreamHandle* order) except -1:
        cdef Allocation allocation
        if holding.allocation is None:
            raise OwnershipError(
                f"an open buffer owns the allocation at {<size_t>address:#x}; close the buffer instead"
            )
        if size != holding.size:
            raise ValueError(f"size must be {holding.size}, that of the allocation at {<size_t>address:#x}, got {size}")
        allocation = holding.allocation()
        if allocation is not None and allocation.state() == STATE_OWNED:
            allocation.handed_over()
        self._holdings.pop(<size_t>address, None)
        try:
            self.free_holding(address, holding, order)
        except:  # noqa: E722  it can be tried again, by anybody who knows the address
            self.put_back(address, holding)
            raise
        return 0

    cdef int free_record(self, Record record, StreamHandle* order) except -1:
        raise NotImplementedError

    cdef int free_holding(self, uintptr_t address, Holding holding, StreamHandle* order) except -1:
        raise NotImplementedError

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        raise NotImplementedError
