# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector

from cuda.core._memory._virtual_parts cimport AbsentChunk, ChunkRequest, CUdeviceptr, Failure, Parts
from cuda.core._stream_handle cimport StreamHandle

cdef enum:
    GROW_FAILED = 0
    GROWN = 1
    GROW_ELSEWHERE = 2  # the driver gave other addresses than the adjacent ones

cdef class VirtualRange:
    cdef atomic[uint64_t] word
    cdef atomic[unsigned long] claimant
    cdef Parts parts
    cdef Parts retired
    cdef Parts late             # retired ones that could not be returned without a claim; touched with the range locked
    cdef bint _counted
    cdef void _count(self) noexcept nogil
    cdef void _undo(self, Parts* scratch) noexcept nogil
    cdef CUdeviceptr base
    cdef atomic[size_t] mapped      # changes under a claim; others may read it
    cdef atomic[size_t] capacity
    cdef atomic[int] partly_returned
    cdef atomic[int] paused         # the memory is away, the addresses are here; changes under a claim only
    cdef vector[AbsentChunk] absent  # what belongs into the addresses while it is paused
    cdef int opened_to              # a device with more rights than recorded, for a copy: its ordinal plus 1
    cdef object contents            # what the absent memory held, in a buffer at the host; None where it is lost
    cdef long graph_loans           # how many of the loans are graphs', which use the address only when launched
    cdef bint imported              # the chunks are another process's
    cdef StreamHandle* left_order  # orders the return of addresses that loans have kept past a grow
    cdef object heir            # the record that answers for the free once loans hold the range
    cdef object allocation      # weak reference to the Allocation that holds the range, or None
    cdef int grow_in_place(self, size_t more_addresses, size_t granularity, ChunkRequest* request,
                           Failure* failure) noexcept nogil
    cdef bint move(self, size_t new_capacity, size_t alignment, CUdeviceptr hint, ChunkRequest* request,
                   Failure* failure) noexcept nogil
    cdef void gather_late(self) noexcept
    cdef bint return_retired(self, Failure* failure) noexcept nogil
    cdef bint return_all(self, Failure* failure) noexcept nogil
    cdef void adopt(self, CUdeviceptr base, size_t size) noexcept nogil
    cdef void give_parts_away(self, Parts* taker) noexcept nogil
    cdef void take_parts_back(self, Parts* holder) noexcept nogil
    cdef void abandon(self) noexcept nogil
    cdef bint holds_base(self) noexcept nogil
    cdef bint learn_rights(self, int device_count, Failure* failure) noexcept nogil
    cdef bint is_empty(self) noexcept nogil
