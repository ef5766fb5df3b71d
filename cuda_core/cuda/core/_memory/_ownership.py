# SPDX-License-Identifier: Apache-2.0
"""The ownership state machine: who must return an allocation, and who may start that.

Every buffer is in one state of :class:`Ownership`. The rules are the data in :data:`TABLE`; nothing else in the
package decides. When this module is compiled, the table is turned into an array once, at import, and
:func:`step` applies it to an atomic word by compare-and-exchange. Read as plain Python, the module gives the
table, the document's table and its diagram, and no transitions.

The word
--------
State, claim, failed mark, lost mark, taker, number of loans and epoch share one 64-bit word, so that no two of
them can ever disagree. The word belongs to what is freed: to the range for virtual memory, to the buffer's own
record for everything else.

A range outlives the buffers that it passes through. Each of them keeps the *epoch* that it was given; a grow
raises the word's epoch, and from then on a buffer with an older one reads TRANSFERRED. This is what makes a
close of the old buffer harmless while another thread grows it: the comparison that would start the free
contains the epoch, so it fails.
"""

from typing import NamedTuple

import cython

from cuda.core._memory._ownership_states import Claim, Event, Loans, Ownership, TransferredTo, Verdict

__all__ = [
    "TABLE",
    "Claim",
    "Event",
    "Loans",
    "Ownership",
    "Rule",
    "TransferredTo",
    "Verdict",
    "compiled",
    "find_rule",
]

compiled = cython.compiled


class Rule(NamedTuple):
    """One row of the table; the first row that fits an event decides.

    ``sources`` are the states it fits (empty: a new buffer). ``claims``, ``loans``, ``failed`` and ``takers``
    narrow it further; ``None`` fits everything. ``held_by_loans`` asks whether a TRANSFERRED word went to its
    loans. ``to`` and the fields after it say what changes; ``None`` keeps what is there.
    """

    sources: tuple[Ownership, ...]
    event: Event
    verdict: Verdict
    effect: str
    claims: tuple[Claim, ...] | None = (Claim.NONE,)
    loans: Loans = Loans.ANY
    failed: bool | None = None
    takers: tuple[TransferredTo, ...] | None = None
    held_by_loans: bool | None = None
    to: Ownership | None = None
    claim: Claim | None = None
    set_failed: bool | None = None
    set_lost: bool = False
    loan_change: int = 0
    taker: TransferredTo | None = None


_OWNED = (Ownership.OWNED,)
_BORROWED = (Ownership.BORROWED,)
_OPEN = (Ownership.OWNED, Ownership.BORROWED)
_ENDED = (Ownership.TRANSFERRED, Ownership.RELEASED)
_TRANSFERRED = (Ownership.TRANSFERRED,)
_ANY_STATE = (Ownership.OWNED, Ownership.BORROWED, Ownership.TRANSFERRED, Ownership.RELEASED)
_BUSY = (Claim.RELEASE, Claim.TRANSFER)
_LOANS_REFUSED = (TransferredTo.DETACHED, TransferredTo.MOVED)

E = Event
V = Verdict

