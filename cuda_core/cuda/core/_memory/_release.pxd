# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._stream_handle cimport StreamHandle

cdef int release(Record record, int event, StreamHandle* order, int waiting) except -1
cdef int finish_loans(Record record, bint may_raise) except -1
cdef int release_from_collection(Record record) noexcept
cdef object capture_in_the_way()
cdef int ensure_not_capturing(StreamHandle* order) except -1
cdef void comes_out_of(Record record, object error) noexcept
cdef bint wait_for_order(StreamHandle* order) except -1
cdef void report(str text) noexcept
cdef bint must_queue(StreamHandle* order, int waiting) except -1
