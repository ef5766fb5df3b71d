# SPDX-License-Identifier: Apache-2.0
"""Shrinking a buffer, and giving back what is mapped beyond its size. The address stays."""

from cuda.core._context cimport primary_context
from cuda.core._driver cimport error_for
from cuda.core._memory._arguments cimport round_up, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._indexed_resource cimport Holding
from cuda.core._memory._ownership cimport VERDICT_HAS_LOANS
from cuda.core._memory._release cimport report, wait_for_order
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._virtual_split cimport SPLIT_BROKE, SPLIT_DONE, split_last_chunk
from cuda.core._memory._virtual_succession cimport (
    buffer_argument,
    claim,
    ensure_not_imported,
    ensure_owned_here,
    succeed,
    unclaim,
)
from cuda.core._memory._virtual_tail cimport is_within_a_chunk, unmap_behind, whole_chunks_behind
from cuda.core._stream_handle cimport StreamHandle, drop_stream, retain_stream


cdef Buffer shrink(VirtualMemoryBase resource, object buf, object new_size, bint split):
    """What :meth:`VirtualMemoryResource.shrink` does."""
    cdef Buffer old = buffer_argument(buf), new
    cdef Holding entry
    cdef Failure failure
    cdef size_t wanted = size_argument(new_size, "new_size"), rounded  # first: it may run code that closes the buffer
    ensure_owned_here(resource, old, "shrunk")
    ensure_not_imported(old, "shrunk")
    if wanted > old.size:
        raise ValueError(
            f"new_size must be at most the size of the buffer, {old.size}, got {wanted}; modify_allocation grows"
        )
    rounded = min(round_up(wanted, resource.granularity_now(), "new_size"), old.size)
    if rounded == old.size:
        return old
    # The new buffer is made before anything happens: after the commit point nothing may fail.
    new = new_buffer(0, rounded, resource, resource._ordinal, retain_stream(old.stream))
    entry = resource.new_entry(new, old.pointer, rounded)
    failure.function = NULL
    claim(old, "shrunk")
    try:
        if old.open_loans():
            # Which bytes they look at is not known. While the range is claimed no new one begins.
            raise old.refusal(VERDICT_HAS_LOANS, "shrunk")
        _give_back_behind(resource, old, rounded, split, &failure)
    except BaseException:
        unclaim(old)
        raise
    succeed(resource, old, new, entry, old.pointer)
    if failure.function != NULL:
        report(
            f"{new.describe()} was shrunk, but not all of the memory behind it could be given back: "
            f"{error_for(failure.result, failure.function)}. It stays mapped; trim tries again, and so does the close."
        )
    return new


cdef size_t trim(VirtualMemoryBase resource, object buf, bint split) except? 0xFFFFFFFF:
    """What :meth:`VirtualMemoryResource.trim` does."""
    cdef Buffer buffer = buffer_argument(buf)
    cdef VirtualRange range_
    cdef Failure failure
    cdef size_t before
    ensure_owned_here(resource, buffer, "trimmed")
    ensure_not_imported(buffer, "trimmed")
    failure.function = NULL
    claim(buffer, "trimmed")
    range_ = buffer.range
    before = range_.mapped.load()
    try:
        if split and buffer.open_loans():
            raise buffer.refusal(VERDICT_HAS_LOANS, "trimmed")
        _give_back_behind(resource, buffer, buffer.size, split, &failure)
    finally:
        unclaim(buffer)
    if failure.function != NULL:
        report(
            f"not all of the memory behind {buffer.describe()} could be given back: "
            f"{error_for(failure.result, failure.function)}. It stays mapped; trim tries again, and so does the close."
        )
    return before - range_.mapped.load()


cdef int _give_back_behind(VirtualMemoryBase resource, Buffer buffer, size_t kept, bint split,
                           Failure* failure) except -1:
    """Give back the memory of a claimed range behind ``kept`` bytes. The first change is the point of no return.

    Raises
    ------
    CUDAError
        If the driver has refused and the memory is what it was; ``failure`` tells of what was refused later. Also where
        a chunk was lost in its exchange, see :func:`split_last_chunk`.
    """
    cdef VirtualRange range_ = buffer.range
    cdef size_t chunks = whole_chunks_behind(range_, kept), done = 0
    cdef bint through = split and is_within_a_chunk(range_, kept)
    cdef int outcome = SPLIT_DONE
    cdef StreamHandle* order
    cdef int device_count = resource._facts[0]
    cdef bint known
    cdef void* context = NULL
    if not chunks and not through:
        return 0
    if through:
        context = <void*>primary_context(resource._ordinal)
        with nogil:
            known = range_.learn_rights(device_count, failure)
        if not known:
            raise error_for(failure.result, failure.function)
    order = buffer.hold_stream()  # another thread may replace it while this one waits
    try:
        wait_for_order(order)
    finally:
        drop_stream(order)
    with nogil:
        done = unmap_behind(range_, kept, failure)
        if through and done == chunks:
            outcome = split_last_chunk(range_, kept, resource._ordinal, context, failure)
    if outcome == SPLIT_BROKE:
        range_.partly_returned.store(1)
        raise error_for(failure.result, failure.function)
    if failure.function != NULL and not done:
        raise error_for(failure.result, failure.function)
    return 0
