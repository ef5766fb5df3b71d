# SPDX-License-Identifier: Apache-2.0
"""The ownership machine a second time, written from the rules in prose and not from the table.

It is deliberately plain: an object with fields and one method an event, each returning the name of the answer. The
tests compare it with the compiled word; where the two differ, one of them is wrong.
"""

from dataclasses import dataclass, replace

TAKERS = ("GROWN", "DETACHED", "MOVED", "LOANS", "GRAPH")
# Every event as (method, arguments), as both the model and the word spell it.
EVENTS = (
    ("begin_release",),
    ("begin_automatic_release",),
    ("commit_release",),
    ("abort_release",),
    *(("begin_transfer", taker) for taker in TAKERS),
    ("commit_transfer",),
    ("abort_transfer",),
    ("lend",),
    ("end_loan",),
    ("lose",),
    ("use",),
)


@dataclass
class Model:
    """One buffer's ownership; a word in every field at once."""

    state: str = "OWNED"
    claim: str = "NONE"
    failed: bool = False
    lost: bool = False
    loans: int = 0
    taker: str | None = None

    def copy(self):
        return replace(self)

    def key(self):
        return (self.state, self.claim, self.failed, self.lost, self.loans, self.taker)

    @property
    def open(self):
        return self.state in ("OWNED", "BORROWED")

    def _release(self, automatic):
        if self.claim == "RELEASE":
            return "IN_PROGRESS"  # another thread's close, or a close from inside the deleter
        if not self.open:
            return "NOTHING"  # closing twice is harmless
        if self.claim == "TRANSFER":
            return "CLAIMED"
        if self.loans:
            self.state, self.taker = "TRANSFERRED", "LOANS"
            return "LENT"
        if self.state == "BORROWED":
            self.state = "RELEASED"
            return "GO"
        if automatic and self.failed:
            return "NOTHING"  # only an explicit close tries again
        self.claim = "RELEASE"
        return "GO"

    def begin_release(self):
        return self._release(automatic=False)

    def begin_automatic_release(self):
        return self._release(automatic=True)

    def commit_release(self):
        if self.claim != "RELEASE":
            return "NOT_CLAIMED"
        if self.state == "OWNED":
            self.state = "RELEASED"
        self.claim, self.failed = "NONE", False
        return "GO"

    def abort_release(self):
        if self.claim != "RELEASE":
            return "NOT_CLAIMED"
        self.claim, self.failed = "NONE", True
        return "GO"

    def begin_transfer(self, taker):
        if not self.open:
            return "CLOSED"
        if self.claim != "NONE":
            return "CLAIMED"
        if self.state == "BORROWED":
            return "NOT_OWNER"
        if self.loans and taker in ("DETACHED", "MOVED"):
            return "HAS_LOANS"
        self.claim, self.taker = "TRANSFER", taker
        return "GO"

    def commit_transfer(self):
        if self.claim != "TRANSFER":
            return "NOT_CLAIMED"
        self.state, self.claim, self.failed = "TRANSFERRED", "NONE", False
        return "GO"

    def abort_transfer(self):
        if self.claim != "TRANSFER":
            return "NOT_CLAIMED"
        self.claim, self.taker = "NONE", None
        return "GO"

    def lend(self):
        if not self.open:
            return "CLOSED"
        if self.claim != "NONE":
            return "CLAIMED"
        self.loans += 1
        return "GO"

    def end_loan(self):
        if not self.loans:
            return "NO_LOAN"
        self.loans -= 1
        if not self.loans and (self.state, self.taker, self.claim) == ("TRANSFERRED", "LOANS", "NONE"):
            self.claim = "RELEASE"
            return "LAST_LOAN"
        return "GO"

    def lose(self):
        if self.state != "OWNED":
            return "NOTHING"
        if self.claim == "TRANSFER":
            return "CLAIMED"
        self.state, self.claim, self.lost = "RELEASED", "NONE", True
        return "GO"

    def use(self):
        if not self.open:
            return "CLOSED"
        return "GO" if self.claim == "NONE" else "CLAIMED"


def key_of_word(word):
    """Return what can be read from a compiled word, in the form of `Model.key`."""
    return (
        word.state.name,
        word.claim.name,
        word.failed,
        word.lost,
        word.loans,
        word.taker.name if word.taker else None,
    )


def apply(target, event):
    """Apply one event and return the name of the answer."""
    answer = getattr(target, event[0])(*event[1:])
    return answer if isinstance(answer, str) else answer.name


def reachable(max_loans):
    """Return a path of events for every situation that events can lead to, as {key: (first state, path)}."""
    found = {}
    waiting = [(Model(state), state, ()) for state in ("OWNED", "BORROWED")]
    while waiting:
        model, first, path = waiting.pop(0)
        if model.key() in found:
            continue
        found[model.key()] = (first, path)
        for event in EVENTS:
            following = model.copy()
            apply(following, event)
            if following.loans <= max_loans:
                waiting.append((following, first, (*path, event)))
    return found
