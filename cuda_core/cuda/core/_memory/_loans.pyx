# SPDX-License-Identifier: Apache-2.0
"""Loans: who looks at the memory while a buffer owns it.

Every export of an address is a loan, counted in the word of what is freed. While one is open, a close does not free:
what was held passes to the loans, and the last one to end answers for the free.
"""

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_GROW,
    EVENT_END_LOAN,
    EVENT_LEND,
    VERDICT_GO,
    VERDICT_LAST_LOAN,
    step,
)
from cuda.core._memory._release cimport finish_loans, must_queue, report
from cuda.core._memory._virtual_range cimport Failure, VirtualRange, parts_are_empty


cdef int lend(Record record, str what) except -1:
    """Begin a loan.

    Raises
    ------
    OwnershipError
        If the buffer is closed, or being released or moved by another call.
    """
    cdef int verdict = record.apply(EVENT_LEND)
    if verdict != VERDICT_GO:
        raise record.refusal(verdict, what)
    return 0


cdef int end_loan(Record record) noexcept:
    """End a loan. The last one returns what the loans held; a failure of that is reported, never raised."""
    cdef int verdict = record.apply(EVENT_END_LOAN)
    if verdict == VERDICT_LAST_LOAN:
        finish_loans(record)
    elif verdict == VERDICT_GO and record.range is not None and record.open_loans() == 0:
        _return_left_addresses(record)
    return 0


cdef int _return_left_addresses(Record record) except -1:
    """Return the addresses that a grow has left and that loans kept, now that nobody looks at them."""
    cdef VirtualRange range_ = record.range
    cdef Failure failure
    cdef bint done
    cdef int epoch
    if parts_are_empty(&range_.retired):
        return 0
    # The range is not this record's any more. Its present holder claims nothing at this moment, or the claim fails and
    # whoever has it returns these addresses.
    epoch = range_.word.load() >> 40
    if step(&range_.word, epoch, EVENT_BEGIN_GROW) != VERDICT_GO:
        return 0
    try:
        if must_queue(range_.left_order):
            return 0  # not without waiting; the close of the buffer returns them
        failure.function = NULL
        with nogil:
            done = range_.return_retired(&failure)
        if not done:
            report(f"addresses that a grow has left could not be returned: {failure.function.decode()} was refused. "
                   "The close of the grown buffer tries again.")
    finally:
        step(&range_.word, epoch, EVENT_ABORT_TRANSFER)
    return 0


cdef Loan new_loan(Record record, str what):
    cdef Loan self = Loan.__new__(Loan)
    lend(record, what)
    self.record = record
    self.open = True
    return self


cdef class Loan:
    """One open loan; it ends once, by :meth:`end` or with the object."""

    cdef int end(self) noexcept:
        cdef Record record = self.record
        if self.open:
            self.open = False
            end_loan(record)
        return 0

    def __del__(self):
        self.end()
