# SPDX-License-Identifier: Apache-2.0
# Made from _transfer.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Handing an allocation over: from one record to another, and ``Allocation``, which carries it out of all buffers."""

from cuda.core._memory import MemoryResource
from cuda.core._memory._allocation import Record
from cuda.core._stream import Stream
from typing import SupportsIndex
from typing_extensions import Never

__all__ = ["Allocation"]

class Allocation(Record):
    """An allocation that no buffer owns: what :meth:`Buffer.detach` returns.

    It carries everything that the free needs, and stands for exactly one allocation. It ends in one of two ways:
    :meth:`Buffer.adopt` takes it up again, or :meth:`handed_over` declares that foreign code frees the memory. Dropped
    without either, it is reported as a ``CUDAWarning`` and the memory is *not* freed: somebody may have its address.

    Notes
    -----
    Compared by identity. It cannot be made, copied or pickled: there would be two claims to one allocation. Safe from
    any thread; of two that adopt it, one wins.

    Examples
    --------
    >>> allocation = buffer.detach()
    >>> allocation.size
    1048576
    >>> buffer = Buffer.adopt(allocation)
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        ...

    def __copy__(self) -> Never:
        ...

    def __deepcopy__(self, memo: object) -> Never:
        ...

    def __replace__(self, **changes: object) -> Never:
        ...

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        ...

    def handed_over(self) -> None:
        """Declare that foreign code has the memory now and frees it.

        Raises
        ------
        OwnershipError
            If it was adopted or handed over before, or is an import that other buffers have a share of: a free would
            take the memory from them.

        Examples
        --------
        >>> allocation = pinned.allocate(64).detach()
        >>> address, size = allocation.handle, allocation.size
        >>> allocation.handed_over()  # from here on somebody else frees it, as here
        >>> pinned.deallocate(address, size)
        """

    @property
    def handle(self) -> int:
        """int: the address; 0 once it was adopted or handed over."""

    @property
    def size(self) -> int:
        """int: the size in bytes; 0 once it was adopted or handed over."""

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is; -1 for memory of the host, or where it is not known."""

    @property
    def memory_resource(self) -> MemoryResource | None:
        """MemoryResource or None: what frees the memory. None where a function does, and once it was taken."""

    @property
    def owner(self) -> object:
        """object or None: what has to be kept alive until the memory is freed."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """tuple of Stream: what orders the free."""

    def __repr__(self) -> str:
        ...
