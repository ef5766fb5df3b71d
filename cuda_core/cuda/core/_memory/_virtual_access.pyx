# SPDX-License-Identifier: Apache-2.0
"""Who may use live memory: granting, withdrawing and asking, for all chunks of a buffer.

The driver gives rights to mappings, and takes them with the mapping. So the record of each mapping knows them, and a
move repeats them. Chunks made with one configuration share one list, and still do after a change.
"""

from cuda.bindings cimport cydriver
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector

from cuda.core._driver cimport error_for
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._release cimport wait_for_order
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._memory._virtual_parts cimport ChunkRequest, Failure, Rights, succeeded
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._virtual_succession cimport buffer_argument, claim, ensure_owned_here, unclaim
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown
from cuda.core._host import Host
from cuda.core._memory._option_checks import one_of
from cuda.core.typing import VirtualMemoryAccessType, VirtualMemoryLocationType

cdef object _access = one_of("access", VirtualMemoryAccessType, optional=True)


cdef unsigned int _flags_of(object access) except? 99:
    wanted = _access(access)
    if wanted is None:
        return cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    if wanted is VirtualMemoryAccessType.READ:
        return cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    return cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


cdef cydriver.CUmemLocation _place_of(VirtualMemoryBase resource, object device) except *:
    """Return a device, or the host for memory of the host, as the driver takes it. Makes no driver call."""
    cdef cydriver.CUmemLocation place
    cdef ChunkRequest request
    if isinstance(device, Host):
        if resource.config.location_type == VirtualMemoryLocationType.DEVICE:
            raise ValueError(f"device: the host cannot have access to memory of a device, got {shown(device)}")
        if device.numa_id is not None or device.is_numa_current:
            raise ValueError(f"device must be Host() for the host as a whole, got {shown(device)}")
        resource.held_request(&request)
        return request.properties.location
    number = getattr(device, "device_id", device)
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"device must be a Device, its ordinal or Host(), got {type(device).__name__}: {shown(device)}")
    count = resource._facts[0]
    if not 0 <= number < count:
        raise ValueError(f"device must be within [0, {count}), got {shown(number)}")
    place.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = number
    return place


cdef unsigned int _right_in(Rights rights, cydriver.CUmemLocation place) noexcept nogil:
    """Return what a list of rights gives to a place."""
    cdef size_t i
    if rights.get() != NULL:
        for i in range(rights.get().size()):
            if rights.get()[0][i].location.type == place.type and rights.get()[0][i].location.id == place.id:
                return rights.get()[0][i].flags
    return 0


cdef Rights _with_right(Rights rights, cydriver.CUmemAccessDesc wanted) noexcept nogil:
    """Return a list like this one, but for one place."""
    cdef Rights changed = make_shared[vector[cydriver.CUmemAccessDesc]]()
    cdef cydriver.CUmemAccessDesc entry
    cdef size_t i
    for i in range(rights.get().size()):
        entry = rights.get()[0][i]
        if entry.location.type != wanted.location.type or entry.location.id != wanted.location.id:
            changed.get().push_back(entry)
    if wanted.flags:
        changed.get().push_back(wanted)
    return changed


cdef bint _withdraws(VirtualRange range_, cydriver.CUmemAccessDesc wanted) noexcept nogil:
    """Whether a place loses a right that it has on any chunk."""
    cdef size_t i
    for i in range(range_.parts.mappings.size()):
        if _right_in(range_.parts.mappings[i].rights, wanted.location) & ~<unsigned int>wanted.flags:
            return True
    return False


cdef void _write_down(VirtualRange range_, cydriver.CUmemAccessDesc wanted) noexcept nogil:
    """Let the records say what the driver was told."""
    cdef size_t i
    cdef Rights before, changed
    for i in range(range_.parts.mappings.size()):
        if i == 0 or range_.parts.mappings[i].rights.get() != before.get():
            before = range_.parts.mappings[i].rights
            changed = _with_right(before, wanted)
        range_.parts.mappings[i].rights = changed


cdef int _learn(VirtualMemoryBase resource, VirtualRange range_) except -1:
    cdef Failure failure
    cdef int device_count = resource._facts[0]
    cdef bint known
    failure.function = NULL
    with nogil:
        known = range_.learn_rights(device_count, &failure)
    if not known:
        raise error_for(failure.result, failure.function)
    return 0


cdef int set_access(VirtualMemoryBase resource, object buf, object device, object access) except -1:
    """What :meth:`VirtualMemoryResource.set_access` does."""
    cdef Buffer buffer = buffer_argument(buf)
    cdef VirtualRange range_
    cdef cydriver.CUmemAccessDesc wanted
    cdef StreamHandle* order
    cdef Failure failure
    cdef bint done
    resource._options()
    wanted.flags = <cydriver.CUmemAccess_flags>_flags_of(access)
    wanted.location = _place_of(resource, device)
    ensure_owned_here(resource, buffer, "given other access")
    failure.function = NULL
    claim(buffer, "given other access")
    range_ = buffer.range
    try:
        if not range_.mapped.load():
            return 0
        _learn(resource, range_)
        if _withdraws(range_, wanted):
            # Work that uses the memory would fail, and its context with it.
            order = buffer.hold_stream()
            try:
                wait_for_order(order)
            finally:
                drop_stream(order)
        # One call for all chunks, so that it is done or refused as a whole.
        with nogil:
            done = succeeded(
                cydriver.cuMemSetAccess(range_.base, range_.mapped.load(), &wanted, 1), b"cuMemSetAccess", &failure
            )
            if done:
                _write_down(range_, wanted)
        if not done:
            raise error_for(failure.result, failure.function)
    finally:
        unclaim(buffer)
    return 0


cdef object get_access(VirtualMemoryBase resource, object buf, object device):
    """What :meth:`VirtualMemoryResource.get_access` does."""
    cdef Buffer buffer = buffer_argument(buf)
    cdef VirtualRange range_
    cdef cydriver.CUmemLocation place
    cdef unsigned int least = 3
    cdef size_t i
    resource._options()
    place = _place_of(resource, device)
    ensure_owned_here(resource, buffer, "asked for its access")
    claim(buffer, "asked for its access")
    range_ = buffer.range
    try:
        _learn(resource, range_)
        if not range_.parts.mappings.size():
            return None
        for i in range(range_.parts.mappings.size()):
            if range_.parts.mappings[i].address < range_.base + buffer.size:
                least &= _right_in(range_.parts.mappings[i].rights, place)
    finally:
        unclaim(buffer)
    return None if not least else VirtualMemoryAccessType.READ if least == 1 else VirtualMemoryAccessType.READ_WRITE
