# SPDX-License-Identifier: Apache-2.0
"""A model of one allocation, the buffers that it passes through, and two threads; all interleavings of it.

Who may do what is asked of the real table, event by event. What is modelled here is the rest: the steps between the
events, at which the other thread may come in, and the addresses. A state is a plain tuple, so that all of them can be
visited. Every operation may be started by either thread at any time, and every effect may fail.

The allocation begins in buffer 0 at address 0. A grow passes it to the next buffer, in place or at a new address; a
detach passes it to an ``Allocation``, which is adopted by the next buffer or declared as handed over.
"""

from collections import deque
from typing import NamedTuple

from cuda.core._memory._ownership import Claim, Event, Ownership, TransferredTo, Verdict, find_rule

THREADS = (0, 1)
MOST_BUFFERS = 2
MOST_LOANS = 2


class Word(NamedTuple):
    state: Ownership = Ownership.OWNED
    claim: Claim = Claim.NONE
    loans: int = 0
    failed: bool = False
    taker: TransferredTo | None = None


class State(NamedTuple):
    word: Word = Word()
    holders: str = (
        "B"  # everybody who held the allocation, in order: B a buffer, A an Allocation; the last has it
    )
    dropped: frozenset = frozenset()  # holders to which nobody refers any more
    addresses: tuple = (0,)  # for each address that the allocation was ever at, how often it was returned
    retired: frozenset = (
        frozenset()
    )  # addresses left by a moving grow, to be returned when nobody looks at them
    loans: tuple = ()  # for each open loan, the address that it looks at
    excuse: str = ""  # why the allocation need not be returned by this package
    threads: tuple = (None, None)  # for each thread, the step that it is at


class Broken(Exception):
    """An invariant does not hold."""


