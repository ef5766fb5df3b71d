# SPDX-License-Identifier: Apache-2.0
"""Pausing buffers: their memory goes back to the device, their addresses stay. Several at a time, all or none.

Paused is a property of the range, not a state of ownership: the buffer still owns its addresses and must return them.
Every use asks for a loan, and a loan on a paused range is refused.
"""

cimport cython

from cuda.core._driver cimport error_for
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._graph_launches cimport Launches, launches_with
from cuda.core._memory._ownership cimport LOANS_MASK, VERDICT_HAS_LOANS
from cuda.core._memory._release cimport ensure_not_capturing, report, wait_for_order
from cuda.core._memory._virtual_absence cimport (
    bring_back,
    commit_absence,
    end_absence,
    hold_chunks,
    restore_chunks,
    take_out_again,
    unmap_chunks,
)
from cuda.core._memory._virtual_contents cimport keep_contents as keep_bytes, let_contents_go, put_contents_back
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase, worth_another_try
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._virtual_succession cimport (
    buffer_argument,
    claim_as_it_is,
    ensure_not_imported,
    ensure_owned_here,
    unclaim,
)
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown
from cuda.core._errors import OwnershipError


cdef enum:
    ABOUT_TO_PAUSE = 2  # in the place of the flag of a range, while it is claimed


cdef list _checked(VirtualMemoryBase resource, object buffers, str what):
    """Return the buffers, each an owned one of this resource and given once."""
    cdef list found
    cdef Buffer buffer
    cdef set ids = set()
    if isinstance(buffers, Buffer):
        found = [buffers]
    else:
        try:
            found = list(buffers)
        except TypeError:
            raise TypeError(
                f"buffers must be a Buffer or an iterable of them, got {type(buffers).__name__}: {shown(buffers)}"
            ) from None
    for each in found:
        buffer = buffer_argument(each)
        ensure_owned_here(resource, buffer, what)
        if id(buffer) in ids:
            raise ValueError(f"the buffer was given twice ({buffer.describe()})")
        ids.add(id(buffer))
    return found


cdef int _claim_all(list buffers, str what, bint paused) except -1:
    """Claim every buffer, or none. Each must be paused, or not, as the operation wants it."""
    cdef Buffer buffer
    cdef list claimed = []
    try:
        for buffer in buffers:
            claim_as_it_is(buffer, what)
            claimed.append(buffer)
            if buffer.range.partly_returned.load():
                raise OwnershipError(
                    f"a close that failed has returned a part of the buffer; close it again ({buffer.describe()})"
                )
            if buffer.range.paused.load() != paused:
                raise OwnershipError(
                    f"the buffer is {'not paused' if paused else 'paused already'} ({buffer.describe()})"
                )
    except BaseException:
        _unclaim_all(claimed)
        raise
    return 0


cdef void _unclaim_all(list buffers) noexcept:
    cdef Buffer buffer
    for buffer in buffers:
        unclaim(buffer)


# --- pause --------------------------------------------------------------------------------------------------------


cdef int _ensure_only_graphs_look(Buffer buffer) except -1:
    """Refuse while anybody but a graph has a loan. The claim keeps new ones away; open ones may end at any time."""
    cdef VirtualRange range_ = buffer.range
    cdef bint others
    ensure_not_imported(buffer, "paused")
    with cython.critical_section(range_):
        others = ((range_.word.load() & LOANS_MASK) >> 16) != <unsigned long long>range_.graph_loans
    if others:
        raise buffer.refusal(VERDICT_HAS_LOANS, "paused")
    return 0


cdef int _return_left_addresses(Buffer buffer) except -1:
    """Return addresses that a grow has left. The chunks are mapped there, too, and would stay."""
    cdef VirtualRange range_ = buffer.range
    cdef Failure failure
    cdef bint done
    failure.function = NULL
    range_.gather_late()
    if range_.retired.mappings.empty():
        return 0
    if range_.word.load() & LOANS_MASK:
        raise BufferError(
            f"the buffer cannot be paused while a graph uses addresses that it had before a grow ({buffer.describe()})"
        )
    wait_for_order(range_.left_order)
    with nogil:
        done = range_.return_retired(&failure)
    if not done and not range_.retired.mappings.empty():
        raise error_for(failure.result, failure.function)
    return 0


