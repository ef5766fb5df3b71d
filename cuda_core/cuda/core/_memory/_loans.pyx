# SPDX-License-Identifier: Apache-2.0
"""Loans: who looks at the memory while a buffer owns it.

Every export of an address is a loan, counted in the word of what is freed. While one is open, a close does not free:
what was held passes to the loans, and the last one to end answers for the free.
"""

cimport cython

from cuda.core._memory._allocation cimport (
    CLOSE_DONE,
    CLOSE_LENT,
    CLOSE_NOTHING,
    NEVER_WAIT,
    QUEUE_IF_BUSY,
    WAIT,
    Record,
)
from cuda.core._memory._asking cimport note_outcome, waiting_of_asked
from cuda.core._memory._ownership cimport (
    CLAIM_MASK,
    EVENT_END_LOAN,
    EVENT_LEND,
    LOANS_MASK,
    STATE_OWNED,
    TAKER_GROWN,
    VERDICT_GO,
    VERDICT_LAST_LOAN,
)
from cuda.core._memory._release cimport (
    ensure_not_capturing,
    finish_loans,
    must_queue,
    release,
    report,
    wait_for_order,
)
from cuda.core._memory._virtual_parts cimport Failure, Parts, move_parts, parts_are_empty, return_parts
from cuda.core._memory._virtual_queue cimport queue_parts
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle, drop_stream, retain_stream


cdef int lend(Record record, str what) except -1:
    """Begin a loan.

    Raises
    ------
    OwnershipError
        If the buffer is closed or paused, or being released or moved by another call.
    """
    cdef int verdict = record.apply(EVENT_LEND)
    if verdict != VERDICT_GO:
        raise record.refusal(verdict, what)
    try:
        # Asked behind the loan: nobody is paused while it is open, and whoever was paused before is so by now.
        _ensure_there(record, what)
    except BaseException:
        end_loan(record)
        raise
    return 0


cdef VirtualRange _range_behind(Record record):
    """Return the range whose pausing takes a record's memory away: its own, or of what it borrows from, or None."""
    cdef object owner = record
    while isinstance(owner, Record):
        if (<Record>owner).range is not None:
            return (<Record>owner).range
        owner = (<Record>owner).held_owner()
    return (<Loan>owner).behind if type(owner) is Loan else None


cdef int _ensure_there(Record record, str what) except -1:
    """Refuse a record whose memory is away, or that borrows from one whose memory is."""
    cdef VirtualRange range_ = _range_behind(record)
    if range_ is not None and range_.paused.load():
        raise record.refusal_of_paused(what)
    return 0


cdef int end_loan(Record record) noexcept:
    """End a loan. The last one returns what the loans held.

    Nothing is raised: a failure is reported, and an interrupt is raised on this thread soon after.
    """
    cdef Loan next_one = _end(record, False)
    if next_one is not None:
        next_one.end_or_raise(False)
    return 0


cdef Loan _end(Record record, bint may_raise, bint of_graph=False):
    """End one loan on a record. Returns the loan that ends with it, or None: of a view on a view that was closed, the
    last loan on this one ends its own. The caller goes on with it in a loop, as such chains can be long."""
    cdef int verdict
    cdef object lender = record.held_owner()
    if of_graph:
        with cython.critical_section(record.range):  # who asks how many loans are graphs' reads both numbers together
            record.range.graph_loans -= 1
            verdict = record.apply(EVENT_END_LOAN)
    else:
        verdict = record.apply(EVENT_END_LOAN)
    if verdict == VERDICT_LAST_LOAN:
        finish_loans(record, may_raise)
        if type(lender) is Loan:
            return lender
    elif verdict == VERDICT_GO and record.range is not None and record.open_loans() == 0:
        _return_left_addresses(record)
    return None


cdef int close_record(Record record, int event, StreamHandle* order, int waiting) except -1:
    cdef object lender = record.held_owner()
    cdef int outcome = release(record, event, order, waiting)
    if type(lender) is not Loan:
        return outcome
    if outcome == CLOSE_DONE:
        (<Loan>lender).end_or_raise(True)
    elif outcome == CLOSE_NOTHING and record.taker() == TAKER_GROWN:
        outcome = _close_kept(record, lender, order, waiting_of_asked(waiting))
        note_outcome(outcome, 0)  # of the old addresses, not of the memory
    return outcome