class Machine:
    """The steps. A subclass can break one of them, to see that the exploration finds it."""

    find_rule = staticmethod(find_rule)

    def step(self, word, event, taker=None):
        """Apply an event to the word, as the table says."""
        held = word.state is Ownership.TRANSFERRED and word.taker is TransferredTo.LOANS
        try:
            rule = self.find_rule(
                word.state,
                event,
                claim=word.claim,
                loans=word.loans,
                failed=word.failed,
                held_by_loans=held,
                taker=taker,
            )
        except LookupError as error:  # a situation that the table knows to be impossible
            raise Broken(str(error)) from error
        if rule.verdict not in (Verdict.GO, Verdict.LENT, Verdict.LAST_LOAN):
            return rule.verdict, word
        return rule.verdict, Word(
            rule.to or word.state,
            word.claim if rule.claim is None else rule.claim,
            word.loans + rule.loan_change,
            word.failed if rule.set_failed is None else rule.set_failed,
            taker or rule.taker or word.taker,
        )

    def step_of(self, state, holder, event, taker=None):
        """The same for one holder. Whoever has passed the allocation on reads TRANSFERRED, without a claim."""
        if holder == len(state.holders) - 1:
            return self.step(state.word, event, taker)
        left = Word(Ownership.TRANSFERRED, taker=TransferredTo.GROWN)
        return self.step(left, event, taker)[0], state.word

    def moves(self, state, thread):
        """Every state that one step of the thread leads to."""
        at = state.threads[thread]

        def after(step=None, **changes):
            threads = tuple(step if t == thread else state.threads[t] for t in THREADS)
            return state._replace(threads=threads, **changes)

        if at is not None:
            yield from getattr(self, "after_" + at[0])(state, after, *at[1:])
            return
        busy = {step[1] for step in state.threads if step is not None}
        for holder, kind in enumerate(state.holders):
            if holder in state.dropped:
                continue
            if kind == "B":
                yield from self.begin(state, after, holder, Event.BEGIN_RELEASE)
                if holder not in busy:  # a thread that works with a buffer refers to it
                    gone = state.dropped | {holder}
                    for following in self.begin(state, after, holder, Event.BEGIN_AUTOMATIC_RELEASE):
                        yield following._replace(dropped=gone)
                verdict, word = self.step_of(state, holder, Event.LEND)
                if verdict is Verdict.GO and len(state.loans) < MOST_LOANS:
                    here = len(state.addresses) - 1
                    yield after(word=word, loans=tuple(sorted((*state.loans, here))))
                takers = (TransferredTo.GROWN, TransferredTo.DETACHED)
            else:
                if holder not in busy:
                    reported = state.excuse or "dropped Allocation" * (
                        state.word.state is Ownership.OWNED and holder == len(state.holders) - 1
                    )
                    yield after(dropped=state.dropped | {holder}, excuse=reported)
                takers = (TransferredTo.MOVED, None)
            for taker in takers:
                if (
                    taker in (TransferredTo.GROWN, TransferredTo.MOVED)
                    and state.holders.count("B") == MOST_BUFFERS
                ):
                    continue
                if taker is TransferredTo.DETACHED and "A" in state.holders:
                    continue
                event_taker = taker or TransferredTo.DETACHED
                verdict, word = self.step_of(state, holder, Event.BEGIN_TRANSFER, event_taker)
                if verdict is Verdict.GO:
                    yield after(("transfer", holder, taker), word=word)
        for address in sorted(set(state.loans)):
            rest = list(state.loans)
            rest.remove(address)
            verdict, word = self.step(state.word, Event.END_LOAN)
            if verdict is Verdict.LAST_LOAN:
                yield after(("release", None), word=word, loans=tuple(rest))
            elif verdict is Verdict.GO:
                yield from self.after_loan(state._replace(word=word, loans=tuple(rest)), after)
            else:
                raise Broken(f"an open loan cannot end: {verdict}")

    def begin(self, state, after, holder, event):
        """A close, or a collection."""
        verdict, word = self.step_of(state, holder, event)
        if verdict is Verdict.GO:
            yield after(("release", holder), word=word)
        else:
            yield after(word=word)

    def after_release(self, state, after, holder):
        """The deleter runs: it returns everything, or fails and returns nothing."""
        yield after(
            ("end", holder, Event.COMMIT_RELEASE),
            addresses=self.returned(state, {len(state.addresses) - 1} | state.retired),
            retired=frozenset(),
        )
        yield after(("end", holder, Event.ABORT_RELEASE))

    def after_end(self, state, after, holder, event):
        verdict, word = self.step(state.word, event)
        if verdict is not Verdict.GO:
            raise Broken(f"{event} after the deleter: {verdict}")
        yield after(word=word)

    def after_transfer(self, state, after, holder, taker):
        """The effect of a transfer: it fails, or makes the taker; a grow moves or stays in place."""
        yield after(word=self.step(state.word, Event.ABORT_TRANSFER)[1])
        verdict, word = self.step(state.word, Event.COMMIT_TRANSFER)
        if verdict is not Verdict.GO:
            raise Broken(f"a transfer cannot be committed: {verdict}")
        if word.state is not Ownership.TRANSFERRED:
            raise Broken("two holders own one allocation")
        if taker is None:
            yield after(word=word, excuse="handed over")
            return
        word = Word(loans=word.loans)  # the next holder's
        holders = state.holders + ("A" if taker is TransferredTo.DETACHED else "B")
        yield after(word=word, holders=holders)
        if taker is TransferredTo.GROWN:
            old = len(state.addresses) - 1
            yield after(
                ("retire", holder),
                word=word,
                holders=holders,
                addresses=(*state.addresses, 0),
                retired=state.retired | {old},
            )

    def after_retire(self, state, after, holder=None):
        """Return old addresses, unless somebody looks at them. Looking and taking them is one step."""
        if state.word.loans:
            yield after()
        else:
            yield after(addresses=self.returned(state, state.retired), retired=frozenset())

    def after_loan(self, state, after):
        """A loan has ended, in the same step."""
        for following in self.after_retire(state, after):
            yield following._replace(word=state.word, loans=state.loans)

    @staticmethod
    def returned(state, which):
        return tuple(times + (address in which) for address, times in enumerate(state.addresses))

    def check(self, state):
        """What must be true at every moment, and at the end."""
        if max(state.addresses) > 1:
            raise Broken("returned twice")
        if any(state.addresses[address] for address in state.loans):
            raise Broken("returned while lent, or used after its return")
        if state.word.loans != len(state.loans):
            raise Broken("loans are miscounted")
        last = len(state.holders) - 1
        is_open = state.word.state is Ownership.OWNED and last not in state.dropped
        if is_open and state.word.claim is not Claim.RELEASE and state.addresses[-1]:
            raise Broken("an open buffer has an address that was returned")
        over = state.threads == (None, None) and not is_open and not state.loans
        kept = state.excuse or state.word.failed
        if over and not kept and state.addresses != (1,) * len(state.addresses):
            raise Broken("all holders are gone, and something was not returned")

    def explore(self):
        """Visit every state, breadth first; return all of them. Raises `Broken` with the shortest way there."""
        start = State()
        before = {start: None}
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            try:
                self.check(state)
                following = {s for thread in THREADS for s in self.moves(state, thread)}
            except Broken as error:
                way = []
                while state is not None:
                    way.append(state)
                    state = before[state]
                raise Broken(f"{error}:\n" + "\n".join(map(str, reversed(way)))) from None
            for each in following:
                if each not in before:
                    before[each] = state
                    waiting.append(each)
        return before
