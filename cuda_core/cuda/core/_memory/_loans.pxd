# SPDX-License-Identifier: Apache-2.0
from libcpp.atomic cimport atomic

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle

# The C-level entry for exports: lend() begins a loan or raises, end_loan() ends it.
cdef int lend(Record record, str what) except -1
cdef int end_loan(Record record) noexcept

cdef class Loan:
    cdef Record record
    cdef atomic[int] open
    cdef VirtualRange behind    # noted once, so that a slice of a slice of a slice need not go all the way
    cdef bint of_graph          # whoever has it uses the address only when the graph is launched
    cdef Record held_record(self)
    cdef int end(self) noexcept
    cdef int end_or_raise(self, bint may_raise) except -1

# Releases a record. Of a view on lent memory it ends the loan too, so that an interrupt can come out.
cdef int close_record(Record record, int event, StreamHandle* order, int waiting) except -1

cdef Loan new_loan(Record record, str what)
cdef Loan new_graph_loan(Record record, str what)
