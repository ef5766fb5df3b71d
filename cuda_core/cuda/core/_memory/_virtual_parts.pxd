# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

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

# A chunk of a paused range: where it belongs, and how another one is made in its place.
cdef cppclass AbsentChunk:
    CUdeviceptr address
    size_t size
    cydriver.CUmemAllocationProp properties
    Rights rights
    AllocationHandle held       # the chunk itself, by a reference that is among the parts; 0 once it is given up

cdef Parts* new_parts() except NULL
cdef void del_parts(Parts* parts) noexcept nogil
cdef bint parts_are_empty(Parts* parts) noexcept nogil
cdef void move_parts(Parts* source, Parts* target) noexcept nogil
cdef bint return_parts(Parts* parts, Failure* failure) noexcept nogil
cdef dict live_parts()
cdef void count_range(int change) noexcept nogil
cdef bint succeeded(CUresult result, const char* function, Failure* failure) noexcept nogil
cdef bint reserve(Parts* parts, size_t size, size_t alignment, CUdeviceptr hint, Failure* failure) noexcept nogil
cdef bint map_chunk(Parts* parts, CUdeviceptr address, size_t size, AllocationHandle chunk, Rights rights,
                    Failure* failure) noexcept nogil
cdef bint map_new_chunk(Parts* parts, CUdeviceptr address, ChunkRequest* request, Failure* failure) noexcept nogil
cdef bint map_held_chunk(Parts* parts, AbsentChunk* chunk, Failure* failure) noexcept nogil
cdef void keep_reference(Parts* parts, AllocationHandle chunk) noexcept nogil
cdef bint release_reference(Parts* parts, AllocationHandle chunk, Failure* failure) noexcept nogil
cdef bint give_access(Parts* parts, Failure* failure) noexcept nogil
cdef void take_over(Parts* parts, CUdeviceptr base, size_t size) noexcept nogil
cdef void forget_parts(Parts* parts) noexcept nogil