TABLE: tuple[Rule, ...] = (
    # -- a buffer begins ---------------------------------------------------------------------------------------
    Rule(
        (), E.ALLOCATE, V.GO, "allocated, imported or adopted: this buffer must return it", to=Ownership.OWNED
    ),
    Rule(
        (),
        E.BORROW,
        V.GO,
        "somebody else returns it; the owner, if named, is kept alive",
        to=Ownership.BORROWED,
    ),
    # -- release -----------------------------------------------------------------------------------------------
    Rule(
        _OPEN,
        E.BEGIN_RELEASE,
        V.LENT,
        "what was held (allocation, owner) passes to the loans",
        loans=Loans.SOME,
        to=Ownership.TRANSFERRED,
        taker=TransferredTo.LOANS,
    ),
    Rule(_OWNED, E.BEGIN_RELEASE, V.GO, "the deleter starts", loans=Loans.NONE, claim=Claim.RELEASE),
    Rule(
        _BORROWED,
        E.BEGIN_RELEASE,
        V.GO,
        "the owner reference is dropped",
        loans=Loans.NONE,
        to=Ownership.RELEASED,
    ),
    Rule(
        _OPEN,
        E.BEGIN_AUTOMATIC_RELEASE,
        V.LENT,
        "what was held (allocation, owner) passes to the loans",
        loans=Loans.SOME,
        to=Ownership.TRANSFERRED,
        taker=TransferredTo.LOANS,
    ),
    Rule(
        _OWNED,
        E.BEGIN_AUTOMATIC_RELEASE,
        V.NOTHING,
        "the deleter failed before: only an explicit close tries again",
        loans=Loans.NONE,
        failed=True,
    ),
    Rule(
        _OWNED,
        E.BEGIN_AUTOMATIC_RELEASE,
        V.GO,
        "the deleter starts",
        loans=Loans.NONE,
        failed=False,
        claim=Claim.RELEASE,
    ),
    Rule(
        _BORROWED,
        E.BEGIN_AUTOMATIC_RELEASE,
        V.GO,
        "the owner reference is dropped",
        loans=Loans.NONE,
        to=Ownership.RELEASED,
    ),
    Rule(
        _OWNED,
        E.COMMIT_RELEASE,
        V.GO,
        "the allocation was returned",
        claims=(Claim.RELEASE,),
        to=Ownership.RELEASED,
        claim=Claim.NONE,
        set_failed=False,
    ),
    Rule(
        _TRANSFERRED,
        E.COMMIT_RELEASE,
        V.GO,
        "what the loans held was returned",
        claims=(Claim.RELEASE,),
        claim=Claim.NONE,
        set_failed=False,
    ),
    Rule(
        (Ownership.OWNED, Ownership.TRANSFERRED),
        E.ABORT_RELEASE,
        V.GO,
        "the deleter failed and can be tried again",
        claims=(Claim.RELEASE,),
        claim=Claim.NONE,
        set_failed=True,
    ),
    # -- transfer ----------------------------------------------------------------------------------------------
    Rule(
        _OWNED,
        E.BEGIN_TRANSFER,
        V.HAS_LOANS,
        "detach and move: refused while somebody looks at the memory",
        loans=Loans.SOME,
        takers=_LOANS_REFUSED,
    ),
    Rule(_OWNED, E.BEGIN_TRANSFER, V.GO, "the taker gets ready", claim=Claim.TRANSFER),
    Rule(
        _OWNED,
        E.COMMIT_TRANSFER,
        V.GO,
        "the record goes to the taker; the deleter is skipped",
        claims=(Claim.TRANSFER,),
        to=Ownership.TRANSFERRED,
        claim=Claim.NONE,
        set_failed=False,
    ),
    Rule(
        _OWNED,
        E.ABORT_TRANSFER,
        V.GO,
        "nothing has changed",
        claims=(Claim.TRANSFER,),
        claim=Claim.NONE,
    ),
    Rule(
        _BORROWED,
        E.BEGIN_TRANSFER,
        V.NOT_OWNER,
        "refused: one cannot give what one does not own",
    ),
    # -- loans -------------------------------------------------------------------------------------------------
    Rule(_OPEN, E.LEND, V.GO, "one more looks at the memory", loan_change=+1),
    Rule(
        _TRANSFERRED,
        E.END_LOAN,
        V.LAST_LOAN,
        "the last one starts the deleter, or drops the owner",
        loans=Loans.LAST,
        held_by_loans=True,
        claim=Claim.RELEASE,
        loan_change=-1,
    ),
    Rule(
        _ANY_STATE,
        E.END_LOAN,
        V.GO,
        "one less looks at the memory",
        claims=None,
        loans=Loans.SOME,
        loan_change=-1,
    ),
    # -- lost --------------------------------------------------------------------------------------------------
    Rule(
        _OWNED,
        E.LOSE,
        V.GO,
        "context destroyed, device gone, child of a fork: the deleter never runs",
        claims=(Claim.NONE, Claim.RELEASE),
        to=Ownership.RELEASED,
        claim=Claim.NONE,
        set_lost=True,
    ),
    # -- use ---------------------------------------------------------------------------------------------------
    Rule(_OPEN, E.USE, V.GO, "allowed"),
    # -- everything else ---------------------------------------------------------------------------------------
    Rule(
        _ANY_STATE,
        E.BEGIN_RELEASE,
        V.IN_PROGRESS,
        "another call is returning it; a close from within that call does nothing",
        claims=(Claim.RELEASE,),
    ),
    Rule(
        _ANY_STATE,
        E.BEGIN_AUTOMATIC_RELEASE,
        V.IN_PROGRESS,
        "another call is returning it",
        claims=(Claim.RELEASE,),
    ),
    Rule(_ENDED, E.BEGIN_RELEASE, V.NOTHING, "closing twice is harmless"),
    Rule(_ENDED, E.BEGIN_AUTOMATIC_RELEASE, V.NOTHING, "collecting a closed buffer is harmless"),
    Rule(_OPEN, E.BEGIN_RELEASE, V.CLAIMED, "refused: it is being moved", claims=(Claim.TRANSFER,)),
    Rule(_OPEN, E.BEGIN_AUTOMATIC_RELEASE, V.CLAIMED, "refused: it is being moved", claims=(Claim.TRANSFER,)),
    Rule(
        _ENDED, E.LEND, V.CLOSED, "refused: the error tells which of the two, and where it went", claims=None
    ),
    Rule(
        _ENDED,
        E.BEGIN_TRANSFER,
        V.CLOSED,
        "refused: the error tells which of the two, and where it went",
        claims=None,
    ),
    Rule(
        _ENDED, E.USE, V.CLOSED, "refused: the error tells which of the two, and where it went", claims=None
    ),
    Rule(_OPEN, E.LEND, V.CLAIMED, "refused: a release or a transfer is under way", claims=_BUSY),
    Rule(_OPEN, E.BEGIN_TRANSFER, V.CLAIMED, "refused: a release or a transfer is under way", claims=_BUSY),
    Rule(_OPEN, E.USE, V.CLAIMED, "refused: a release or a transfer is under way", claims=_BUSY),
    Rule(_ANY_STATE, E.END_LOAN, V.NO_LOAN, "refused: no loan is open", claims=None, loans=Loans.NONE),
    Rule(_ANY_STATE, E.COMMIT_RELEASE, V.NOT_CLAIMED, "refused: no release has begun", claims=None),
    Rule(_ANY_STATE, E.ABORT_RELEASE, V.NOT_CLAIMED, "refused: no release has begun", claims=None),
    Rule(_ANY_STATE, E.COMMIT_TRANSFER, V.NOT_CLAIMED, "refused: no transfer has begun", claims=None),
    Rule(_ANY_STATE, E.ABORT_TRANSFER, V.NOT_CLAIMED, "refused: no transfer has begun", claims=None),
    Rule(_OWNED, E.LOSE, V.CLAIMED, "refused: it is being moved", claims=(Claim.TRANSFER,)),
    Rule(
        (Ownership.BORROWED, Ownership.TRANSFERRED, Ownership.RELEASED),
        E.LOSE,
        V.NOTHING,
        "nothing to lose",
        claims=None,
    ),
)

