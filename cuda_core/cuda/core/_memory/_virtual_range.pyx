# SPDX-License-Identifier: Apache-2.0
"""The range: one record that owns every driver object behind a virtual-memory allocation.

Every operation builds new parts aside, and splices them into the range in one step that cannot fail once the last
driver call has succeeded. Whatever happens before leaves the range as it was; new parts that could not be undone
stay in ``retired`` and are tried again whenever the range is released.

All functions here run without the GIL and report through :class:`Failure`. The caller holds the claim on the range's
word, which is what keeps two threads from changing the parts at once.
"""

cimport cython
from cuda.bindings cimport cydriver
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector

from cuda.core._memory._virtual_parts cimport (
    AllocationHandle,
    CUdeviceptr,
    Mapping,
    Parts,
    count_range,
    forget_parts,
    give_access,
    map_chunk,
    map_new_chunk,
    move_parts,
    parts_are_empty,
    reserve,
    return_parts,
    succeeded,
    take_over,
)
from cuda.core._stream_handle cimport drop_stream


cdef bint _covers(VirtualRange range_, CUdeviceptr address) noexcept nogil:
    return range_.base <= address < range_.base + range_.capacity.load()


cdef class VirtualRange:
    """Address space with physical chunks mapped into it from its start on, and the ownership word of all that.

    ``base`` is where the memory begins, ``mapped`` how many bytes of it are usable, ``capacity`` how many lie in
    adjacent reservations: growing up to it keeps the address for certain.
    """

    def __dealloc__(self):
        drop_stream(self.left_order)
        # Nobody can return what is left here: it was given away, or lost, and was told of when that happened.
        self.gather_late()
        move_parts(&self.retired, &self.parts)
        self.abandon()

    cdef void gather_late(self) noexcept:
        """Put what is left of earlier attempts back among the retired parts. The caller holds the claim."""
        with cython.critical_section(self):  # the end of a loan may be about to put more there
            move_parts(&self.late, &self.retired)

    cdef void _count(self) noexcept nogil:
        """Count the range while it holds anything. An emptied one may live on in a closed buffer."""
        cdef bint holds = not self.is_empty()
        if holds != self._counted:
            self._counted = holds
            count_range(1 if holds else -1)

    cdef void _undo(self, Parts* scratch) noexcept nogil:
        cdef Failure ignored  # the failure that made the undo necessary is the one that is told
        ignored.function = NULL
        if not return_parts(scratch, &ignored):
            move_parts(scratch, &self.retired)
        self._count()

    cdef int grow_in_place(self, size_t more_addresses, size_t granularity, ChunkRequest* request,
                           Failure* failure) noexcept nogil:
        """Map a new chunk behind the mapped ones, reserving ``more_addresses`` behind the range first.

        The commit point is the access call. The address of the range does not change and nothing has to wait.
        """
        cdef Parts scratch
        cdef CUdeviceptr wanted = self.base + self.capacity.load()
        if more_addresses:
            if not reserve(&scratch, more_addresses, granularity, wanted, failure):
                return GROW_FAILED
            if scratch.reservations[0].base != wanted:
                self._undo(&scratch)
                return GROW_ELSEWHERE
        if not (
            map_new_chunk(&scratch, self.base + self.mapped.load(), request, failure)
            and give_access(&scratch, failure)
        ):
            self._undo(&scratch)
            return GROW_FAILED
        move_parts(&scratch, &self.parts)
        self.mapped.fetch_add(request.size)
        self.capacity.fetch_add(more_addresses)
        return GROWN

    cdef bint move(self, size_t new_capacity, size_t alignment, CUdeviceptr hint, ChunkRequest* request,
                   Failure* failure) noexcept nogil:
        """Map every chunk and a new one into a new reservation; the old addresses go to ``retired``.

        This is also how a range begins: with nothing to move.

        The commit point is the last access call. The new chunk comes first: it is what a device without memory
        refuses, and then nothing else has been done.
        """
        cdef Parts scratch
        cdef AllocationHandle chunk = 0
        cdef CUdeviceptr new_base
        cdef Mapping mapping
        cdef size_t i
        if not reserve(&scratch, new_capacity, alignment, hint, failure):
            return False
        new_base = scratch.reservations[0].base
        if not map_new_chunk(&scratch, new_base + self.mapped.load(), request, failure):
            self._undo(&scratch)
            return False
        for i in range(self.parts.mappings.size()):
            mapping = self.parts.mappings[i]
            if not succeeded(
                cydriver.cuMemRetainAllocationHandle(&chunk, <void*>mapping.address),
                b"cuMemRetainAllocationHandle",
                failure,
            ) or not map_chunk(
                &scratch, new_base + (mapping.address - self.base), mapping.size, chunk, mapping.rights, failure
            ):
                self._undo(&scratch)
                return False
        # The new chunk lies last in the addresses and must do so in the record too.
        if scratch.mappings.size() > 1:
            mapping = scratch.mappings[0]
            scratch.mappings.erase(scratch.mappings.begin())
            scratch.mappings.push_back(mapping)
        if not give_access(&scratch, failure):
            self._undo(&scratch)
            return False
        move_parts(&self.parts, &self.retired)
        move_parts(&scratch, &self.parts)
        self._count()
        self.base = new_base
        self.mapped.fetch_add(request.size)
        self.capacity.store(new_capacity)
        return True

    cdef bint return_retired(self, Failure* failure) noexcept nogil:
        """Return addresses that the range has left."""
        return return_parts(&self.retired, failure)

    cdef bint return_all(self, Failure* failure) noexcept nogil:
        """Return everything. What is refused stays in the record; the next call goes on with that."""
        cdef size_t before = self.parts.mappings.size() + self.parts.reservations.size()
        cdef bint retired = return_parts(&self.retired, failure)
        cdef bint current = return_parts(&self.parts, failure)
        if self.parts.mappings.size() + self.parts.reservations.size() != before:
            self.partly_returned.store(1)  # what is left is no longer the memory that its buffer promises
        self._count()
        return retired and current

    cdef void adopt(self, CUdeviceptr base, size_t size) noexcept nogil:
        """Take over one reservation with one mapping that somebody else made."""
        take_over(&self.parts, base, size)
        self._count()
        self.base = base
        self.mapped.store(size)
        self.capacity.store(size)

    cdef void give_parts_away(self, Parts* taker) noexcept nogil:
        """Move everything into ``taker``: the queue answers for it now."""
        move_parts(&self.retired, taker)
        move_parts(&self.parts, taker)
        self._count()

    cdef void take_parts_back(self, Parts* holder) noexcept nogil:
        """Take everything back; what does not lie in the range's addresses was retired."""
        cdef Parts left
        cdef size_t i
        for i in range(holder.reservations.size()):
            if _covers(self, holder.reservations[i].base):
                self.parts.reservations.push_back(holder.reservations[i])
            else:
                left.reservations.push_back(holder.reservations[i])
        for i in range(holder.mappings.size()):
            if _covers(self, holder.mappings[i].address):
                self.parts.mappings.push_back(holder.mappings[i])
            else:
                left.mappings.push_back(holder.mappings[i])
        holder.reservations.clear()
        holder.mappings.clear()
        move_parts(holder, &self.parts)
        move_parts(&left, &self.retired)
        self._count()

    cdef void abandon(self) noexcept nogil:
        """Forget parts that turned out to be somebody else's to free."""
        forget_parts(&self.parts)
        self._count()

    cdef bint holds_base(self) noexcept nogil:
        """Whether the address that the range begins at is still the range's."""
        cdef size_t i
        for i in range(self.parts.reservations.size()):
            if self.parts.reservations[i].base == self.base:
                return True
        return False

    cdef bint learn_rights(self, int device_count, Failure* failure) noexcept nogil:
        """Ask the driver for the rights of mappings that somebody else made, so that a move can repeat them."""
        cdef cydriver.CUmemAccessDesc description
        cdef unsigned long long flags
        cdef size_t i
        cdef int ordinal
        for i in range(self.parts.mappings.size()):
            if self.parts.mappings[i].rights.get() != NULL:
                continue
            self.parts.mappings[i].rights = make_shared[vector[cydriver.CUmemAccessDesc]]()
            for ordinal in range(device_count):
                description.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                description.location.id = ordinal
                flags = 0
                if not succeeded(
                    cydriver.cuMemGetAccess(&flags, &description.location, self.parts.mappings[i].address),
                    b"cuMemGetAccess",
                    failure,
                ):
                    self.parts.mappings[i].rights.reset()
                    return False
                if flags:
                    description.flags = <cydriver.CUmemAccess_flags>flags
                    self.parts.mappings[i].rights.get().push_back(description)
        return True

    cdef bint is_empty(self) noexcept nogil:
        return parts_are_empty(&self.parts) and parts_are_empty(&self.retired) and parts_are_empty(&self.late)
