# SPDX-License-Identifier: Apache-2.0
"""The parts of virtual memory: what the driver has handed out and must get back, and how each is made and returned.

Parts are reservations of address space (freed by their exact pair of address and size), mappings of physical chunks
(each unmapped by one call), and references to chunks whose release was refused. What has to be undone is read from the
parts and never computed from sizes.

All functions here run without the GIL and report through :class:`Failure`.
"""

from cuda.bindings cimport cydriver
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector

from cuda.core._memory._address_space cimport count_addresses, reserved_addresses, uncount_addresses

cdef atomic[long] _live_ranges
cdef atomic[long] _live_reservations
cdef atomic[long] _live_mappings
cdef atomic[long] _live_references

cdef CUresult OK = cydriver.CUresult.CUDA_SUCCESS


cdef void count_range(int change) noexcept nogil:
    _live_ranges.fetch_add(change)


cdef dict live_parts():
    """Return how many driver objects the ranges of this process hold."""
    return {
        "ranges": _live_ranges.load(),
        "reservations": _live_reservations.load(),
        "mappings": _live_mappings.load(),
        "chunk_references": _live_references.load(),
        "reserved_addresses": reserved_addresses(),
    }


cdef bint succeeded(CUresult result, const char* function, Failure* failure) noexcept nogil:
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
    if parts_are_empty(target):  # nearly always: then nothing is copied, and no room is needed
        target.reservations.swap(source.reservations)
        target.mappings.swap(source.mappings)
        target.references.swap(source.references)
        return
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
    if parts_are_empty(parts):
        return True
    for i in range(parts.mappings.size()):
        if succeeded(
            cydriver.cuMemUnmap(parts.mappings[i].address, parts.mappings[i].size), b"cuMemUnmap", failure
        ):
            _live_mappings.fetch_sub(1)
        else:
            parts.mappings[kept] = parts.mappings[i]
            kept += 1
    parts.mappings.resize(kept)
    kept = 0
    for i in range(parts.reservations.size()):
        if not _holds_a_mapping(parts.reservations[i], parts) and succeeded(
            cydriver.cuMemAddressFree(parts.reservations[i].base, parts.reservations[i].size),
            b"cuMemAddressFree",
            failure,
        ):
            _live_reservations.fetch_sub(1)
            uncount_addresses(parts.reservations[i].size)
        else:
            parts.reservations[kept] = parts.reservations[i]
            kept += 1
    parts.reservations.resize(kept)
    kept = 0
    for i in range(parts.references.size()):
        if succeeded(cydriver.cuMemRelease(parts.references[i]), b"cuMemRelease", failure):
            _live_references.fetch_sub(1)
        else:
            parts.references[kept] = parts.references[i]
            kept += 1
    parts.references.resize(kept)
    return parts_are_empty(parts)


cdef bint reserve(Parts* parts, size_t size, size_t alignment, CUdeviceptr hint, Failure* failure) noexcept nogil:
    cdef Reservation reservation
    cdef CUdeviceptr base = 0
    if not succeeded(
        cydriver.cuMemAddressReserve(&base, size, alignment, hint, 0), b"cuMemAddressReserve", failure
    ):
        return False
    reservation.base = base
    reservation.size = size
    parts.reservations.push_back(reservation)
    _live_reservations.fetch_add(1)
    count_addresses(size)
    return True


cdef void keep_reference(Parts* parts, AllocationHandle chunk) noexcept nogil:
    """Count a reference to a chunk among the parts, to be returned with the rest or on its own."""
    parts.references.push_back(chunk)
    _live_references.fetch_add(1)


cdef bint release_reference(Parts* parts, AllocationHandle chunk, Failure* failure) noexcept nogil:
    """Give up one reference of the parts. Refused, it stays."""
    cdef size_t i
    if not succeeded(cydriver.cuMemRelease(chunk), b"cuMemRelease", failure):
        return False
    for i in range(parts.references.size()):
        if parts.references[i] == chunk:
            parts.references[i] = parts.references.back()
            parts.references.pop_back()
            _live_references.fetch_sub(1)
            break
    return True


cdef bint _map(Parts* parts, CUdeviceptr address, size_t size, AllocationHandle chunk, Rights rights,
               Failure* failure) noexcept nogil:
    cdef Mapping mapping
    if not succeeded(cydriver.cuMemMap(address, size, 0, chunk, 0), b"cuMemMap", failure):
        return False
    mapping.address = address
    mapping.size = size
    mapping.rights = rights
    parts.mappings.push_back(mapping)
    _live_mappings.fetch_add(1)
    return True


cdef bint map_held_chunk(Parts* parts, AbsentChunk* chunk, Failure* failure) noexcept nogil:
    """Map a chunk that is held by a reference. The reference stays."""
    return _map(parts, chunk.address, chunk.size, chunk.held, chunk.rights, failure)


cdef bint map_chunk(Parts* parts, CUdeviceptr address, size_t size, AllocationHandle chunk, Rights rights,
                    Failure* failure) noexcept nogil:
    """Map a chunk and give the reference up at once: from here on the mapping alone keeps the chunk."""
    cdef Failure ignored
    cdef bint mapped = _map(parts, address, size, chunk, rights, failure)
    ignored.function = NULL
    if not succeeded(cydriver.cuMemRelease(chunk), b"cuMemRelease", &ignored):
        # The memory is usable all the same. The reference is kept in the record and returned with the rest.
        keep_reference(parts, chunk)
    return mapped


cdef bint map_new_chunk(Parts* parts, CUdeviceptr address, ChunkRequest* request, Failure* failure) noexcept nogil:
    cdef AllocationHandle chunk = 0
    if not succeeded(
        cydriver.cuMemCreate(&chunk, request.size, &request.properties, 0), b"cuMemCreate", failure
    ):
        return False
    return map_chunk(parts, address, request.size, chunk, request.rights, failure)


cdef bint give_access(Parts* parts, Failure* failure) noexcept nogil:
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
            if not succeeded(
                cydriver.cuMemSetAccess(parts.mappings[i].address, size, rights.data(), rights.size()),
                b"cuMemSetAccess",
                failure,
            ):
                return False
        i = after
    return True


cdef void take_over(Parts* parts, CUdeviceptr base, size_t size) noexcept nogil:
    """Count one reservation with one mapping that somebody else made among the parts."""
    cdef Reservation reservation
    cdef Mapping mapping
    reservation.base = base
    reservation.size = size
    mapping.address = base
    mapping.size = size
    parts.reservations.push_back(reservation)
    parts.mappings.push_back(mapping)
    _live_reservations.fetch_add(1)
    count_addresses(size)
    _live_mappings.fetch_add(1)


cdef void forget_parts(Parts* parts) noexcept nogil:
    """Forget parts that are somebody else's to free, or that nobody can return any more."""
    cdef size_t i
    for i in range(parts.reservations.size()):
        uncount_addresses(parts.reservations[i].size)
    _live_reservations.fetch_sub(parts.reservations.size())
    _live_mappings.fetch_sub(parts.mappings.size())
    _live_references.fetch_sub(parts.references.size())
    parts.reservations.clear()
    parts.mappings.clear()
    parts.references.clear()
