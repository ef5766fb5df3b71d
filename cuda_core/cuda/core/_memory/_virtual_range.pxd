# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t
from libcpp.atomic cimport atomic
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from cuda.core._stream_handle cimport StreamHandle

ctypedef cydriver.CUresult CUresult
ctypedef cydriver.CUdeviceptr CUdeviceptr
ctypedef cydriver.CUmemGenericAllocationHandle AllocationHandle

# Where a driver call was refused. Zero-initialised it means: nowhere.
cdef struct Failure:
    CUresult result
    const char* function

# The access rights of a chunk: one descriptor for each place that may use it. Chunks made with one configuration
# share the list; an equal pointer therefore means equal rights.
ctypedef shared_ptr[vector[cydriver.CUmemAccessDesc]] Rights

cdef cppclass Reservation:
    CUdeviceptr base
    size_t size

# One chunk of physical memory, mapped at one place. The driver counts a chunk's mappings and references, so two
# mappings of one chunk (while a range moves) need no count of their own here.
cdef cppclass Mapping:
    CUdeviceptr address
    size_t size
    Rights rights

# What the driver has handed out and must get back. This is the only description of an undo there is.
cdef cppclass Parts:
    vector[Reservation] reservations
    vector[Mapping] mappings
    vector[AllocationHandle] references

cdef cppclass ChunkRequest:
    size_t size
    cydriver.CUmemAllocationProp properties
    Rights rights

cdef enum:
    GROW_FAILED = 0
    GROWN = 1
    GROW_ELSEWHERE = 2  # the driver gave other addresses than the adjacent ones

cdef Parts* new_parts() except NULL
cdef void del_parts(Parts* parts) noexcept nogil
cdef bint parts_are_empty(Parts* parts) noexcept nogil
cdef void move_parts(Parts* source, Parts* target) noexcept nogil
cdef bint return_parts(Parts* parts, Failure* failure) noexcept nogil
cdef dict live_parts()

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
    cdef size_t mapped
    cdef size_t capacity
    cdef bint partly_returned
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
