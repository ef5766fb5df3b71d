# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._graph_place cimport CapturedGraph, GraphReference
from cuda.core._stream_handle cimport StreamHandle

# Gives what is known of the graph from now on, with the graph itself as its only part.
cdef GraphReference begin_capture(StreamHandle* order, int mode)
# `over` tells whether the capture is over, also where this raises; `captured` is NULL where it gave no graph.
cdef int end_capture(StreamHandle* order, CapturedGraph* graph, cydriver.CUgraph* captured, bint* over) except -1
cdef cydriver.CUstreamCaptureStatus capture_status(StreamHandle* order) except *
