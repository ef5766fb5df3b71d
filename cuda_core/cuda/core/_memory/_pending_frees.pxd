# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._stream_handle cimport StreamHandle

cdef struct FreeingStream:
    FreeingStream* next
    StreamHandle* stream      # retained

cdef struct FreeEvent:
    FreeEvent* next
    cydriver.CUevent event    # behind a free
    cydriver.CUcontext context

# The frees into one pool that may not have run yet. All zero: none.
cdef struct PendingFrees:
    StreamHandle* recent      # in the list, newest; looked at without the lock
    FreeingStream* streams
    int stream_count
    FreeEvent* events
    long outside              # allocations that foreign code has, which tells nobody when it returns them
    bint unknown              # one could not be noted

cdef extern from *:
    """
    /* Behind the free, and before whatever takes the stream off the list asks the driver for an event in it. */
    static inline void* _read_recent(void* const* place) { return __atomic_load_n(place, __ATOMIC_SEQ_CST); }
    """
    void* _read_recent(void** place) noexcept nogil

cdef void add_stream_of_free(PendingFrees* frees, StreamHandle* order) noexcept nogil

cdef inline void note_free(PendingFrees* frees, StreamHandle* order) noexcept nogil:
    """Remember a stream that lives as long as its handle, after a free in it."""
    if frees != NULL and _read_recent(<void**>&frees.recent) != <void*>order:
        add_stream_of_free(frees, order)

cdef cydriver.CUresult prepare_note(PendingFrees* frees, FreeEvent** note, const char** function) noexcept nogil
cdef void finish_note(PendingFrees* frees, FreeEvent* note, cydriver.CUstream stream,
                      cydriver.CUresult freed) noexcept nogil
cdef bint all_is_known(PendingFrees* frees) noexcept nogil
cdef bint frees_have_run(PendingFrees* frees, bint* blocked) noexcept nogil
cdef void forget_frees(PendingFrees* frees) noexcept nogil
