# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._graph_place cimport CapturedGraph, GraphAllocation, GraphPlace
from cuda.core._stream_handle cimport StreamHandle

cdef enum Where:
    OUTSIDE = 0      # no capture
    INSIDE = 1       # this graph's
    ELSEWHERE = 2    # another one, or one that is broken

cdef GraphPlace allocate_in_capture(StreamHandle* order, size_t size)
cdef cydriver.CUresult where_is(StreamHandle* order, CapturedGraph* graph, Where* where,
                                const char** function) noexcept nogil
cdef cydriver.CUresult free_inside(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                   Where* where, const char** function) noexcept nogil
cdef cydriver.CUresult free_outside(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                    bint* unknown, const char** function) noexcept nogil
cdef cydriver.CUresult free_left(CapturedGraph* graph, const char** function) noexcept nogil
cdef cydriver.CUresult look_at_all(CapturedGraph* graph, const char** function) noexcept nogil
