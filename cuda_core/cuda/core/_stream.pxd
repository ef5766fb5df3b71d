# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._stream_handle cimport StreamHandle

cdef class Stream:
    cdef StreamHandle* _handle
    cdef size_t _key
    cdef int _nonblocking
    cdef object _priority
    cdef object __weakref__
    cdef int _ensure_open(self) except -1
    cdef StreamHandle* _hold(self) except NULL
    cdef int _wait_for_stream(self, Stream other) except -1
    cdef bint _is_there(self) noexcept
    cdef cydriver.CUcontext _context_handle(self) except NULL

# What stands for a stream that it carries, such as the graph builder of a module above.
cdef class StreamCarrier:
    cdef Stream carried(self)

cdef tuple streams_of(StreamHandle* handle)
cdef Stream stream_for_python(StreamHandle* handle)
cdef Stream wrap_stream(StreamHandle* handle)
cdef Stream create_stream(cydriver.CUcontext context, int device_id, object options)
cpdef Stream default_stream()
cpdef Stream Stream_accept(object arg, bint allow_stream_protocol=*)
cdef StreamHandle* bind_stream(Stream stream) except NULL
cdef StreamHandle* bind_default_stream() except? NULL
