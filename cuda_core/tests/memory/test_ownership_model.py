# SPDX-License-Identifier: Apache-2.0
"""The table, explored: two threads, two buffers, loans, failures, in every interleaving.

Each allocation is returned at most once, exactly once when all holders are gone, never while it is lent, and no
address is used after its return. The exploration is itself tested: broken rules and broken steps must be found.
"""

import pytest

from cuda.core._memory._ownership import Claim, Event, Ownership, TransferredTo, Verdict, find_rule
from interleavings import Broken, Machine


@pytest.fixture(scope="module")
def states():
    return Machine().explore()


def test_nothing_is_returned_twice_or_lost_in_any_interleaving(states):
    assert len(states) > 1000  # every one of them was checked on the way


def test_the_exploration_comes_to_everything_that_it_should(states):
    assert {state.holders for state in states} == {"B", "BB", "BA", "BAB", "BBA"}
    assert {state.word.claim for state in states} == set(Claim)
    assert {state.word.taker for state in states} >= {TransferredTo.LOANS, TransferredTo.DETACHED}
    assert {state.excuse for state in states} == {"", "dropped Allocation", "handed over"}
    assert max(len(state.loans) for state in states) == 2
    assert any(state.retired and state.loans for state in states), "old addresses kept for a loan"
    assert any(state.addresses == (1, 1) for state in states), "moved, and all of it returned"
    assert any(state.addresses == (1, 0) for state in states), "moved, and the old addresses returned"
    assert any(state.word.failed for state in states)
    both_busy = {(a[0], b[0]) for a, b in (state.threads for state in states) if a and b}
    # One release or transfer of an allocation at a time; beside it only the return of old addresses.
    assert both_busy <= {(a, b) for a in STEPS for b in STEPS if "retire" in (a, b)}


STEPS = ("release", "end", "transfer", "retire")


# --- rules and steps that are broken on purpose -------------------------------------------------------------------


def without(event, **wanted):
    """A machine whose table answers GO to an event where the real one refuses it."""

    class Changed(Machine):
        @staticmethod
        def find_rule(state, asked, **situation):
            rule = find_rule(state, asked, **situation)
            if asked is event and all(getattr(rule, name) == value for name, value in wanted.items()):
                return allowed(event, state)
            return rule

    return Changed


def allowed(event, state):
    claim = {Event.BEGIN_RELEASE: Claim.RELEASE, Event.BEGIN_TRANSFER: Claim.TRANSFER}.get(event)
    change = {Event.LEND: 1, Event.END_LOAN: -1}.get(event, 0)
    return find_rule(Ownership.OWNED, Event.USE)._replace(event=event, claim=claim, loan_change=change)


class ForgetsEpochs(Machine):
    """A buffer that was left behind by a grow asks the word as if it still had it."""

    def step_of(self, state, holder, event, taker=None):
        return self.step(state.word, event, taker)


class LooksThenTakes(Machine):
    """Looks whether there are loans, and takes the old addresses in a later step."""

    def after_loan(self, state, after):
        step = None if state.word.loans else ("take", 0)
        yield after(step, word=state.word, loans=state.loans)

    def after_take(self, state, after, holder):
        yield after(addresses=self.returned(state, state.retired), retired=frozenset())


class NobodyAnswersForTheLastLoan(Machine):
    @staticmethod
    def find_rule(state, event, **situation):
        rule = find_rule(state, event, **situation)
        if rule.verdict is Verdict.LAST_LOAN:
            return rule._replace(verdict=Verdict.GO, claim=Claim.NONE)
        return rule


class EveryLoanIsTheLast(Machine):
    @staticmethod
    def find_rule(state, event, **situation):
        if event is Event.END_LOAN and situation["held_by_loans"]:
            situation["loans"] = 1
        return find_rule(state, event, **situation)


class CommitsBeforeItFrees(Machine):
    """Gives up the claim first: the buffer reads released, and then its deleter fails."""

    def after_release(self, state, after, holder):
        yield after(("free", holder), word=self.step(state.word, Event.COMMIT_RELEASE)[1])

    def after_free(self, state, after, holder):
        yield after()


class LeavesTheOldAddresses(Machine):
    def after_release(self, state, after, holder):
        for following in super().after_release(state, after, holder):
            yield following._replace(addresses=(*state.addresses[:-1], following.addresses[-1]))


BROKEN = {
    "a second release while one runs": without(Event.BEGIN_RELEASE, verdict=Verdict.IN_PROGRESS),
    "a release while it is moved": without(Event.BEGIN_RELEASE, verdict=Verdict.CLAIMED),
    "a release of a lent buffer": without(Event.BEGIN_RELEASE, verdict=Verdict.LENT),
    "a second transfer while one runs": without(Event.BEGIN_TRANSFER, verdict=Verdict.CLAIMED),
    "a transfer of a closed buffer": without(Event.BEGIN_TRANSFER, verdict=Verdict.CLOSED),
    "a loan of a closed buffer": without(Event.LEND, verdict=Verdict.CLOSED),
    "a loan while it is released": without(Event.LEND, verdict=Verdict.CLAIMED),
    "epochs forgotten": ForgetsEpochs,
    "looks, then takes": LooksThenTakes,
    "nobody answers for the last loan": NobodyAnswersForTheLastLoan,
    "every loan is the last": EveryLoanIsTheLast,
    "commits before it frees": CommitsBeforeItFrees,
    "leaves the old addresses": LeavesTheOldAddresses,
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_exploration_finds_what_is_broken(name):
    with pytest.raises(Broken):
        BROKEN[name]().explore()


def test_detaching_while_lent_would_be_noticed():
    """The rule that a detach is refused with loans: without it, foreign code frees memory that somebody looks at."""

    class DetachesWhileLent(Machine):
        @staticmethod
        def find_rule(state, event, **situation):
            rule = find_rule(state, event, **situation)
            if rule.verdict is Verdict.HAS_LOANS:
                return find_rule(state, event, **(situation | {"loans": 0}))
            return rule

        def check(self, state):
            super().check(state)
            if state.excuse == "handed over" and state.loans:
                raise Broken("given away while somebody looks")

    with pytest.raises(Broken, match="given away"):
        DetachesWhileLent().explore()


def test_a_release_that_failed_is_never_tried_again_by_the_collector(states):
    """What is returned does not show this: a deleter that fails returns nothing here. So it is looked at."""
    for state in states:
        for following in Machine().moves(state, 0):
            dropped = following.dropped - state.dropped
            if dropped and state.word.failed:
                assert following.word.claim is state.word.claim
