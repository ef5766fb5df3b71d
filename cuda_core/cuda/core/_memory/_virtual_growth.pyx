# SPDX-License-Identifier: Apache-2.0
"""Growing a buffer: in its reservation, in addresses that the driver grants, or by moving."""

from cuda.core._driver cimport error_for
from cuda.core._memory._arguments cimport round_up, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._indexed_resource cimport Holding
from cuda.core._memory._release cimport ensure_not_capturing
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase, worth_another_try
from cuda.core._memory._virtual_memory_request cimport check_fit, prepare_request
from cuda.core._memory._virtual_parts cimport ChunkRequest, CUdeviceptr, Failure
from cuda.core._memory._virtual_range cimport GROW_ELSEWHERE, GROW_FAILED, GROWN, VirtualRange
from cuda.core._memory._virtual_succession cimport (
    buffer_argument,
    claim,
    ensure_owned_here,
    retire,
    succeed,
    unclaim,
)
from cuda.core._stream_handle cimport retain_stream

from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions


cdef Buffer grow(VirtualMemoryBase resource, object buf, object new_size, object config):
    """What :meth:`VirtualMemoryResource.modify_allocation` does."""
    cdef Buffer old, new
    cdef Holding entry
    cdef VirtualRange range_
    cdef ChunkRequest request
    cdef Failure failure
    cdef size_t wanted, rounded, granularity = 0, target, alignment, more
    cdef int outcome = GROW_ELSEWHERE
    cdef CUdeviceptr base
    cdef bint moved = False, done
    cdef int device_count = resource._facts[0] if resource._facts is not None else 0
    old = buffer_argument(buf)
    options = resource._options()
    wanted = size_argument(new_size, "new_size")  # which may run code that closes the buffer, so this comes first
    if config is not None:
        options = VirtualMemoryResourceOptions._accept(config, "config")
        if options.location_type != resource.config.location_type:
            raise ValueError(
                f"config must keep the location {resource.config.location_type.value!r}, "
                f"got {options.location_type.value!r}"
            )
        check_fit(resource._ordinal, resource._facts, options)
    ensure_owned_here(resource, old, "grown")
    if wanted <= old.size:
        return buf
    resource._refresh()
    if config is None:
        request, granularity = resource._request, resource._granularity
    else:
        prepare_request(resource._ordinal, options, &request, &granularity)
    rounded = round_up(wanted, granularity, "new_size")
    alignment = options.addr_align or granularity
    # The new buffer is made before anything happens: after the commit point nothing may fail.
    new = new_buffer(0, rounded, resource, resource._ordinal, retain_stream(old.stream))
    entry = resource.new_entry(new, old.pointer, rounded)
    failure.function = NULL

    claim(old, "grown")
    range_ = old.range
    base = range_.base
    try:
        with nogil:
            done = range_.learn_rights(device_count, &failure)
        if not done:
            raise error_for(failure.result, failure.function)
        request.size = rounded - range_.mapped
        more = rounded - range_.capacity if rounded > range_.capacity else 0
        if range_.capacity:
            with nogil:
                outcome = range_.grow_in_place(more, granularity, &request, &failure)
                if outcome == GROW_FAILED and worth_another_try(&failure):
                    outcome = range_.grow_in_place(more, granularity, &request, &failure)
        if outcome == GROW_ELSEWHERE:
            # Retiring the old addresses would wait for the recorded stream. If that is being captured, say so now.
            ensure_not_capturing(old.stream)
            target = max(rounded, round_up(options.reserve_size, granularity, "reserve_size"))
            with nogil:
                moved = range_.move(target, alignment, 0, &request, &failure)
                if not moved and worth_another_try(&failure):
                    moved = range_.move(target, alignment, 0, &request, &failure)
            outcome = GROWN if moved else GROW_FAILED
        if outcome == GROW_FAILED:
            raise error_for(failure.result, failure.function)
    except BaseException:  # also for KeyboardInterrupt: the word must not stay claimed
        unclaim(old)
        raise

    # Committed: from here on the new buffer owns everything, whatever else happens.
    succeed(resource, old, new, entry, base)
    if moved:
        retire(new)
    return new