del E, V


_RULES = {event: tuple(rule for rule in TABLE if rule.event is event) for event in Event}


def _fits_loans(wanted: Loans, loans: int) -> bool:
    if wanted is Loans.ANY:
        return True
    if wanted is Loans.NONE:
        return loans == 0
    if wanted is Loans.LAST:
        return loans == 1
    return loans > 0


def find_rule(
    state: Ownership,
    event: Event,
    *,
    claim: Claim = Claim.NONE,
    loans: int = 0,
    failed: bool = False,
    held_by_loans: bool = False,
    taker: TransferredTo | None = None,
) -> Rule:
    """Return the row that decides ``event`` for a buffer in this situation.

    Parameters
    ----------
    state, claim, loans, failed, held_by_loans
        The situation. ``held_by_loans`` tells whether a TRANSFERRED allocation went to its loans.
    event : Event
        What happens.
    taker : TransferredTo, optional
        Who would take it, for ``Event.BEGIN_TRANSFER``.

    Raises
    ------
    LookupError
        If no row fits. The table is complete for every situation that can arise, so this means a wrong argument.
    """
    rule = _rule_for(state, event, claim, loans, failed, held_by_loans, taker)
    if rule is None:
        raise LookupError(f"no rule for {event} in {state}, {claim}, {loans} loans")
    return rule


