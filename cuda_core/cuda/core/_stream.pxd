# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver

cdef enum StreamKind:
    STREAM_OWNED = 0        # created here: destroyed when the last holder lets go
    STREAM_FOREIGN = 1      # created elsewhere: never destroyed here
    STREAM_LEGACY = 2       # the legacy default stream of a context
    STREAM_PER_THREAD = 3   # the per-thread default stream: another stream on every thread
    STREAM_SET = 4          # several streams that order one release together

cdef struct StreamHandle:
    long count
    cydriver.CUstream stream
    cydriver.CUcontext context   # NULL where none was current
    int device_id                # -1 until asked for
    StreamKind kind
    unsigned long thread         # the thread that bound a per-thread stream
    PyObject* owner              # keeps a foreign stream alive
    StreamHandle** members       # of a set, each retained
    int member_count

cdef StreamHandle* retain_stream(StreamHandle* handle) noexcept nogil
cdef void release_stream(StreamHandle* handle) noexcept nogil
cdef cydriver.CUresult stream_is_capturing(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil
cdef cydriver.CUresult wait_for_stream(StreamHandle* handle, const char** function) noexcept nogil
cdef bint stream_is_gone(StreamHandle* handle, cydriver.CUresult result) noexcept nogil
cdef cydriver.CUresult stream_is_idle(StreamHandle* handle, bint* idle, const char** function) noexcept nogil
cdef StreamHandle* add_stream(StreamHandle* handle, StreamHandle* added) except NULL
cdef tuple streams_of(StreamHandle* handle)
cdef Stream stream_for_python(StreamHandle* handle)

cdef class Stream:
    cdef StreamHandle* _handle
    cdef size_t _key
    cdef int _nonblocking
    cdef object _priority
    cdef object __weakref__
    cdef int _ensure_open(self) except -1
    cdef cydriver.CUcontext _context_handle(self) except NULL

cdef Stream wrap_stream(StreamHandle* handle)
cdef Stream create_stream(cydriver.CUcontext context, int device_id, object options)
cpdef Stream default_stream()
cpdef Stream Stream_accept(object arg, bint allow_stream_protocol=*)
cdef StreamHandle* bind_stream(Stream stream) except NULL
cdef StreamHandle* bind_default_stream() except? NULL
cpdef long live_stream_handles() noexcept
