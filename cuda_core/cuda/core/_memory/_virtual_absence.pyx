# SPDX-License-Identifier: Apache-2.0
"""The chunks of a paused range: which there were, how they leave their addresses, and how they come back.

A range that is paused keeps its reservations. ``absent`` lists every chunk that belongs into them: where, how large,
made how, and with which rights. What is mapped at this moment, and which references are held, stands in the parts of
the range as always; so whatever fails half way, the list says what is missing and the parts say what is there.

Memory goes in three steps. All chunks are *held* by a reference; all are unmapped; then the references are given up,
which is the commit point. Before it everything can be mapped again with its bytes.

All functions here run without the GIL. The caller has claimed the range.
"""

from cuda.bindings cimport cydriver
from libcpp.vector cimport vector

from cuda.core._memory._virtual_parts cimport (
    AbsentChunk,
    ChunkRequest,
    Failure,
    Mapping,
    Parts,
    give_access,
    keep_reference,
    map_held_chunk,
    map_new_chunk,
    move_parts,
    release_reference,
    return_parts,
    succeeded,
)
from cuda.core._memory._virtual_range cimport VirtualRange


cdef bint _is_mapped(VirtualRange range_, AbsentChunk* chunk) noexcept nogil:
    cdef size_t i
    for i in range(range_.parts.mappings.size()):
        if range_.parts.mappings[i].address == chunk.address:
            return True
    return False


cdef void _sort_mappings(VirtualRange range_) noexcept nogil:
    """Bring the mappings into the order of their addresses. They nearly are, as chunks come back in order."""
    cdef Mapping mapping
    cdef size_t i, place
    for i in range(1, range_.parts.mappings.size()):
        mapping = range_.parts.mappings[i]
        place = i
        while place and range_.parts.mappings[place - 1].address > mapping.address:
            range_.parts.mappings[place] = range_.parts.mappings[place - 1]
            place -= 1
        range_.parts.mappings[place] = mapping


cdef bint _unmap_all(VirtualRange range_, Failure* failure) noexcept nogil:
    cdef Parts scratch
    cdef bint done
    scratch.mappings.swap(range_.parts.mappings)
    done = return_parts(&scratch, failure)
    move_parts(&scratch, &range_.parts)
    return done


cdef void _let_go(VirtualRange range_) noexcept nogil:
    """Give the held references up. One that is refused stays in the parts, and goes with the rest at the close."""
    cdef Failure ignored
    cdef size_t i
    ignored.function = NULL
    for i in range(range_.absent.size()):
        if range_.absent[i].held:
            release_reference(&range_.parts, range_.absent[i].held, &ignored)
    range_.absent.clear()
    range_.paused.store(0)


# --- away ---------------------------------------------------------------------------------------------------------


cdef bint hold_chunks(VirtualRange range_, Failure* failure) noexcept nogil:
    """Take a reference to each chunk, and note how it can be made again. Nothing else changes."""
    cdef AbsentChunk chunk
    cdef size_t i
    for i in range(range_.parts.mappings.size()):
        chunk.address = range_.parts.mappings[i].address
        chunk.size = range_.parts.mappings[i].size
        chunk.rights = range_.parts.mappings[i].rights
        if not succeeded(
            cydriver.cuMemRetainAllocationHandle(&chunk.held, <void*>chunk.address),
            b"cuMemRetainAllocationHandle",
            failure,
        ):
            return False
        keep_reference(&range_.parts, chunk.held)
        range_.absent.push_back(chunk)
        if not succeeded(
            cydriver.cuMemGetAllocationPropertiesFromHandle(&range_.absent.back().properties, chunk.held),
            b"cuMemGetAllocationPropertiesFromHandle",
            failure,
        ):
            return False
    return True


cdef bint unmap_chunks(VirtualRange range_, Failure* failure) noexcept nogil:
    """Unmap all chunks that are held."""
    return _unmap_all(range_, failure)


cdef bint commit_absence(VirtualRange range_, Failure* failure) noexcept nogil:
    """Give the references up, and with them the memory. The range is paused, whatever is refused.

    A chunk whose reference is refused stays held: bringing it back maps that one.
    """
    cdef bint done = True
    cdef size_t i
    range_.paused.store(1)
    for i in range(range_.absent.size()):
        if release_reference(&range_.parts, range_.absent[i].held, failure):
            range_.absent[i].held = 0
        else:
            done = False
    return done


