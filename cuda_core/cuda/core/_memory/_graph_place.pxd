# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t, uint64_t, uintptr_t

from cuda.core._memory._allocation cimport Keeper
from cuda.core._pthread cimport pthread_mutex_t
from cuda.core._stream_handle cimport StreamHandle

cdef enum:
    PLACE_HELD = 0    # a buffer, or what a buffer was handed over as, answers for what is allocated here
    PLACE_LEFT = 1    # nobody does any more: the graph frees what a launch allocates
    PLACE_FREED = 2   # a node of the graph frees it

# One allocation that a graph makes, at the same address in every launch.
cdef struct GraphAllocation:
    GraphAllocation* next
    uintptr_t address
    int place
    bint armed        # a launch has allocated it, and nothing of ours has freed it

# Told by the driver that the graph, and all that was made from it, is gone.
cdef struct Gone:
    long count
    int gone

cdef struct CapturedGraph:
    long count
    CapturedGraph* next               # once nobody holds it
    uint64_t id                       # of the capture
    uint16_t generation               # of forks
    pthread_mutex_t mutex             # of everything below; never taken with the GIL, or in a destructor of the driver
    Gone* gone
    bint in_doubt                     # a launch was refused, and may have allocated all the same
    bint ended                        # it is gone, and what is armed is known
    int parts                         # the graph and the executables that this package has of it
    GraphAllocation* allocations
    StreamHandle* launched_on         # by the last launch
    cydriver.CUstream* continued      # streams whose later work joins the capture: the origin, forks until they join
    int continued_count

cdef class GraphReference:
    cdef CapturedGraph* graph
    cdef set lent               # ranges of virtual memory that it has the addresses of; they may be paused
    cdef object __weakref__

cdef class GraphPlace(Keeper):
    cdef GraphReference of
    cdef GraphAllocation* allocation

cdef void graph_is_gone(void* data) noexcept nogil
cdef void let_go_of(Gone* gone) noexcept nogil
cpdef long live_graphs() noexcept
cdef CapturedGraph* retain_graph(CapturedGraph* graph) noexcept nogil
cdef void release_graph(CapturedGraph* graph) noexcept nogil
cdef void release_graph_on_reaper(CapturedGraph* graph) noexcept nogil
cdef GraphReference reference_of_capture(uint64_t id)
cdef int note_lent(uint64_t id, object range_) except -1
cdef int continue_on(CapturedGraph* graph, cydriver.CUstream stream) except -1
cdef void stop_on(CapturedGraph* graph, cydriver.CUstream stream) noexcept nogil
cdef bint continues(CapturedGraph* graph, cydriver.CUstream stream) noexcept nogil
cdef void part_ends(CapturedGraph* graph) noexcept nogil
