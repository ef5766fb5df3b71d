# SPDX-License-Identifier: Apache-2.0
"""The range: one record that owns every driver object behind a virtual-memory allocation.

A range holds *parts*: reservations of address space (freed by their exact pair of address and size), mappings of
physical chunks (each unmapped by one call), and references to chunks whose release was refused. What has to be
undone is read from the parts and never computed from sizes.

Every operation builds new parts aside, and splices them into the range in one step that cannot fail once the last
driver call has succeeded. Whatever happens before leaves the range as it was; new parts that could not be undone
stay in ``retired`` and are tried again whenever the range is released.

All functions here run without the GIL and report through :class:`Failure`. The caller holds the claim on the range's
word, which is what keeps two threads from changing the parts at once.
"""

cimport cython
from cuda.bindings cimport cydriver
from libcpp.atomic cimport atomic
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector

from cuda.core._stream_handle cimport release_stream

cdef atomic[long] _live_ranges
cdef atomic[long] _live_reservations
cdef atomic[long] _live_mappings
cdef atomic[long] _live_references

cdef CUresult OK = cydriver.CUresult.CUDA_SUCCESS


cdef dict live_parts():
    """Return how many driver objects the ranges of this process hold."""
    return {
        "ranges": _live_ranges.load(),
        "reservations": _live_reservations.load(),
        "mappings": _live_mappings.load(),
        "chunk_references": _live_references.load(),
    }


cdef bint _succeeded(CUresult result, const char* function, Failure* failure) noexcept nogil:
    # The first failure is the one that is told: what follows from it is a consequence.
    if result == OK:
        return True
    if failure.function == NULL:
        failure.result = result
        failure.function = function
    return False


cdef bint parts_are_empty(Parts* parts) noexcept nogil:
    return parts.reservations.empty() and parts.mappings.empty() and parts.references.empty()


cdef void move_parts(Parts* source, Parts* target) noexcept nogil:
    """Append everything of ``source`` to ``target``, which must have room for it; ``source`` is then empty."""
    cdef size_t i
    for i in range(source.reservations.size()):
        target.reservations.push_back(source.reservations[i])
    for i in range(source.mappings.size()):
        target.mappings.push_back(source.mappings[i])
    for i in range(source.references.size()):
        target.references.push_back(source.references[i])
    source.reservations.clear()
    source.mappings.clear()
    source.references.clear()


cdef Parts* new_parts() except NULL:
    return new Parts()


cdef void del_parts(Parts* parts) noexcept nogil:
    del parts


cdef bint _holds_a_mapping(Reservation reservation, Parts* parts) noexcept nogil:
    cdef size_t i
    for i in range(parts.mappings.size()):
        if (
            parts.mappings[i].address < reservation.base + reservation.size
            and reservation.base < parts.mappings[i].address + parts.mappings[i].size
        ):
            return True
    return False


cdef bint return_parts(Parts* parts, Failure* failure) noexcept nogil:
    """Give everything back; what the driver refuses stays in ``parts``, for the next attempt.

    Each part is tried once. A reservation under a mapping that stayed is not tried: it would be refused, and the
    refusal would say nothing new.
    """
    cdef size_t i, kept = 0
    for i in range(parts.mappings.size()):
        if _succeeded(
            cydriver.cuMemUnmap(parts.mappings[i].address, parts.mappings[i].size), b"cuMemUnmap", failure
        ):
            _live_mappings.fetch_sub(1)
        else:
            parts.mappings[kept] = parts.mappings[i]
            kept += 1
    parts.mappings.resize(kept)
    kept = 0
    for i in range(parts.reservations.size()):
        if not _holds_a_mapping(parts.reservations[i], parts) and _succeeded(
            cydriver.cuMemAddressFree(parts.reservations[i].base, parts.reservations[i].size),
            b"cuMemAddressFree",
            failure,
        ):
            _live_reservations.fetch_sub(1)
        else:
            parts.reservations[kept] = parts.reservations[i]
            kept += 1
    parts.reservations.resize(kept)
    kept = 0
    for i in range(parts.references.size()):
        if _succeeded(cydriver.cuMemRelease(parts.references[i]), b"cuMemRelease", failure):
            _live_references.fetch_sub(1)
        else:
            parts.references[kept] = parts.references[i]
            kept += 1
    parts.references.resize(kept)
    return parts_are_empty(parts)


cdef bint _reserve(Parts* parts, size_t size, size_t alignment, CUdeviceptr hint, Failure* failure) noexcept nogil:
    cdef Reservation reservation
    cdef CUdeviceptr base = 0
    if not _succeeded(
        cydriver.cuMemAddressReserve(&base, size, alignment, hint, 0), b"cuMemAddressReserve", failure
    ):
        return False
    reservation.base = base
    reservation.size = size
    parts.reservations.push_back(reservation)
    _live_reservations.fetch_add(1)
    return True


cdef bint _map(Parts* parts, CUdeviceptr address, size_t size, AllocationHandle chunk, Rights rights,
               Failure* failure) noexcept nogil:
    """Map a chunk and give the reference up at once: from here on the mapping alone keeps the chunk."""
    cdef Mapping mapping
    cdef Failure ignored
    cdef bint mapped = _succeeded(cydriver.cuMemMap(address, size, 0, chunk, 0), b"cuMemMap", failure)
    ignored.function = NULL
    if mapped:
        mapping.address = address
        mapping.size = size
        mapping.rights = rights
        parts.mappings.push_back(mapping)
        _live_mappings.fetch_add(1)
    if not _succeeded(cydriver.cuMemRelease(chunk), b"cuMemRelease", &ignored):
        # The memory is usable all the same. The reference is kept in the record and returned with the rest.
        parts.references.push_back(chunk)
        _live_references.fetch_add(1)
    return mapped


