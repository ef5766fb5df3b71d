# SPDX-License-Identifier: Apache-2.0
# Made from _allocation.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The record of an allocation: the recipe for its free, and the way to its ownership word.

The record is the C base class of ``Buffer``. It keeps everything that a free needs (address, size, resource, stream,
range), so that a buffer can be returned after the program has dropped all of those.

While a record must still return something it is on the list of what is live. Every change of its word passes here, so
this is also where an observer hears of it.
"""

from collections.abc import Callable
from cuda.core._memory._ownership import Ownership
from cuda.core._memory._ownership import TransferredTo

class FreeFunction:
    """What stands in a record in the place of a resource where memory is freed by a function."""

    function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        ...

class Record:
    """The C side of a buffer. Made by resources, never by users."""

    @property
    def ownership(self) -> Ownership:
        """Ownership: who must return the allocation. Readable in every state, from every thread."""

    @property
    def transferred_to(self) -> TransferredTo | None:
        """TransferredTo or None: who took the allocation over, for a TRANSFERRED buffer."""

    @property
    def loans(self) -> int:
        """int: how many exports of this memory are open."""

def is_left(address: int) -> bool:
    """Whether what was left at an address is still there."""

def live_memory() -> dict[str, int]:
    """Return how many records must still return something, and what the ranges among them hold."""
