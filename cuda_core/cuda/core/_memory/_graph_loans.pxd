# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._allocation cimport Record
from cuda.core._stream_handle cimport StreamHandle

# What a graph holds for one operation that was captured into it.
cdef struct GraphLoan:
    cydriver.CUgraph graph
    cydriver.CUuserObject object
    cydriver.cuuint64_t capture  # of which it is the graph
    long begun  # captures when the stream was asked

# Lends one record, or two, to the graph that is being captured on a stream. False, and nothing lent, where none is.
cdef bint lend_to_graph(StreamHandle* order, Record one, Record other, GraphLoan* loan) except -1
# Holds captures off if none has begun since lend_to_graph asked. Else False, and nothing is held; what was lent stays
# with the graph that was asked about, and the stream may be in another capture by now, or in none.
cdef bint hold_as_asked(GraphLoan* loan) noexcept nogil
# Holds captures off if the stream is still in the capture that was asked about: an operation then waits for nothing.
# The result is that of cuStreamGetCaptureInfo.
cdef bint hold_in_capture(StreamHandle* order, GraphLoan* loan, cydriver.CUresult* result) noexcept nogil
# Lends to a graph whose capture has begun since the stream was asked, and may have what was put there uncaptured.
cdef int lend_late(StreamHandle* order, Record one, Record other, GraphLoan* loan) except -1
# Takes back what lend_to_graph has lent, after the operation itself was refused.
cdef int take_back(StreamHandle* order, GraphLoan* loan) except -1
# The same for an object that an operation needs, on a stream that must be being captured.
cdef int keep_for_graph(StreamHandle* order, object kept, GraphLoan* loan) except -1
