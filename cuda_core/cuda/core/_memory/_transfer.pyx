# SPDX-License-Identifier: Apache-2.0
"""Handing an allocation over: from one record to another, and ``Allocation``, which carries it out of all buffers."""

cimport cython
from cpython.ref cimport PyObject

from cuda.core._driver cimport is_finalizing
from cuda.core._memory._allocation cimport TOLD, Keeper, Record, record_ended
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_GROW,
    STATE_OWNED,
    TAKER_DETACHED,
    TAKER_GROWN,
    TAKER_MOVED,
    VERDICT_GO,
)
from cuda.core._memory._release cimport report
from cuda.core._memory._try_reference cimport drop_reference, try_reference
from cuda.core._stream cimport streams_of
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._errors import OwnershipError
from cuda.core._memory._allocation import FreeFunction

__all__ = ["Allocation"]


cdef int begin_hand_over(Record source, int taker, str what) except -1:
    """Claim what ``source`` owns for a transfer.

    Raises
    ------
    OwnershipError, BufferError
        If the machine refuses. Nothing has changed then.
    """
    cdef int verdict = source.apply(EVENT_BEGIN_GROW - TAKER_GROWN + taker)
    if verdict != VERDICT_GO:
        raise source.refusal(verdict, what)
    return 0


cdef void abort_hand_over(Record source) noexcept:
    source.apply(EVENT_ABORT_TRANSFER)


cdef void commit_hand_over(Record source, Record target, int taker) noexcept:
    """Make ``target`` the owner of what ``source`` has claimed. None: foreign code takes it, or it was freed.

    The caller then enters the target where addresses are known, and after that lets ``source`` forget its recipe:
    forgetting lets the GIL go, and in between an address without an owner would look free for the taking.
    """
    if target is not None:
        target.copy_recipe(source)
    source.left_to = taker
    if source.range is None:
        source.commit_transfer(target.serial if target is not None else 0)
        if target is not None:
            target.begin(STATE_OWNED, None, 0)
    else:
        if target is not None:
            target.begin(STATE_OWNED, source.range, source.epoch + 1)
        source.commit_transfer(target.serial if target is not None else 0)
    record_ended(source)
    if target is not None:
        source.set_taker_serial(target.serial)


cdef int hand_over(Record source, Record target, int taker, str what) except -1:
    """Claim and commit in one: nothing in between can fail."""
    begin_hand_over(source, taker, what)
    try:
        if source.range is not None and source.range.partly_returned.load():
            raise OwnershipError(
                f"a close that failed has returned a part of the memory; close it again ({source.describe()})"
            )
        source.ensure_not_paused(what)
    except BaseException:
        abort_hand_over(source)
        raise
    commit_hand_over(source, target, taker)
    return 0


cdef bint has_passed_on(Record record) noexcept:
    """Whether what a record owned is another record's by now.

    At first that is not entered anywhere: whoever looks for the owner of an address at that moment finds this record,
    and must not take the address for free.
    """
    cdef int taker = record.taker()
    if taker == TAKER_DETACHED:
        return not isinstance(record, Allocation)  # else foreign code has it
    return taker == TAKER_GROWN or taker == TAKER_MOVED


cdef class Slot:
    """The way from an address to its Allocation."""

    cdef void fill(self, Allocation allocation) noexcept:
        self._allocation = <PyObject*>allocation

    cdef void empty(self) noexcept:
        """Cut the way, before the Allocation ends: whoever looks meanwhile has been turned away, or has a reference."""
        while self._locked.exchange(1):
            pass
        self._allocation = NULL
        self._locked.store(0)

    cdef Allocation allocation(self):
        """Return the Allocation, or None where it is gone or going."""
        cdef PyObject* found
        cdef Allocation result
        while self._locked.exchange(1):
            pass
        found = self._allocation
        if found != NULL and not try_reference(found):
            found = NULL
        self._locked.store(0)
        if found == NULL:
            return None
        result = <Allocation>found
        drop_reference(found)
        return result


# No gc_clear: what is reported at the end names the resource.
@cython.no_gc_clear
cdef class Allocation(Record):
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
        raise TypeError("Allocation objects cannot be made directly; they come from Buffer.detach")

    def __copy__(self) -> Never:
        raise TypeError("an Allocation cannot be copied: it stands for one allocation")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError("an Allocation cannot be copied: it stands for one allocation")

    def __replace__(self, **changes: object) -> Never:
        raise TypeError("an Allocation cannot be changed: it stands for one allocation")

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise TypeError("an Allocation cannot be pickled: it stands for one allocation of this process")

    def __dealloc__(self):
        # Not in __del__: in a cycle, the finalizer of a resource may still free this allocation.
        if self.slot is not None:
            self.slot.empty()
        if self.state() != STATE_OWNED or is_finalizing():
            return
        self.reported = TOLD
        report(
            f"{self.describe()} was detached, and dropped without being adopted or declared as handed over. "
            "It stays allocated."
        )

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
        cdef object owner = self.held_owner()
        if isinstance(owner, Keeper) and not (<Keeper>owner).is_alone():
            raise OwnershipError(
                f"other buffers were imported from the same pointer, and would lose it ({self.describe()})"
            )
        hand_over(self, None, TAKER_DETACHED, "handed over")
        if isinstance(owner, Keeper):
            (<Keeper>owner).let_out()
        self.forget()

    @property
    def handle(self) -> int:
        """int: the address; 0 once it was adopted or handed over."""
        return <size_t>self.pointer if self.state() == STATE_OWNED else 0

    @property
    def size(self) -> int:
        """int: the size in bytes; 0 once it was adopted or handed over."""
        return self.size if self.state() == STATE_OWNED else 0

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory this is; -1 for memory of the host, or where it is not known."""
        return self.device_id

    @property
    def memory_resource(self) -> MemoryResource | None:
        """MemoryResource or None: what frees the memory. None where a function does, and once it was taken."""
        resource = self.held_resource()
        return None if isinstance(resource, FreeFunction) else resource

    @property
    def owner(self) -> object:
        """object or None: what has to be kept alive until the memory is freed."""
        owner = self.held_owner()
        return None if isinstance(owner, Keeper) else owner

    @property
    def streams(self) -> tuple[Stream, ...]:
        """tuple of Stream: what orders the free."""
        cdef StreamHandle* order = self.hold_stream()
        try:
            return streams_of(order)
        finally:
            drop_stream(order)

    def __repr__(self) -> str:
        name = self.ownership.name
        if self.transferred_to is not None:
            name += f" {self.transferred_to.name}"
        return f"<Allocation #{self.serial} {name} ptr={<size_t>self.pointer:#x} size={self.size}>"
