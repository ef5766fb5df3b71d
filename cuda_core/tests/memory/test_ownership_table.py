# SPDX-License-Identifier: Apache-2.0
"""The table is data: every row is used, and the compiled word does what the rules say in every situation."""

import importlib.util
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cuda.core._memory import _ownership
from cuda.core._memory._ownership import Claim, Event, Ownership, TransferredTo, Verdict
from cuda.core._memory._ownership_word import Word
from ownership_model import EVENTS, TAKERS, Model, apply, key_of_word, reachable
from support import race

# Two loans stand for any larger number: a rule can ask for none, for the last one, or for more.
SITUATIONS = reachable(max_loans=2)
EVENT_OF_METHOD = {
    "begin_release": Event.BEGIN_RELEASE,
    "begin_automatic_release": Event.BEGIN_AUTOMATIC_RELEASE,
    "commit_release": Event.COMMIT_RELEASE,
    "abort_release": Event.ABORT_RELEASE,
    "begin_transfer": Event.BEGIN_TRANSFER,
    "commit_transfer": Event.COMMIT_TRANSFER,
    "abort_transfer": Event.ABORT_TRANSFER,
    "lend": Event.LEND,
    "end_loan": Event.END_LOAN,
    "lose": Event.LOSE,
    "use": Event.USE,
}


def replay(first, path):
    word, model = Word(state=first), Model(first)
    for event in path:
        assert apply(word, event) == apply(model, event)
    assert key_of_word(word) == model.key()
    return word, model


def rule_for(model, event):
    return _ownership.find_rule(
        Ownership[model.state],
        EVENT_OF_METHOD[event[0]],
        claim=Claim[model.claim],
        loans=model.loans,
        failed=model.failed,
        held_by_loans=model.state == "TRANSFERRED" and model.taker == "LOANS",
        taker=TransferredTo[event[1]] if len(event) > 1 else None,
    )


def test_the_compiled_module_is_what_runs():
    assert _ownership.compiled
    assert not _ownership.__file__.endswith(".py")


def test_every_state_is_reached():
    assert {key[0] for key in SITUATIONS} == {state.name for state in Ownership}
    assert {key[1] for key in SITUATIONS} == {claim.name for claim in Claim}
    assert {key[5] for key in SITUATIONS} - {None} == {taker.name for taker in TransferredTo}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: "-".join(event))
def test_word_agrees_with_the_rules_in_every_reachable_situation(event):
    for first, path in SITUATIONS.values():
        word, model = replay(first, path)
        before = model.key()
        assert apply(word, event) == apply(model, event), f"{event} in {before}"
        assert key_of_word(word) == model.key(), f"{event} in {before}"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: "-".join(event))
def test_table_answers_as_the_rules_in_every_reachable_situation(event):
    for key in SITUATIONS:
        model = Model(*key)
        row = rule_for(model, event)
        assert row.verdict.name == apply(model.copy(), event), f"{event} in {key}"


@pytest.mark.parametrize("row", _ownership.TABLE, ids=lambda row: f"{row.event.value} {row.verdict.name}")
def test_every_row_decides_somewhere(row):
    if row.event in (Event.ALLOCATE, Event.BORROW):
        assert row.sources == ()
        assert row.to is (Ownership.OWNED if row.event is Event.ALLOCATE else Ownership.BORROWED)
        return
    decided = [
        (key, event)
        for key in SITUATIONS
        for event in EVENTS
        if EVENT_OF_METHOD[event[0]] is row.event and rule_for(Model(*key), event) is row
    ]
    assert decided, "an earlier row always comes first"
    for key, event in decided:
        word, _ = replay(*SITUATIONS[key])
        before = key_of_word(word)
        assert apply(word, event) == row.verdict.name
        state, _, _, _, loans, _ = before
        if row.verdict not in (Verdict.GO, Verdict.LENT, Verdict.LAST_LOAN):
            assert key_of_word(word) == before, "a refusal changes nothing"
            continue
        assert word.state is (row.to or Ownership[state])
        assert word.loans == loans + row.loan_change
        if row.claim is not None:
            assert word.claim is row.claim
        if row.set_failed is not None:
            assert word.failed is row.set_failed
        if row.set_lost:
            assert word.lost
        if row.taker is not None:
            assert word.taker is row.taker


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: "-".join(event))
@pytest.mark.parametrize("first", ["TRANSFERRED", "RELEASED"])
def test_nothing_leaves_the_two_last_states(event, first):
    for key, (start, path) in SITUATIONS.items():
        if key[0] == first:
            word, _ = replay(start, path)
            apply(word, event)
            assert word.state.name == first


def test_the_deleter_starts_at_most_once():
    """No path from a claimed release that was committed, or from a transfer, leads to another claim."""
    for key, (first, path) in SITUATIONS.items():
        if key[0] in ("RELEASED", "TRANSFERRED") and key[1] == "NONE":
            for event in EVENTS:
                word, _ = replay(first, path)
                answer = apply(word, event)
                if word.claim is Claim.RELEASE:
                    assert (answer, key[5]) == ("LAST_LOAN", "LOANS")


