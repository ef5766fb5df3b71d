# SPDX-License-Identifier: Apache-2.0
"""The words of the ownership table: states, claims, events, answers."""

import enum

__all__ = ["Claim", "Event", "Loans", "Ownership", "TransferredTo", "Verdict"]


class Ownership(enum.Enum):
    """Who must return the allocation that a buffer describes."""

    RELEASED = 0  #: nobody, since it was returned, the borrow ended, or it was lost with its context, device or process
    OWNED = 1  #: this buffer, by :meth:`Buffer.close`, by leaving ``with``, or when it is dropped
    BORROWED = 2  #: somebody else; the buffer's owner, if one was named, is kept alive
    TRANSFERRED = 3  #: whoever took it over, see :class:`TransferredTo`


class TransferredTo(enum.Enum):
    """Who took over an allocation whose buffer is TRANSFERRED."""

    GROWN = 1  #: the buffer that a grow has returned
    DETACHED = 2  #: the :class:`Allocation` that :meth:`Buffer.detach` has returned
    MOVED = 3  #: the buffer that :meth:`Buffer.move_to` or :meth:`Buffer.adopt` has returned
    LOANS = 4  #: whoever looked at the memory when the buffer was closed; the last of them returns it
    GRAPH = 5  #: a graph; nothing in this build gives memory to one


class Claim(enum.Enum):
    """A transition that has begun and is neither committed nor aborted."""

    NONE = 0
    RELEASE = 1
    TRANSFER = 2


class Event(enum.Enum):
    """What can happen to a buffer."""

    ALLOCATE = "allocate"
    BORROW = "borrow"
    BEGIN_RELEASE = "begin release"
    BEGIN_AUTOMATIC_RELEASE = "begin automatic release"
    COMMIT_RELEASE = "commit release"
    ABORT_RELEASE = "abort release"
    BEGIN_TRANSFER = "begin transfer"
    COMMIT_TRANSFER = "commit transfer"
    ABORT_TRANSFER = "abort transfer"
    LEND = "lend"
    END_LOAN = "end loan"
    LOSE = "lose"
    USE = "use"


class Verdict(enum.Enum):
    """The answer of the machine to an event."""

    GO = 0  #: the transition was made
    LENT = 1  #: made: what was held has passed to the loans
    LAST_LOAN = 2  #: made: the caller must now return what the loans held
    NOTHING = 3  #: harmless, nothing to do
    IN_PROGRESS = 4  #: another call is releasing this allocation now
    CLOSED = 5  #: refused: TRANSFERRED or RELEASED
    CLAIMED = 6  #: refused: a release or a transfer is under way
    NOT_OWNER = 7  #: refused: one cannot give what one does not own
    HAS_LOANS = 8  #: refused: somebody still looks at the memory
    NO_LOAN = 9  #: refused: more loans ended than began
    NOT_CLAIMED = 10  #: refused: a commit or abort without its begin
    TOO_MANY = 11  #: refused: the count of loans is full


class Loans(enum.Enum):
    """How many loans a rule asks for."""

    ANY = "any number of loans"
    NONE = "no loans"
    LAST = "one loan"
    SOME = "loans"
