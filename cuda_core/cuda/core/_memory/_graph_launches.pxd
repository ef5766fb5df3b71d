# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject
from libcpp.vector cimport vector

from cuda.core._memory._graph_place cimport CapturedGraph
from cuda.core._stream_handle cimport StreamHandle

cdef class Launches:
    cdef CapturedGraph* graph       # whose mutex is held for each launch
    cdef StreamHandle* last         # the stream of the last one; changes with that mutex
    cdef frozenset lent             # ranges of virtual memory that any of them may use
    cdef object __weakref__
    cdef tuple begin(self, object lent)
    cdef frozenset held_lent(self)
    cdef StreamHandle* hold_last(self) noexcept

cdef Launches launches_of(CapturedGraph* graph)
cdef PyObject* first_paused(vector[PyObject*]* ranges) noexcept nogil
cdef list launches_with(object range_)
