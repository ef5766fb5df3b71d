# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libcpp.atomic cimport atomic

from cuda.core._memory._graph_place cimport CapturedGraph, GraphReference
from cuda.core._stream cimport StreamCarrier
from cuda.core._stream_handle cimport StreamHandle

# What a graph can be made or updated from.
cdef class GraphSource(StreamCarrier):
    cdef GraphReference _of             # None before the capture
    cdef cydriver.CUgraph _captured     # NULL before its end
    cdef int ensure_captured(self) except -1

cdef class Graph:
    cdef GraphReference _of
    cdef atomic[size_t] _executable     # a CUgraphExec; changes under the mutex of the graph, 0 once closed
    cdef object __weakref__
    cdef CapturedGraph* _open(self) except NULL

cdef Graph instantiate(GraphSource source, unsigned long long flags, StreamHandle* upload)
cdef int refuse_capturing(StreamHandle* order, str what) except -1
cdef int keep_refused(object dropped) except -1
cdef int try_refused() except -1
