# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._allocation cimport Record
from cuda.core._stream cimport Stream
from cuda.core._stream_handle cimport StreamHandle

cdef int copy(Record dst, Record src, Stream stream, object options, str caller) except -1
cdef int ensure_copy_options(object options, Stream stream, str caller) except -1
# What a single copy and a batch share.
cdef int ensure_disjoint(Record dst, Record src, str where) except -1
cdef int ensure_no_capture(StreamHandle* order, str refusal) except -1
cdef int ensure_not_during_call(object options, str where, str requirement) except -1
cdef bint may_wait(Record dst, Record src) except -1
cdef bint may_wait_with(Record dst, Record src, object options) except -1
# Undone by let_captures_begin, also after a refusal, unless the call may wait.
cdef cydriver.CUresult hold_uncaptured(StreamHandle* order, bint waits, const char** function) noexcept nogil
cdef cydriver.CUmemcpyAttributes attributes_of(object options) except *
cdef int plain_copy(Record dst, Record src, StreamHandle* order) except -1