def test_a_full_count_of_loans_refuses_the_next():
    word = Word(state="OWNED", loans=2**24 - 1)
    assert word.lend() is Verdict.TOO_MANY
    assert (word.loans, word.state, word.claim) == (2**24 - 1, Ownership.OWNED, Claim.NONE)
    assert word.end_loan() is Verdict.GO
    assert word.lend() is Verdict.GO


@pytest.mark.parametrize("taker", TAKERS)
def test_unknown_names_are_refused(taker):
    with pytest.raises(KeyError):
        Word(state="NOWHERE")
    with pytest.raises(KeyError):
        Word().begin_transfer(taker.lower())


@pytest.mark.parametrize(
    "event", [event for event in EVENTS if event[0] != "end_loan"], ids=lambda e: "-".join(e)
)
def test_a_holder_left_behind_by_a_grow_reads_transferred(event):
    word = Word(state="OWNED", shared=True)
    assert word.begin_transfer("GROWN") is Verdict.GO
    assert word.commit_transfer() is Verdict.GO
    assert (word.state, word.taker, word.epoch) == (Ownership.TRANSFERRED, TransferredTo.GROWN, 1)
    assert (word.claim, word.loans) == (Claim.NONE, 0)
    expected = Model("TRANSFERRED", taker="GROWN")
    assert apply(word, event) == apply(expected, event)
    assert (word.state, word.taker, word.epoch) == (Ownership.TRANSFERRED, TransferredTo.GROWN, 1)
    assert (word.claim, word.loans) == (Claim.NONE, 0), "the next holder's claim and loans are not touched"


def test_a_loan_taken_before_a_grow_counts_on_after_it():
    word = Word(state="OWNED", shared=True)
    assert word.lend() is Verdict.GO
    assert word.begin_transfer("GROWN") is Verdict.GO
    assert word.commit_transfer() is Verdict.GO
    assert word.loans == 1
    assert word.end_loan() is Verdict.GO
    assert word.loans == 0
    assert word.end_loan() is Verdict.NO_LOAN


def test_an_aborted_transfer_of_a_shared_word_leaves_the_holder_in_place():
    word = Word(state="OWNED", shared=True)
    assert word.begin_transfer("GROWN") is Verdict.GO
    assert word.abort_transfer() is Verdict.GO
    assert (word.state, word.taker, word.epoch, word.claim) == (Ownership.OWNED, None, 0, Claim.NONE)
    assert word.begin_release() is Verdict.GO


def test_uncompiled_the_module_gives_the_same_table():
    pytest.importorskip("cython", reason="reading the module uncompiled needs Cython")
    source = importlib.util.find_spec("cuda.core._memory").submodule_search_locations[0] + "/_ownership.py"
    spec = importlib.util.spec_from_file_location("ownership_as_python", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    assert not module.compiled
    assert [repr(rule) for rule in module.TABLE] == [repr(rule) for rule in _ownership.TABLE]
    assert len(module.TABLE) == len(_ownership.TABLE)


# --- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        [("begin_release",)] * 4,
        [("begin_transfer", "GROWN")] * 4,
        [
            ("begin_release",),
            ("begin_transfer", "GROWN"),
            ("begin_automatic_release",),
            ("begin_transfer", "MOVED"),
        ],
    ],
    ids=["releases", "transfers", "mixed"],
)
def test_of_racing_claims_exactly_one_wins(events):
    for _ in range(200):
        word = Word()
        answers = race(*(lambda word=word, event=event: apply(word, event) for event in events))
        assert answers.count("GO") == 1
        assert set(answers) <= {"GO", "IN_PROGRESS", "CLAIMED"}
        assert word.claim is not Claim.NONE


def test_loans_of_many_threads_are_all_counted():
    word = Word()

    def lend_and_end():
        for _ in range(2000):
            assert word.lend() is Verdict.GO
            assert word.end_loan() is Verdict.GO
        assert word.lend() is Verdict.GO

    assert race(*[lend_and_end] * 4) == [None] * 4
    assert word.loans == 4


def test_of_racing_last_loans_exactly_one_answers_for_the_free():
    for _ in range(200):
        word = Word(loans=4)
        answers = race(*[word.end_loan] * 4, word.begin_release)
        ends, close = answers[:4], answers[4]
        if close is Verdict.GO:  # every loan had ended before
            assert ends == [Verdict.GO] * 4
        else:
            assert close is Verdict.LENT
            assert ends.count(Verdict.LAST_LOAN) == 1
        assert (word.claim, word.loans) == (Claim.RELEASE, 0)


# --- exploration -------------------------------------------------------------------------------------------------


class OwnershipMachine(RuleBasedStateMachine):
    """Any order of events: the word and the model answer alike and read alike."""

    @initialize(first=st.sampled_from(["OWNED", "BORROWED"]))
    def begin(self, first):
        self.word, self.model = Word(state=first), Model(first)
        self.freed = 0

    @rule(event=st.sampled_from(EVENTS))
    def step(self, event):
        claimed = self.model.claim == "RELEASE"
        answer = apply(self.word, event)
        assert answer == apply(self.model, event)
        self.freed += claimed and event == ("commit_release",)

    @invariant()
    def they_read_alike(self):
        assert key_of_word(self.word) == self.model.key()

    @invariant()
    def freed_at_most_once(self):
        assert self.freed <= 1


OwnershipMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_ownership_machine = OwnershipMachine.TestCase