cdef int _close_kept(Record record, Loan loan, StreamHandle* order, int waiting) except -1:
    """Close a buffer whose memory has moved and which was told to keep the old addresses.

    They are a loan on the memory, and go back after the stream like any release: here, so that the next close of the
    grown buffer need not wait for them.
    """
    cdef Record holder = loan.held_record()
    cdef VirtualRange range_
    cdef StreamHandle* stream
    cdef Parts left
    if holder is None or not loan.open.load():
        return CLOSE_NOTHING
    range_ = holder.range
    with cython.critical_section(range_):
        stream = retain_stream(order if order != NULL else range_.left_order)
    try:
        if waiting == WAIT:
            wait_for_order(stream)
        elif waiting == QUEUE_IF_BUSY:
            ensure_not_capturing(stream)
        loan.end_or_raise(True)
        with cython.critical_section(record):
            _ended, record.owner = record.owner, None  # let go behind the section
        if parts_are_empty(&range_.retired):
            return CLOSE_DONE
        with cython.critical_section(range_):
            if range_.word.load() & (CLAIM_MASK | LOANS_MASK):
                return CLOSE_LENT  # others look at the memory, or whoever has the claim returns them
            move_parts(&range_.retired, &left)
        try:
            return queue_parts(&left, record, stream, False, False)
        except BaseException:
            with cython.critical_section(range_):
                move_parts(&left, &range_.late)
            raise
    finally:
        drop_stream(stream)


cdef int _return_left_addresses(Record record) except -1:
    """Return the addresses that a grow has left and that loans kept, now that nobody looks at them."""
    cdef VirtualRange range_ = record.range
    cdef Failure failure
    cdef Parts left
    cdef bint done
    if parts_are_empty(&range_.retired) or range_.word.load() & CLAIM_MASK:
        return 0  # whoever has the claim returns them
    if must_queue(range_.left_order, NEVER_WAIT):
        return 0  # not without waiting; the close of the buffer returns them
    # Whoever claims the range for a release or a grow locks it for that moment, so no claim is needed here, and a close
    # or a lend at this moment finds the buffer free.
    with cython.critical_section(range_):
        if range_.word.load() & (CLAIM_MASK | LOANS_MASK):
            return 0
        move_parts(&range_.retired, &left)
    failure.function = NULL
    with nogil:
        done = return_parts(&left, &failure)
    if not done:
        with cython.critical_section(range_):
            move_parts(&left, &range_.late)
        report(
            f"addresses that a grow has left could not be returned: {failure.function.decode()} was refused. The close "
            "of the grown buffer tries again."
        )
    return 0


cdef Loan new_loan(Record record, str what):
    cdef Loan self = Loan.__new__(Loan)
    lend(record, what)
    self.record = record
    self.behind = _range_behind(record)
    self.open.store(1)
    return self


cdef Loan new_graph_loan(Record record, str what):
    """Begin a loan for a graph: of memory that can be paused, it does not stand in the way of that.

    Of a slice the whole is lent. So the slice can be closed, and what the graph holds is a graph's loan and no other.
    """
    cdef Loan self
    cdef Record above, whole = record
    cdef object owner = record.held_owner()
    while type(owner) is Loan:
        above = (<Loan>owner).held_record()
        if above is None:
            break
        whole, owner = above, above.held_owner()
    if whole.range is None or whole.state() != STATE_OWNED:
        return new_loan(record, what)
    self = Loan.__new__(Loan)
    record.ensure_usable()
    with cython.critical_section(whole.range):
        lend(whole, what)
        whole.range.graph_loans += 1
    self.record = whole
    self.behind = whole.range
    self.of_graph = True
    self.open.store(1)
    return self


cdef class Loan:
    """One open loan; it ends once, by :meth:`end` or with the object."""

    cdef int end(self) noexcept:
        """End the loan where nothing can be raised, see :func:`end_loan`."""
        self.end_or_raise(False)
        return 0

    cdef Record held_record(self):
        """Return whose memory is lent; None once the loan has ended, which another thread may do at any moment."""
        with cython.critical_section(self):
            return self.record

    cdef int end_or_raise(self, bint may_raise) except -1:
        cdef Loan loan = self
        cdef Record record
        while loan is not None and loan.open.exchange(0):
            with cython.critical_section(loan):
                record, loan.record = loan.record, None  # an ended loan keeps nothing alive
            loan = _end(record, may_raise, loan.of_graph)
        return 0

    def __del__(self):
        self.end()
