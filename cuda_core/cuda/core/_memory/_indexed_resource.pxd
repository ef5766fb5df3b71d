# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t, uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._memory._transfer cimport Slot
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle

cdef enum Holder:
    HELD_BY_NOBODY = 0
    HELD_BY_BUFFER = 1
    HELD_BY_ALLOCATION = 2
    HELD_BY_LOANS = 3

cdef class Holding:
    cdef object key             # the address, as the table has it
    cdef size_t size
    cdef VirtualRange range
    cdef uint64_t serial        # of the record that owns it, or owned it last
    cdef object owner           # weak reference to that record
    cdef Slot slot              # the way to it where it is an Allocation
    cdef bint being_freed
    cdef object keeper          # of a pool: what keeps it until the memory is back, whoever has it
    cdef size_t context         # the one that the memory goes with, 0 where nobody knows
    cdef unsigned long long context_id  # its number when the memory was made
    cdef Record record(self)
    cdef Holder holder(self)

cdef class IndexedResource(MemoryResource):
    cdef dict _holdings         # address -> Holding
    cdef Holding new_entry(self, Record record, uintptr_t address, size_t size)
    cdef int enter(self, Holding holding, Record record) except -1
    cdef int _enter(self, Holding holding, Record record) except -1
    cdef int remember(self, Record record) except -1
    cdef Holding begin_free(self, Record record)
    cdef int end_free(self, Holding holding, bint freed) except -1
    cdef bint is_freed(self, Record record, Holding holding) noexcept
    cdef int note_free(self, Record record, Holding holding) noexcept
    cdef Holding owned_holding(self, uintptr_t address)
    cdef Holding _owned_holding(self, uintptr_t address)
    cdef int _free_detached(self, uintptr_t address, size_t size, Holding holding, StreamHandle* order) except -1
    cdef int _lose_if_gone(self, Holding holding) except -1
    cdef int ensure_not_lost(self, Holding holding) except -1
    cdef Record part(self, Holding holding)
    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1
    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1
    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1
