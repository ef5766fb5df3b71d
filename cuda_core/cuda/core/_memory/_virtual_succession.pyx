# SPDX-License-Identifier: Apache-2.0
"""How a range passes from one buffer to the next, and what an operation on a range has to check and to claim.

An operation that ends with a new buffer makes that buffer and its entry first, claims the range, does its work, and
then calls :func:`succeed`, which cannot fail. One that ends with the same buffer claims and unclaims. In between nobody
else can release, grow, lend or change the range.
"""

cimport cython

from cuda.core._driver cimport error_for
from cuda.core._memory._allocation cimport QUEUE_IF_BUSY, WAIT, record_ended
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._indexed_resource cimport Holding
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_GROW,
    LOANS_MASK,
    STATE_BORROWED,
    STATE_OWNED,
    TAKER_GROWN,
    VERDICT_GO,
    VERDICT_NOT_OWNER,
)
from cuda.core._memory._release cimport must_queue, report, wait_for_order
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._memory._virtual_parts cimport CUdeviceptr, Failure, parts_are_empty
from cuda.core._memory._virtual_queue cimport queue_parts
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown
from cuda.core._errors import OwnershipError


cdef Buffer buffer_argument(object buf):
    """Return ``buf``; TypeError where it is no buffer."""
    if not isinstance(buf, Buffer):
        raise TypeError(f"buf must be a Buffer, got {type(buf).__name__}: {shown(buf)}")
    return buf


cdef int ensure_owned_here(VirtualMemoryBase resource, Buffer buffer, str what) except -1:
    """Refuse a buffer that does not own memory of this resource, or of which a close has returned a part."""
    buffer.ensure_usable()
    if buffer.state() == STATE_BORROWED:
        raise buffer.refusal(VERDICT_NOT_OWNER, what)
    if buffer.held_resource() is not resource:
        buffer.ensure_usable()  # since it was asked, another thread may have ended it, and emptied it
        raise ValueError(f"buf belongs to another resource: {buffer.describe()}")
    if buffer.range.partly_returned.load():
        raise partly_returned(buffer)
    return 0


cdef object partly_returned(Buffer buffer):
    return OwnershipError(
        f"a close that failed has returned a part of the buffer; close it again ({buffer.describe()})"
    )


cdef int ensure_not_imported(Buffer buffer, str what) except -1:
    """Refuse memory of another process, where only its owner can decide how much there is."""
    if buffer.range.imported:
        raise OwnershipError(f"a buffer that was imported from another process cannot be {what} ({buffer.describe()})")
    return 0


cdef int claim(Buffer buffer, str what) except -1:
    """Claim the range of a buffer that is not paused, so that no other thread closes, grows, lends or changes it."""
    claim_as_it_is(buffer, what)
    try:
        if buffer.range.partly_returned.load():  # since it was looked at
            raise partly_returned(buffer)
        buffer.ensure_not_paused(what)
    except BaseException:
        unclaim(buffer)
        raise
    return 0


cdef int claim_as_it_is(Buffer buffer, str what) except -1:
    """The same for a buffer that may be paused."""
    cdef int verdict
    with cython.critical_section(buffer.range):  # the end of a loan may be about to take left addresses out
        verdict = buffer.apply(EVENT_BEGIN_GROW)
    if verdict != VERDICT_GO:
        raise buffer.refusal(verdict, what)
    return 0


cdef void unclaim(Buffer buffer) noexcept:
    """Give the claim back: the buffer owns what it owned."""
    buffer.apply(EVENT_ABORT_TRANSFER)


cdef void succeed(VirtualMemoryBase resource, Buffer old, Buffer new, Holding entry, CUdeviceptr base) noexcept:
    """Make ``new`` the owner of the range that ``old`` has claimed, which began at ``base`` before."""
    cdef VirtualRange range_ = old.range
    new.pointer = range_.base
    new.kept_by_collector = old.kept_by_collector
    old.left_to = TAKER_GROWN
    new.begin(STATE_OWNED, range_, old.epoch + 1)
    old.commit_transfer(new.serial)
    record_ended(old)
    old.set_taker_serial(new.serial)
    entry.range = range_
    _enter(resource, old, new, entry, base)
    old.forget()


cdef void _enter(VirtualMemoryBase resource, Buffer old, Buffer new, Holding entry, CUdeviceptr base) noexcept:
    """Know the new buffer as the owner of its address, not the old one. The range is passed on: nothing may
    fail."""
    try:
        if new.pointer != base:
            resource.end_free(resource.begin_free(old), True)
            entry.key = <size_t>new.pointer
        resource.enter(entry, new)
    except MemoryError:  # it cannot be found by its address, and frees itself all the same
        pass


cdef int retire(VirtualMemoryBase resource, Buffer buffer) except -1:
    """Return the addresses that a grow has left. A failure is reported, and tried again at the buffer's close."""
    cdef VirtualRange range_ = buffer.range
    cdef StreamHandle* order
    cdef Failure failure
    cdef bint done
    failure.function = NULL
    if parts_are_empty(&range_.retired):
        return 0
    if range_.word.load() & LOANS_MASK:
        # Whoever looks at the old addresses keeps them until the last loan ends.
        order = buffer.hold_stream()
        with cython.critical_section(range_):
            order, range_.left_order = range_.left_order, order
        drop_stream(order)
        return 0
    order = buffer.hold_stream()  # another thread may replace it
    try:
        if must_queue(order, WAIT if resource.wait_on_close else QUEUE_IF_BUSY):
            queue_parts(&range_.retired, buffer, order, False, False)
            return 0
        wait_for_order(order)
        with nogil:
            done = range_.return_retired(&failure)
        if not done:
            raise error_for(failure.result, failure.function)
    except Exception as error:
        report(
            f"{buffer.describe()} has grown, but the addresses it left could not be returned: {error}. "
            "Its close tries again."
        )
    finally:
        drop_stream(order)
    return 0
