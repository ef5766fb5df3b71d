# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libcpp.atomic cimport atomic

from cuda.core._memory._graph_launches cimport Launches
from cuda.core._memory._graph_place cimport CapturedGraph, GraphReference
from cuda.core._stream cimport StreamCarrier
from cuda.core._stream_handle cimport StreamHandle

# What is done with an executable in the order of a stream, with the mutex of its graph.
# With the number of captures that had begun when the stream was not being captured; tells if it has been since.
ctypedef cydriver.CUresult (*InStream)(CapturedGraph*, size_t, StreamHandle**, long, bint*, const char**) noexcept nogil

# What a graph can be made or updated from.
cdef class GraphSource(StreamCarrier):
    cdef GraphReference _of             # None before the capture
    cdef cydriver.CUgraph _captured     # NULL before its end
    cdef int ensure_captured(self) except -1

cdef class Graph:
    cdef GraphReference _of
    cdef GraphReference _uses           # the capture that it was made from, or last updated from
    cdef atomic[size_t] _executable     # a CUgraphExec; changes under the mutex of the graph, 0 once closed
    cdef Launches _launches             # of this executable
    cdef object __weakref__
    cdef CapturedGraph* _open(self) except NULL
    cdef cydriver.CUresult _in_stream(self, object stream, str what, InStream put, tuple lent,
                                      const char** function) except *

cdef Graph instantiate(GraphSource source, unsigned long long flags, StreamHandle* upload)
cdef int keep_refused(object dropped) except -1
cdef int try_refused() except -1