cdef bint restore_chunks(VirtualRange range_, Failure* failure) noexcept nogil:
    """Undo what was done before the commit. Where even that is refused, the range is paused and its bytes are held."""
    cdef bint changed = range_.opened_to != 0
    cdef bint done = True
    cdef size_t i
    for i in range(range_.absent.size()):
        if not _is_mapped(range_, &range_.absent[i]):
            changed = True
            done = map_held_chunk(&range_.parts, &range_.absent[i], failure) and done
    if changed:
        _sort_mappings(range_)
        done = done and set_rights(range_, failure)
    if done:
        _let_go(range_)
    else:
        range_.paused.store(1)
    return done


# --- and back -----------------------------------------------------------------------------------------------------


cdef bint bring_back(VirtualRange range_, Failure* failure) noexcept nogil:
    """Map every chunk that is missing: the one that is held, or a new one made as it was. Then set all rights."""
    cdef ChunkRequest request
    cdef AbsentChunk* chunk
    cdef size_t i
    cdef bint done
    for i in range(range_.absent.size()):
        chunk = &range_.absent[i]
        if _is_mapped(range_, chunk):  # an earlier attempt could not take it out again
            continue
        if chunk.held:
            done = map_held_chunk(&range_.parts, chunk, failure)
        else:
            request.size = chunk.size
            request.properties = chunk.properties
            request.rights = chunk.rights
            done = map_new_chunk(&range_.parts, chunk.address, &request, failure)
        if not done:
            take_out_again(range_)
            return False
    _sort_mappings(range_)
    if not set_rights(range_, failure):
        take_out_again(range_)
        return False
    return True


cdef void take_out_again(VirtualRange range_) noexcept nogil:
    """Undo :func:`bring_back`. What is refused stays mapped, and is used by the next attempt."""
    cdef Failure ignored
    ignored.function = NULL
    _unmap_all(range_, &ignored)


cdef void end_absence(VirtualRange range_) noexcept nogil:
    """The range is whole again: this is the commit point of bringing it back."""
    _let_go(range_)


# --- rights for a copy ------------------------------------------------------------------------------------------------


cdef int _flags_of_device(Mapping* mapping, int ordinal) noexcept nogil:
    cdef vector[cydriver.CUmemAccessDesc]* rights = mapping.rights.get()
    cdef size_t i
    if rights == NULL:
        return 0
    for i in range(rights.size()):
        if (
            rights[0][i].location.type == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            and rights[0][i].location.id == ordinal
        ):
            return <int>rights[0][i].flags
    return 0


cdef bint _give_device(Mapping* mapping, int ordinal, int flags, Failure* failure) noexcept nogil:
    cdef cydriver.CUmemAccessDesc description
    description.location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = ordinal
    description.flags = <cydriver.CUmemAccess_flags>flags
    return succeeded(
        cydriver.cuMemSetAccess(mapping.address, mapping.size, &description, 1), b"cuMemSetAccess", failure
    )


cdef bint open_to_device(VirtualRange range_, int ordinal, int flags, Failure* failure) noexcept nogil:
    """Let a device copy from or to chunks whose recorded rights do not allow it, until :func:`set_rights`."""
    cdef size_t i
    for i in range(range_.parts.mappings.size()):
        if _flags_of_device(&range_.parts.mappings[i], ordinal) & flags == flags:
            continue
        range_.opened_to = ordinal + 1
        if not _give_device(&range_.parts.mappings[i], ordinal, flags, failure):
            return False
    return True


cdef bint set_rights(VirtualRange range_, Failure* failure) noexcept nogil:
    """Give all chunks their recorded rights, and take away what a copy was given."""
    cdef int ordinal = range_.opened_to - 1
    cdef size_t i
    if not give_access(&range_.parts, failure):
        return False
    if ordinal < 0:
        return True
    for i in range(range_.parts.mappings.size()):
        if not _flags_of_device(&range_.parts.mappings[i], ordinal):
            if not _give_device(&range_.parts.mappings[i], ordinal, 0, failure):
                return False
    range_.opened_to = 0
    return True
