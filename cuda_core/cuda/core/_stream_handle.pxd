# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t

from cuda.core._fork cimport fork_generation

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
    unsigned long long context_id  # 0 where it is not known
    uint16_t generation          # of forks, when it was made
    int device_id                # -1 until asked for
    StreamKind kind
    unsigned long thread         # the thread that bound a per-thread stream
    PyObject* owner              # keeps a foreign stream alive
    StreamHandle** members       # of a set, each retained
    int member_count

cdef extern from *:
    long __atomic_add_fetch(long*, long, int) noexcept nogil
    enum:
        __ATOMIC_ACQ_REL

cdef inline StreamHandle* retain_stream(StreamHandle* handle) noexcept nogil:
    if handle != NULL:
        __atomic_add_fetch(&handle.count, 1, __ATOMIC_ACQ_REL)
    return handle

cdef void end_stream(StreamHandle* handle) noexcept nogil

cdef inline void release_stream(StreamHandle* handle) noexcept nogil:
    if handle != NULL and __atomic_add_fetch(&handle.count, -1, __ATOMIC_ACQ_REL) == 0:
        end_stream(handle)

# The same for callers with the GIL, which is let go only where a stream is destroyed.
cdef inline void drop_stream(StreamHandle* handle) noexcept:
    if handle != NULL and __atomic_add_fetch(&handle.count, -1, __ATOMIC_ACQ_REL) == 0:
        with nogil:
            end_stream(handle)

# Whether the driver's stream is the parent's of this forked process. The two default streams are names, which are
# nobody's until they are bound to a context.
cdef inline bint is_inherited(StreamHandle* handle) noexcept nogil:
    return handle.generation != fork_generation() and (
        handle.context != NULL or handle.kind not in (STREAM_LEGACY, STREAM_PER_THREAD)
    )

# Takes the count of 1 that it returns; released with release_stream.
cdef StreamHandle* new_stream_handle(cydriver.CUstream stream, cydriver.CUcontext context, int device_id,
                                     StreamKind kind) except NULL
cdef cydriver.CUresult create_own_stream(cydriver.CUcontext context, StreamHandle** made) noexcept nogil
cdef cydriver.CUresult close_stream(StreamHandle* handle) noexcept nogil
cdef void always_there() noexcept nogil
cdef StreamHandle* bind_token(StreamHandle* token) except? NULL
cdef cydriver.CUresult enter_stream(StreamHandle* handle, bint* pushed, const char** function) noexcept nogil
cdef void leave_stream(bint pushed) noexcept nogil
cdef cydriver.CUstream stream_as_seen_here(StreamHandle* handle) noexcept nogil
cdef cydriver.CUresult stream_is_capturing(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil
cdef cydriver.CUresult ask_for_stream(StreamHandle* handle, const char** function) noexcept nogil
cdef cydriver.CUresult refuse_capturing(StreamHandle* handle, const char** function) noexcept nogil
cdef cydriver.CUresult ask_whether_captured(StreamHandle* handle, bint* capturing,
                                            const char** function) noexcept nogil
cdef bint is_captured(StreamHandle* handle) except -1
cdef object captured_error(str refusal)
cdef int refuse_captured(StreamHandle* handle, str refusal) except -1
cdef bint stream_is_gone(StreamHandle* handle, cydriver.CUresult result) noexcept nogil
cdef cydriver.CUresult query_uncaptured(StreamHandle* handle, bint* idle, bint* capturing,
                                        const char** function) noexcept nogil
cdef bint is_of_capture(cydriver.CUresult result) noexcept nogil
cdef cydriver.CUresult stream_is_idle(StreamHandle* handle, bint* idle, const char** function) noexcept nogil
cdef StreamHandle* add_stream(StreamHandle* handle, StreamHandle* added) except NULL
cpdef long live_stream_handles() noexcept
