# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject
from libcpp.atomic cimport atomic

from cuda.core._memory._allocation cimport Record

# Where a resource finds the Allocation of an address. Not a weak reference: the collector clears those before it runs
# the finalizers that may still free the memory.
cdef class Slot:
    cdef PyObject* _allocation
    cdef atomic[int] _locked    # for a few stores, and never while anything can run
    cdef void fill(self, Allocation allocation) noexcept
    cdef void empty(self) noexcept
    cdef Allocation allocation(self)

cdef class Allocation(Record):
    cdef Slot slot
    cdef object __weakref__

cdef int begin_hand_over(Record source, int taker, str what) except -1
cdef void abort_hand_over(Record source) noexcept
cdef void commit_hand_over(Record source, Record target, int taker) noexcept
cdef bint has_passed_on(Record record) noexcept
cdef int hand_over(Record source, Record target, int taker, str what) except -1
