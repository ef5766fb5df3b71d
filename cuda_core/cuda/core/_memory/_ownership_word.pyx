# SPDX-License-Identifier: Apache-2.0
"""One ownership word as a Python object, for tests and for reading about the machine."""

from libc.stdint cimport uint32_t, uint64_t
from libcpp.atomic cimport atomic

from cuda.core._memory._ownership cimport (
    CLAIM_MASK,
    EVENT_ABORT_RELEASE,
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_BEGIN_RELEASE,
    EVENT_COMMIT_RELEASE,
    EVENT_COMMIT_TRANSFER,
    EVENT_END_LOAN,
    EVENT_LEND,
    EVENT_LOSE,
    EVENT_USE,
    FAILED_BIT,
    LOANS_MASK,
    LOST_BIT,
    TAKER_MASK,
    commit_shared_transfer,
    fresh,
    state_of,
    step,
)

from cuda.core._memory._ownership import event_code
from cuda.core._memory._ownership_states import Claim, Event, Ownership, TransferredTo, Verdict

__all__ = ["Word"]


cdef class Word:
    """One ownership word, for tests and for reading about the machine.

    Parameters
    ----------
    state : str
        Name of the first state: ``"OWNED"``, ``"BORROWED"`` or ``"RELEASED"``.
    shared : bool
        The word of a range, which outlives its holders: a committed transfer raises ``epoch``, and this
        holder reads TRANSFERRED while the word itself is OWNED for the next.

    Notes
    -----
    Every method applies one event and returns a :class:`Verdict`. Methods may be called from any thread.
    """

    cdef atomic[uint64_t] _word
    cdef uint32_t _epoch
    cdef bint _shared
    cdef int _taker

    def __init__(self, state="OWNED", shared=False, failed=False, claim="NONE", loans=0, taker=None):
        self._epoch = 0
        self._shared = shared
        self._taker = 0
        cdef uint64_t bits = fresh(Ownership[state].value, 0)
        bits |= <uint64_t>Claim[claim].value << 2
        bits |= FAILED_BIT if failed else 0
        bits |= <uint64_t>loans << 16
        if taker is not None:
            bits |= <uint64_t>TransferredTo[taker].value << 6
        self._word.store(bits)

    cdef object _step(self, int code):
        return Verdict(step(&self._word, self._epoch, code))

    def begin_release(self):
        return self._step(EVENT_BEGIN_RELEASE)

    def begin_automatic_release(self):
        return self._step(EVENT_BEGIN_AUTOMATIC_RELEASE)

    def commit_release(self):
        return self._step(EVENT_COMMIT_RELEASE)

    def abort_release(self):
        return self._step(EVENT_ABORT_RELEASE)

    def begin_transfer(self, taker="GROWN"):
        taker = taker if isinstance(taker, TransferredTo) else TransferredTo[taker]
        return self._step(event_code(Event.BEGIN_TRANSFER, taker))

    def commit_transfer(self):
        if self._shared:
            taker = self.taker
            verdict = Verdict(commit_shared_transfer(&self._word, self._epoch))
            if verdict is Verdict.GO:
                self._taker = taker.value
            return verdict
        return self._step(EVENT_COMMIT_TRANSFER)

    def abort_transfer(self):
        return self._step(EVENT_ABORT_TRANSFER)

    def lend(self):
        return self._step(EVENT_LEND)

    def end_loan(self):
        return self._step(EVENT_END_LOAN)

    def lose(self):
        return self._step(EVENT_LOSE)

    def use(self):
        return self._step(EVENT_USE)

    @property
    def state(self):
        return Ownership(state_of(self._word.load(), self._epoch))

    @property
    def claim(self):
        return Claim((self._word.load() & CLAIM_MASK) >> 2)

    @property
    def failed(self):
        return bool(self._word.load() & FAILED_BIT)

    @property
    def lost(self):
        return bool(self._word.load() & LOST_BIT)

    @property
    def loans(self):
        return (self._word.load() & LOANS_MASK) >> 16

    @property
    def taker(self):
        number = self._taker or (self._word.load() & TAKER_MASK) >> 6
        return TransferredTo(number) if number else None

    @property
    def epoch(self):
        """The epoch of the word, which is ahead of this holder's once it was left behind."""
        return self._word.load() >> 40