def _rule_for(state, event, claim, loans, failed, held_by_loans, taker):
    """Return the first row that fits, or None."""
    for rule in _RULES.get(event, ()):
        if state not in rule.sources:
            continue
        if rule.claims is not None and claim not in rule.claims:
            continue
        if not _fits_loans(rule.loans, loans):
            continue
        if rule.failed is not None and rule.failed != failed:
            continue
        if rule.takers is not None and taker not in rule.takers:
            continue
        if rule.held_by_loans is not None and rule.held_by_loans != held_by_loans:
            continue
        return rule
    return None


# --- the compiled machine -----------------------------------------------------------------------------------------
# The types of everything below are in _ownership.pxd. Layout of the word, from the lowest bit:
#   0-1 state, 2-3 claim, 4 failed, 5 lost, 6-8 taker, 16-39 loans, 40-63 epoch.

_EVENT_NUMBER = {event: number for number, event in enumerate(Event)}
_BEGIN_TRANSFER_CODES = {taker: len(_EVENT_NUMBER) + taker.value for taker in TransferredTo}


def event_code(event: Event, taker: TransferredTo | None = None) -> int:
    """Return the number that stands for an event in compiled calls of :func:`step`."""
    if event is Event.BEGIN_TRANSFER:
        return _BEGIN_TRANSFER_CODES[TransferredTo(taker)]
    return _EVENT_NUMBER[event]


def _compile_table():
    _check_codes()
    verdict_of_missing = Verdict.NOT_CLAIMED.value
    for code in range(EVENT_CODES):
        for situation in range(SITUATIONS):
            VERDICTS[code * SITUATIONS + situation] = verdict_of_missing
            KEEP[code * SITUATIONS + situation] = ~cython.cast(uint64_t, 0)
            SET[code * SITUATIONS + situation] = 0
            LOAN_CHANGE[code * SITUATIONS + situation] = 0
    calls, states, claims = [], [], []
    for event in Event:
        if event is not Event.BEGIN_TRANSFER:
            calls.append((event, None))
    for taker in TransferredTo:
        calls.append((Event.BEGIN_TRANSFER, taker))
    # Numbers are taken from the enumerations once: a property of each of them is asked otherwise, thousands of times.
    for state in Ownership:
        states.append((state, state.value))
    for claim in Claim:
        claims.append((claim, claim.value))
    for event, taker in calls:
        if event in (Event.ALLOCATE, Event.BORROW):
            continue
        code = event_code(event, taker)
        effects = {id(rule): _effect(rule, taker) for rule in _RULES[event]}
        for state, state_number in states:
            for claim, claim_number in claims:
                for failed in (False, True):
                    for loans in (0, 1, 2):
                        for held in (False, True):
                            rule = _rule_for(state, event, claim, loans, failed, held, taker)
                            if rule is None:
                                continue
                            entry = state_number | claim_number << 2 | failed << 4 | loans << 5 | held << 7
                            entry += code * SITUATIONS
                            VERDICTS[entry], KEEP[entry], SET[entry], LOAN_CHANGE[entry] = effects[id(rule)]


def _effect(rule, taker):
    """Return what a row answers, which bits of the word it keeps and sets, and how it changes the loans."""
    keep: uint64_t = ~cython.cast(uint64_t, 0)
    bits: uint64_t = 0
    if rule.verdict.value > Verdict.LAST_LOAN.value:
        return rule.verdict.value, keep, bits, 0
    if rule.to is not None:
        keep &= ~STATE_MASK
        bits |= rule.to.value
    if rule.claim is not None:
        keep &= ~CLAIM_MASK
        bits |= rule.claim.value << 2
    if rule.set_failed is not None:
        keep &= ~FAILED_BIT
        bits |= FAILED_BIT if rule.set_failed else 0
    if rule.set_lost:
        bits |= LOST_BIT
    kept_taker = rule.taker if rule.event is not Event.BEGIN_TRANSFER else taker
    if kept_taker is not None:
        keep &= ~TAKER_MASK
        bits |= kept_taker.value << 6
    elif rule.event is Event.ABORT_TRANSFER:
        keep &= ~TAKER_MASK
    return rule.verdict.value, keep, bits, rule.loan_change


