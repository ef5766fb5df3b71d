# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record

cdef class Allocation(Record):
    cdef object __weakref__

cdef int begin_hand_over(Record source, int taker, str what) except -1
cdef void abort_hand_over(Record source) noexcept
cdef void commit_hand_over(Record source, Record target, int taker) noexcept
cdef int hand_over(Record source, Record target, int taker, str what) except -1
cdef Allocation detach(Record source)
