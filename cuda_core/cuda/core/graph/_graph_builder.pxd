# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint16_t
from libcpp.atomic cimport atomic

from cuda.core._stream cimport Stream
from cuda.core._stream_handle cimport StreamHandle
from cuda.core.graph._graph cimport GraphSource

cdef class GraphBuilder(GraphSource):
    cdef Stream _stream
    cdef StreamHandle* _order       # the same, from begin_building or split until the builder is closed
    cdef GraphBuilder _root         # of what split has made: the builder that began the capture
    cdef atomic[int] _stage
    cdef uint16_t _generation       # of forks, when it was made
    cdef bint _owns_stream
    cdef atomic[int] _closed
    cdef atomic[int] _busy          # a call that changes the stage is in the driver
    cdef atomic[int] _open_forks    # of the root: builders that must be joined
    cdef list _fork_streams         # of the root: streams that must not go before the end of the capture
    cdef object __weakref__
    cdef int _ensure_open(self) except -1
    cdef StreamHandle* _hold_order(self) except NULL
    cdef void _drop_order(self) noexcept
    cdef int _begin(self, int mode) except -1
    cdef int _ensure_new(self) except -1
    cdef int _ensure_can_end(self) except -1
    cdef int _end(self) except -1
    cdef int _give_up(self) except -1
    cdef int _destroy(self) except -1
    cdef GraphBuilder _fork(self, object event)
