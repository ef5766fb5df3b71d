# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._stream cimport StreamHandle

cdef enum:
    CLOSE_DONE = 0
    CLOSE_QUEUED = 1
    CLOSE_LENT = 2
    CLOSE_IN_PROGRESS = 3
    CLOSE_NOTHING = 4

cdef int release(Record record, int event, StreamHandle* order) except -1
cdef int release_from_collection(Record record) noexcept
cdef int ensure_not_capturing(StreamHandle* order) except -1
cdef int wait_for_order(StreamHandle* order) except -1
cdef void report(str text) noexcept
