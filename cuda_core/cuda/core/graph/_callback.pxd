# SPDX-License-Identifier: Apache-2.0
from cuda.core._stream_handle cimport StreamHandle

# Refuses what cannot be called, before any driver call; gives what capture_callback takes.
cdef HostCall checked_callback(object function, object user_data)
# Puts a call into the graph that is being captured on a stream. The graph keeps it.
cdef int capture_callback(StreamHandle* order, HostCall call) except -1

cdef class HostCall:
    cdef object function
    cdef object copied       # bytes that a C function is given
    cdef void* entry         # of a C function; NULL for a Python one
    cdef void* argument
