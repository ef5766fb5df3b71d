# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record

# The C-level entry for exports: lend() begins a loan or raises, end_loan() ends it.
cdef int lend(Record record, str what) except -1
cdef int end_loan(Record record) noexcept

cdef class Loan:
    cdef Record record
    cdef bint open
    cdef int end(self) noexcept

cdef Loan new_loan(Record record, str what)
