# SPDX-License-Identifier: Apache-2.0
"""Growing a buffer: in its reservation, in addresses that the driver grants, or by moving."""

cimport cython
from cuda.bindings cimport cydriver

from cuda.core._driver cimport error_for
from cuda.core._memory._address_space cimport ensure_addresses_left
from cuda.core._memory._arguments cimport round_up, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._indexed_resource cimport Holding
from cuda.core._memory._loans cimport Loan
from cuda.core._memory._ownership cimport EVENT_LEND, VERDICT_GO
from cuda.core._memory._queue cimport wait_for_room
from cuda.core._memory._release cimport ensure_not_capturing
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase, grow_error, worth_another_try
from cuda.core._memory._virtual_memory_request cimport check_fit, prepare_request
from cuda.core._memory._virtual_parts cimport ChunkRequest, CUdeviceptr, Failure
from cuda.core._memory._virtual_range cimport GROW_ELSEWHERE, GROW_FAILED, GROWN, VirtualRange
from cuda.core._memory._virtual_succession cimport (
    buffer_argument,
    claim,
    ensure_not_imported,
    ensure_owned_here,
    retire,
    succeed,
    unclaim,
)
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import for_allocation
from cuda.core.typing import VirtualMemoryGrowthType


cdef class _Growth:
    """One grow under way: what is wanted, of which range, and what the driver answered last."""

    cdef Buffer old
    cdef VirtualRange range_
    cdef object options
    cdef ChunkRequest request
    cdef Failure failure
    cdef size_t granularity
    cdef size_t asked_for       # bytes of addresses
    cdef bint moved

    cdef size_t worthwhile(self, size_t needed):
        """Return how much to map where ``needed`` more bytes are asked for."""
        cdef size_t mapped = self.range_.mapped.load(), room = self.range_.capacity.load() - mapped
        cdef size_t more
        if self.options.growth != VirtualMemoryGrowthType.GEOMETRIC:
            return needed
        more = max(needed, round_up(mapped // 2, self.granularity, "new_size"))
        # What is only mapped ahead is not worth other addresses.
        return min(more, room) if needed <= room else more

    cdef int add(self, size_t size) except -1:
        """Map so many bytes more, in the same addresses if that can be, else in others. GROWN or GROW_FAILED."""
        cdef VirtualRange range_ = self.range_
        cdef size_t end = range_.mapped.load() + size
        cdef size_t more = end - range_.capacity.load() if end > range_.capacity.load() else 0
        cdef size_t reserved, alignment
        cdef StreamHandle* order
        cdef int outcome = GROW_ELSEWHERE
        self.failure.function = NULL
        self.request.size = size
        self.asked_for = more
        if range_.capacity.load():
            with nogil:
                outcome = range_.grow_in_place(more, self.granularity, &self.request, &self.failure)
            if outcome != GROW_ELSEWHERE:
                return outcome
        # Retiring the old addresses would wait for the recorded stream. If that is being captured, say so now.
        order = self.old.hold_stream()
        try:
            ensure_not_capturing(order)
        finally:
            drop_stream(order)
        reserved = max(end, round_up(self.options.reserve_size, self.granularity, "reserve_size"))
        if reserved > end:
            ensure_addresses_left(reserved)
        alignment = self.options.addr_align or self.granularity
        self.asked_for = reserved
        with nogil:
            self.moved = range_.move(reserved, alignment, 0, &self.request, &self.failure)
        return GROWN if self.moved else GROW_FAILED

    cdef int run(self, size_t size, int device_count) except -1:
        """Let the range have ``size`` usable bytes. Raises with the range as it was."""
        cdef size_t needed, worthwhile
        cdef bint done, again
        if size <= self.range_.mapped.load():
            return 0  # an earlier grow has mapped it ahead
        self.failure.function = NULL
        with nogil:
            done = self.range_.learn_rights(device_count, &self.failure)
        if not done:
            raise error_for(self.failure.result, self.failure.function)
        needed = size - self.range_.mapped.load()
        worthwhile = self.worthwhile(needed)
        if worthwhile > needed:
            if self.add(worthwhile) == GROWN:
                return 0
            if self.failure.result != cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise grow_error(self.failure, self.asked_for)
        if self.add(needed) == GROWN:
            return 0
        with nogil:  # it waits for the queue
            again = worth_another_try(&self.failure)
        if again and self.add(needed) == GROWN:
            return 0
        raise grow_error(self.failure, self.asked_for)


cdef Buffer grow(VirtualMemoryBase resource, object buf, object new_size, object config, bint keep_old):
    """What :meth:`VirtualMemoryResource.modify_allocation` does."""
    cdef Buffer old = buffer_argument(buf), new
    cdef Holding entry
    cdef Loan kept = None
    cdef _Growth growth
    cdef size_t wanted, rounded
    cdef CUdeviceptr base
    cdef int device_count = resource._facts[0] if resource._facts is not None else 0
    options = resource._options()
    wanted = size_argument(new_size, "new_size")  # which may run code that closes the buffer, so this comes first
    if config is not None:
        from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions

        options = VirtualMemoryResourceOptions._accept(config, "config")
        if options.location_type != resource.config.location_type:
            raise ValueError(
                f"config must keep the location {resource.config.location_type.value!r}, "
                f"got {options.location_type.value!r}"
            )
        check_fit(resource._ordinal, resource._facts, options)
    ensure_owned_here(resource, old, "grown")
    if wanted <= old.size:
        return old
    ensure_not_imported(old, "grown")
    resource._refresh()
    growth = _Growth.__new__(_Growth)
    growth.old, growth.range_, growth.options = old, old.range, options
    if config is None:
        growth.granularity = resource.held_request(&growth.request)
    else:
        prepare_request(resource._ordinal, options, &growth.request, &growth.granularity)
    rounded = round_up(wanted, growth.granularity, "new_size")
    if not resource.wait_on_close:
        wait_for_room()  # old addresses may go to the queue, which is bounded
    # The new buffer is made before anything happens: after the commit point nothing may fail.
    new = new_buffer(0, rounded, resource, resource._ordinal, old.hold_stream())
    entry = resource.new_entry(new, old.pointer, rounded)
    if keep_old:
        kept = Loan.__new__(Loan)
    claim(old, "grown")
    base = old.range.base
    try:
        growth.run(rounded, device_count)
    except BaseException as error:  # also for KeyboardInterrupt: the word must not stay claimed
        unclaim(old)
        for_allocation(error, resource, rounded)
        raise

    # Committed: from here on the new buffer owns everything, whatever else happens.
    succeed(resource, old, new, entry, base)
    if growth.moved:
        if keep_old and new.apply(EVENT_LEND) == VERDICT_GO:
            kept.record = new
            kept.open.store(1)
            with cython.critical_section(old):
                old.owner = kept
        retire(resource, new)
    return new
