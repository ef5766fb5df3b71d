# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic

from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream cimport StreamHandle

# Returns an allocation, in the order of a stream where one is given. Called by the waist alone, with the record
# claimed. A failure is raised, and promises that the same call can be made again.
ctypedef int (*Deleter)(Record record, StreamHandle* order) except -1

cdef class Record:
    cdef atomic[uint64_t] own_word
    cdef atomic[uint64_t]* word     # own_word, or the word of the range
    cdef uint32_t epoch
    cdef int device_id
    cdef bint reported              # that it was dropped and could not be returned
    cdef uintptr_t pointer
    cdef size_t size
    cdef uint64_t serial
    cdef uint64_t taker_serial
    cdef Deleter deleter            # NULL for a borrowed allocation
    cdef StreamHandle* stream
    cdef unsigned long claimant
    cdef object resource
    cdef object owner
    cdef VirtualRange range

    cdef void begin(self, int state, VirtualRange range, uint32_t epoch) noexcept
    cdef int state(self) noexcept nogil
    cdef int taker(self) noexcept nogil
    cdef int apply(self, int event) noexcept nogil
    cdef unsigned long claiming_thread(self) noexcept nogil
    cdef void set_claiming_thread(self, unsigned long thread) noexcept nogil
    cdef int ensure_usable(self) except -1
    cdef object refusal(self, int verdict, str what)
    cdef void forget(self) noexcept
    cdef str describe(self)

cdef void record_ended() noexcept nogil