cdef bint _map_new_chunk(Parts* parts, CUdeviceptr address, ChunkRequest* request, Failure* failure) noexcept nogil:
    cdef AllocationHandle chunk = 0
    if not _succeeded(
        cydriver.cuMemCreate(&chunk, request.size, &request.properties, 0), b"cuMemCreate", failure
    ):
        return False
    return _map(parts, address, request.size, chunk, request.rights, failure)


cdef bint _give_access(Parts* parts, Failure* failure) noexcept nogil:
    """Set the rights of all mappings, one call for each run of neighbours with the same rights."""
    cdef size_t i = 0, after
    cdef size_t size
    cdef vector[cydriver.CUmemAccessDesc]* rights
    while i < parts.mappings.size():
        size = parts.mappings[i].size
        after = i + 1
        while (
            after < parts.mappings.size()
            and parts.mappings[after].address == parts.mappings[i].address + size
            and parts.mappings[after].rights.get() == parts.mappings[i].rights.get()
        ):
            size += parts.mappings[after].size
            after += 1
        rights = parts.mappings[i].rights.get()
        if rights != NULL and not rights.empty():
            if not _succeeded(
                cydriver.cuMemSetAccess(parts.mappings[i].address, size, rights.data(), rights.size()),
                b"cuMemSetAccess",
                failure,
            ):
                return False
        i = after
    return True


cdef class VirtualRange:
    """Address space with physical chunks mapped into it from its start on, and the ownership word of all that.

    ``base`` is where the memory begins, ``mapped`` how many bytes of it are usable, ``capacity`` how many lie in
    adjacent reservations: growing up to it keeps the address for certain.
    """

    def __dealloc__(self):
        release_stream(self.left_order)
        # Nobody can return what is left here: it was given away, or lost, and was told of when that happened.
        self.gather_late()
        move_parts(&self.retired, &self.parts)
        _live_references.fetch_sub(self.parts.references.size())
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
            _live_ranges.fetch_add(1 if holds else -1)

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
        cdef CUdeviceptr wanted = self.base + self.capacity
        if more_addresses:
            if not _reserve(&scratch, more_addresses, granularity, wanted, failure):
                return GROW_FAILED
            if scratch.reservations[0].base != wanted:
                self._undo(&scratch)
                return GROW_ELSEWHERE
        if not (
            _map_new_chunk(&scratch, self.base + self.mapped, request, failure)
            and _give_access(&scratch, failure)
        ):
            self._undo(&scratch)
            return GROW_FAILED
        move_parts(&scratch, &self.parts)
        self.mapped += request.size
        self.capacity += more_addresses
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
        if not _reserve(&scratch, new_capacity, alignment, hint, failure):
            return False
        new_base = scratch.reservations[0].base
        if not _map_new_chunk(&scratch, new_base + self.mapped, request, failure):
            self._undo(&scratch)
            return False
        for i in range(self.parts.mappings.size()):
            mapping = self.parts.mappings[i]
            if not _succeeded(
                cydriver.cuMemRetainAllocationHandle(&chunk, <void*>mapping.address),
                b"cuMemRetainAllocationHandle",
                failure,
            ) or not _map(
                &scratch, new_base + (mapping.address - self.base), mapping.size, chunk, mapping.rights, failure
            ):
                self._undo(&scratch)
                return False
        # The new chunk lies last in the addresses and must do so in the record too.
        mapping = scratch.mappings[0]
        scratch.mappings.erase(scratch.mappings.begin())
        scratch.mappings.push_back(mapping)
        if not _give_access(&scratch, failure):
            self._undo(&scratch)
            return False
        move_parts(&self.parts, &self.retired)
        move_parts(&scratch, &self.parts)
        self._count()
        self.base = new_base
        self.mapped += request.size
        self.capacity = new_capacity
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
            self.partly_returned = True  # what is left is no longer the memory that its buffer promises
        self._count()
        return retired and current

    cdef void adopt(self, CUdeviceptr base, size_t size) noexcept nogil:
        """Take over one reservation with one mapping that somebody else made."""
        cdef Reservation reservation
        cdef Mapping mapping
        reservation.base = base
        reservation.size = size
        mapping.address = base
        mapping.size = size
        self.parts.reservations.push_back(reservation)
        self.parts.mappings.push_back(mapping)
        _live_reservations.fetch_add(1)
        _live_mappings.fetch_add(1)
        self._count()
        self.base = base
        self.mapped = size
        self.capacity = size

    cdef void give_parts_away(self, Parts* taker) noexcept nogil:
        """Move everything into ``taker``: the queue answers for it now."""
        move_parts(&self.retired, taker)
        move_parts(&self.parts, taker)
        self._count()

    cdef void take_parts_back(self, Parts* holder) noexcept nogil:
        move_parts(holder, &self.parts)
        self._count()

    cdef void abandon(self) noexcept nogil:
        """Forget parts that turned out to be somebody else's to free."""
        _live_reservations.fetch_sub(self.parts.reservations.size())
        _live_mappings.fetch_sub(self.parts.mappings.size())
        self.parts.reservations.clear()
        self.parts.mappings.clear()
        self.parts.references.clear()
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
                if not _succeeded(
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
