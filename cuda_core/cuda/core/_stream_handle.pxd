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

# Takes the count of 1 that it returns; released with release_stream.
cdef StreamHandle* new_stream_handle(cydriver.CUstream stream, cydriver.CUcontext context, int device_id,
                                     StreamKind kind) except NULL
cdef void always_there() noexcept nogil
cdef StreamHandle* bind_token(StreamHandle* token) except? NULL
cdef StreamHandle* retain_stream(StreamHandle* handle) noexcept nogil
cdef void release_stream(StreamHandle* handle) noexcept nogil
cdef cydriver.CUresult stream_is_capturing(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil
cdef cydriver.CUresult wait_for_stream(StreamHandle* handle, const char** function) noexcept nogil
cdef bint stream_is_gone(StreamHandle* handle, cydriver.CUresult result) noexcept nogil
cdef cydriver.CUresult stream_is_idle(StreamHandle* handle, bint* idle, const char** function) noexcept nogil
cdef StreamHandle* add_stream(StreamHandle* handle, StreamHandle* added) except NULL
cpdef long live_stream_handles() noexcept
