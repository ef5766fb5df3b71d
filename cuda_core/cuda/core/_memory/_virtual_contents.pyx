# SPDX-License-Identifier: Apache-2.0
"""What the memory of a paused range held, kept in pinned memory of the host while it is away."""

from cuda.bindings cimport cydriver

from cuda.core._context cimport primary_context
from cuda.core._driver cimport check, error_for
from cuda.core._memory._buffer cimport Buffer
from cuda.core._shared_containers cimport take_all
from cuda.core._memory._release cimport report
from cuda.core._memory._virtual_absence cimport open_to_device, set_rights
from cuda.core._memory._virtual_parts cimport CUresult, Failure
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._waited_copy cimport copy_and_wait
from cuda.core._stream_handle cimport drop_stream

from cuda.core._memory._legacy import LegacyPinnedMemoryResource

cdef object _at_host = LegacyPinnedMemoryResource()
cdef list _refused = []     # buffers at the host that the driver would not take back


cdef cydriver.CUcontext _enter(int ordinal) except NULL:
    """Make the primary context of a device current, until it is popped; nothing depends on what the caller has."""
    cdef cydriver.CUcontext context = primary_context(ordinal)
    cdef CUresult result
    with nogil:
        result = cydriver.cuCtxPushCurrent(context)
    check(result, b"cuCtxPushCurrent")
    return context


cdef void _leave() noexcept:
    cdef cydriver.CUcontext popped = NULL
    with nogil:
        cydriver.cuCtxPopCurrent(&popped)


cdef int keep_contents(VirtualRange range_, int ordinal) except -1:
    """Copy everything to the host. ``ordinal`` is the device that copies; it may need rights for that.

    Raises
    ------
    CUDAError
        If there is no memory, or the driver refuses. What is kept by then goes with :func:`let_contents_go`.
    """
    cdef Failure failure
    cdef cydriver.CUcontext context
    cdef Buffer there
    cdef bint done
    failure.function = NULL
    if not range_.mapped.load():
        return 0
    context = _enter(ordinal)
    try:
        there = _at_host.allocate(range_.mapped.load())
        # What is done with it is waited for here. Its release must wait for nobody else's work.
        drop_stream(there.swap_stream(NULL))
        range_.contents = there
    finally:
        _leave()
    with nogil:
        done = open_to_device(
            range_, ordinal, cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ, &failure
        ) and copy_and_wait(there.pointer, range_.base, range_.mapped.load(), context, &failure)
    if not done:
        raise error_for(failure.result, failure.function)
    return 0


cdef int put_contents_back(VirtualRange range_, int ordinal) except -1:
    """Copy what was kept to where it was. Afterwards the range has its recorded rights."""
    cdef Failure failure
    cdef cydriver.CUcontext context
    cdef Buffer there = range_.contents
    cdef bint done
    failure.function = NULL
    if there is None:
        return 0
    context = primary_context(ordinal)
    with nogil:
        done = open_to_device(
            range_, ordinal, cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &failure
        ) and copy_and_wait(range_.base, there.pointer, range_.mapped.load(), context, &failure)
    if not done:
        raise error_for(failure.result, failure.function)
    if range_.opened_to:
        with nogil:
            done = set_rights(range_, &failure)
        if not done:
            raise error_for(failure.result, failure.function)
    return 0


cdef int let_contents_go(VirtualRange range_) except -1:
    """Free what was kept. A refusal is reported once, and tried again the next time that anything was kept or freed."""
    cdef object kept = range_.contents
    if kept is None and not _refused:
        return 0
    range_.contents = None
    for each in take_all(_refused):
        _free(each, False)
    if kept is not None:
        _free(kept, True)
    return 0


cdef int _free(object kept, bint told) except -1:
    try:
        kept.close()
    except Exception as error:
        if kept.is_closed:  # lost with its context
            return 0
        _refused.append(kept)
        if told:
            report(f"{(<Buffer>kept).describe()} held the contents of a paused buffer and could not be freed: {error}")
    return 0
