# SPDX-License-Identifier: Apache-2.0
"""Replacing the last chunk of a range by a smaller one with the same bytes at the same address.

The driver maps and unmaps whole chunks only, so a part of one can be given back in no other way. The bytes are copied
once, on a stream of its own, between two scratch mappings that the device may use whatever the rights of the chunk are.

Between the unmap of the old chunk and the map of the new one there is nothing at the address. Where the driver refuses
the new one, the old one is mapped again. Only if it refuses that too, nothing is there, and the range is broken.
"""

from cuda.bindings cimport cydriver
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector

from cuda.core._memory._virtual_parts cimport (
    AllocationHandle,
    ChunkRequest,
    CUdeviceptr,
    Failure,
    Mapping,
    Parts,
    Rights,
    forget_parts,
    give_access,
    map_chunk,
    map_new_chunk,
    move_parts,
    reserve,
    return_parts,
    succeeded,
)
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._waited_copy cimport copy_and_wait


cdef bint _retain(CUdeviceptr address, AllocationHandle* chunk, Failure* failure) noexcept nogil:
    return succeeded(
        cydriver.cuMemRetainAllocationHandle(chunk, <void*>address), b"cuMemRetainAllocationHandle", failure
    )


cdef bint _put(Parts* parts, CUdeviceptr address, size_t size, CUdeviceptr seen_at, Rights rights,
               Failure* failure) noexcept nogil:
    """Map the chunk that is mapped at ``seen_at`` at ``address``, with these rights, or do nothing."""
    cdef AllocationHandle chunk = 0
    cdef Parts made
    cdef Failure ignored
    ignored.function = NULL
    if not _retain(seen_at, &chunk, failure):
        return False
    if map_chunk(&made, address, size, chunk, rights, failure) and give_access(&made, failure):
        move_parts(&made, parts)
        return True
    return_parts(&made, &ignored)
    move_parts(&made, parts)  # what could not be undone stays in a record
    return False


cdef int split_last_chunk(VirtualRange range_, size_t kept, int ordinal, void* context,
                          Failure* failure) noexcept nogil:
    """Replace the last chunk of a range, which ends behind ``kept`` bytes, by one that ends there.

    The caller holds the claim, has waited for whatever uses the memory, and knows the chunk's rights.
    """
    cdef Mapping last = range_.parts.mappings.back()
    cdef size_t head = range_.base + kept - last.address
    cdef Parts scratch, replaced
    cdef ChunkRequest request
    cdef AllocationHandle chunk = 0
    cdef cydriver.CUmemAccessDesc description
    cdef CUdeviceptr bytes_, copy
    cdef Failure ignored
    cdef bint alike
    cdef int outcome = SPLIT_FAILED
    ignored.function = NULL
    description.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = ordinal
    description.flags = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    request.rights = make_shared[vector[cydriver.CUmemAccessDesc]]()
    request.rights.get().push_back(description)
    request.size = head
    if not reserve(&scratch, last.size + head, 0, 0, failure) or not _retain(last.address, &chunk, failure):
        range_._undo(&scratch)
        return SPLIT_FAILED
    bytes_ = scratch.reservations[0].base
    copy = bytes_ + last.size
    # The new chunk is of the same kind and at the same place as the old one. Mapping gives the reference back.
    alike = succeeded(
        cydriver.cuMemGetAllocationPropertiesFromHandle(&request.properties, chunk),
        b"cuMemGetAllocationPropertiesFromHandle",
        failure,
    )
    if (
        map_chunk(&scratch, bytes_, last.size, chunk, request.rights, failure)
        and alike
        and map_new_chunk(&scratch, copy, &request, failure)
        and give_access(&scratch, failure)
        and copy_and_wait(copy, bytes_, head, <cydriver.CUcontext>context, failure)
        and succeeded(cydriver.cuMemUnmap(last.address, last.size), b"cuMemUnmap", failure)
    ):
        range_.parts.mappings.pop_back()
        replaced.mappings.push_back(last)
        forget_parts(&replaced)
        if _put(&range_.parts, last.address, head, copy, last.rights, failure):
            range_.mapped.store(kept)
            outcome = SPLIT_DONE
        elif not _put(&range_.parts, last.address, last.size, bytes_, last.rights, &ignored):
            outcome = SPLIT_BROKE
    range_._undo(&scratch)  # what the driver refuses is tried again with the range's own
    return outcome