def _check_codes():
    # The numbers in _ownership.pxd are written out so that C code can use them; they must mean the same here.
    for name, number in (
        ("BEGIN_RELEASE", EVENT_BEGIN_RELEASE),
        ("BEGIN_AUTOMATIC_RELEASE", EVENT_BEGIN_AUTOMATIC_RELEASE),
        ("COMMIT_RELEASE", EVENT_COMMIT_RELEASE),
        ("ABORT_RELEASE", EVENT_ABORT_RELEASE),
        ("COMMIT_TRANSFER", EVENT_COMMIT_TRANSFER),
        ("ABORT_TRANSFER", EVENT_ABORT_TRANSFER),
        ("LEND", EVENT_LEND),
        ("END_LOAN", EVENT_END_LOAN),
        ("LOSE", EVENT_LOSE),
        ("USE", EVENT_USE),
    ):
        if _EVENT_NUMBER[Event[name]] != number:
            raise AssertionError(
                f"event {name} is {_EVENT_NUMBER[Event[name]]} here and {number} in the .pxd"
            )
    if _BEGIN_TRANSFER_CODES[TransferredTo.GROWN] != EVENT_BEGIN_GROW:
        raise AssertionError("begin transfer to GROWN has another number in the .pxd")
    for verdict, number in (
        (Verdict.GO, VERDICT_GO),
        (Verdict.LENT, VERDICT_LENT),
        (Verdict.LAST_LOAN, VERDICT_LAST_LOAN),
        (Verdict.NOTHING, VERDICT_NOTHING),
        (Verdict.IN_PROGRESS, VERDICT_IN_PROGRESS),
        (Verdict.CLOSED, VERDICT_CLOSED),
        (Verdict.CLAIMED, VERDICT_CLAIMED),
        (Verdict.NOT_OWNER, VERDICT_NOT_OWNER),
        (Verdict.HAS_LOANS, VERDICT_HAS_LOANS),
        (Verdict.NO_LOAN, VERDICT_NO_LOAN),
        (Verdict.NOT_CLAIMED, VERDICT_NOT_CLAIMED),
        (Verdict.TOO_MANY, VERDICT_TOO_MANY),
    ):
        if verdict.value != number:
            raise AssertionError(f"{verdict} has another number in the .pxd")


def situation_of(bits):
    loans = (bits & LOANS_MASK) >> 16
    if loans > 2:
        loans = 2
    held = (bits & STATE_MASK) == STATE_TRANSFERRED and ((bits & TAKER_MASK) >> 6) == TAKER_LOANS
    return cython.cast(cython.int, (bits & 31) | loans << 5 | cython.cast(uint64_t, held) << 7)


def step(word, epoch, event):
    while True:
        old = word.load()
        if cython.cast(uint32_t, old >> 40) != epoch and event != EVENT_END_LOAN:
            # This holder was left behind by a grow. It is TRANSFERRED, whatever the word says of the next one.
            return VERDICTS[event * SITUATIONS + STATE_TRANSFERRED]
        entry = event * SITUATIONS + situation_of(old)
        verdict = VERDICTS[entry]
        if verdict > VERDICT_LAST_LOAN:
            return verdict
        new = (old & KEEP[entry]) | SET[entry]
        if LOAN_CHANGE[entry] > 0:
            if (old & LOANS_MASK) == LOANS_MASK:
                return VERDICT_TOO_MANY
            new += LOAN_UNIT
        elif LOAN_CHANGE[entry] < 0:
            new -= LOAN_UNIT
        if new == old or word.compare_exchange_strong(old, new):
            return verdict


def commit_shared_transfer(word, epoch):
    # The word of a range stays with the range: the next holder finds it OWNED and unclaimed under the next
    # epoch, and this holder, whose epoch has passed, reads TRANSFERRED. One exchange does both.
    while True:
        old = word.load()
        if cython.cast(uint32_t, old >> 40) != epoch:
            return VERDICT_NOT_CLAIMED
        verdict = VERDICTS[EVENT_COMMIT_TRANSFER * SITUATIONS + situation_of(old)]
        if verdict != VERDICT_GO:
            return verdict
        new = (old & ~(CLAIM_MASK | FAILED_BIT | TAKER_MASK | EPOCH_MASK)) | cython.cast(
            uint64_t, epoch + 1
        ) << 40
        if word.compare_exchange_strong(old, new):
            return VERDICT_GO


if compiled:
    _compile_table()