cdef int pause(VirtualMemoryBase resource, object buffers, object keep_contents) except -1:
    """What :meth:`VirtualMemoryResource.pause` does."""
    cdef list paused
    cdef Buffer buffer
    cdef Failure failure
    cdef VirtualRange range_
    cdef bint done
    cdef int device_count = resource._facts[0] if resource._facts is not None else 0
    if not isinstance(keep_contents, bool):
        raise TypeError(f"keep_contents must be True or False, got {shown(keep_contents)}")
    resource._options()
    paused = _checked(resource, buffers, "paused")
    _claim_all(paused, "paused", False)
    failure.function = NULL
    try:
        for buffer in paused:
            _ensure_only_graphs_look(buffer)
        for buffer in paused:
            _ensure_not_capturing(buffer)
        for buffer in paused:
            buffer.range.paused.store(ABOUT_TO_PAUSE)  # from here on no graph that uses it is launched
        for buffer in paused:
            _wait_for(buffer)
            _wait_for_graphs(buffer)
        for buffer in paused:
            _return_left_addresses(buffer)
        for buffer in paused:
            range_ = buffer.range
            with nogil:
                done = range_.learn_rights(device_count, &failure) and hold_chunks(range_, &failure)
            if not done:
                raise error_for(failure.result, failure.function)
        if keep_contents:
            for buffer in paused:
                keep_bytes(buffer.range, resource._ordinal)
        for buffer in paused:
            range_ = buffer.range
            with nogil:
                done = unmap_chunks(range_, &failure)
            if not done:
                raise error_for(failure.result, failure.function)
    except BaseException as error:  # also for KeyboardInterrupt: the words must not stay claimed
        _restore(paused, error)
        _unclaim_all(paused)
        raise

    # Committed: what is refused from here on changes nothing but when the memory comes back.
    _commit(paused)
    _unclaim_all(paused)
    return 0


cdef int _ensure_not_capturing(Buffer buffer) except -1:
    cdef StreamHandle* order = buffer.hold_stream()
    try:
        ensure_not_capturing(order)
    finally:
        drop_stream(order)
    return 0


cdef int _wait_for(Buffer buffer) except -1:
    cdef StreamHandle* order = buffer.hold_stream()  # another thread may replace it during the wait
    try:
        wait_for_order(order)
    finally:
        drop_stream(order)
    return 0


cdef int _wait_for_graphs(Buffer buffer) except -1:
    """Wait for launches of graphs that use the buffer. They may be in any stream, which the buffer has not recorded."""
    cdef Launches launches
    cdef StreamHandle* order
    if not buffer.range.graph_loans:
        return 0
    for launches in launches_with(buffer.range):
        order = launches.hold_last()
        try:
            wait_for_order(order)
        finally:
            drop_stream(order)
    return 0


cdef int _restore(list buffers, object error) except -1:
    """Undo a pause that has failed. Where even that is refused, the buffer is paused, with its memory and bytes."""
    cdef Buffer buffer
    cdef VirtualRange range_
    cdef Failure ignored
    cdef bint done
    for buffer in buffers:
        range_ = buffer.range
        ignored.function = NULL
        with nogil:
            done = restore_chunks(range_, &ignored)
        if done:
            let_contents_go(range_)
        elif error.args and isinstance(error.args[0], str):
            error.args = (
                f"{error.args[0]}; its undo was refused, too, so that {buffer.describe()} is paused, and resumes with "
                "its contents",
                *error.args[1:],
            )
    return 0


cdef int _commit(list buffers) except -1:
    cdef Buffer buffer
    cdef VirtualRange range_
    cdef Failure failure
    cdef bint done
    cdef list refused = []
    for buffer in buffers:
        range_ = buffer.range
        failure.function = NULL
        with nogil:
            done = commit_absence(range_, &failure)
        if not done:
            refused.append((buffer, error_for(failure.result, failure.function)))
    for buffer, error in refused:
        report(
            f"{buffer.describe()} is paused, but memory of it could not be given back: {error}. Resuming uses it "
            "again; a close tries again."
        )
    return 0


# --- resume -------------------------------------------------------------------------------------------------------


cdef int resume(VirtualMemoryBase resource, object buffers) except -1:
    """What :meth:`VirtualMemoryResource.resume` does."""
    cdef list resumed
    cdef Buffer buffer
    cdef Failure failure
    cdef VirtualRange range_
    cdef bint done
    resource._options()
    resumed = _checked(resource, buffers, "resumed")
    _claim_all(resumed, "resumed", True)
    failure.function = NULL
    try:
        for buffer in resumed:
            range_ = buffer.range
            with nogil:
                done = bring_back(range_, &failure)
                if not done and worth_another_try(&failure):
                    done = bring_back(range_, &failure)
            if not done:
                raise error_for(failure.result, failure.function)
        for buffer in resumed:
            put_contents_back(buffer.range, resource._ordinal)
    except BaseException:
        for buffer in resumed:
            range_ = buffer.range
            with nogil:
                take_out_again(range_)
        _unclaim_all(resumed)
        raise
    for buffer in resumed:
        range_ = buffer.range
        with nogil:
            end_absence(range_)
    _unclaim_all(resumed)
    for buffer in resumed:
        let_contents_go(buffer.range)
    return 0
