# SPDX-License-Identifier: Apache-2.0
"""What built-in resources share that free by an address: each address has one owner, and the resource knows which.

The index is read where an address comes from outside (``from_handle``, ``adopt``, a direct ``deallocate``); a release
finds everything it needs in the record.
"""

cimport cython
from cpython.weakref cimport PyWeakref_NewRef
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t, uintptr_t

from cuda.core._shared_containers cimport dict_item
from cuda.core._driver cimport ensure_driver, is_hopeless
from cuda.core._memory._allocation cimport (
    CLOSE_DONE,
    NEVER_WAIT,
    WAIT,
    Record,
    end_left_behind,
    put_back_left,
    record_ended,
)
from cuda.core._memory._arguments cimport pointer_argument, size_argument
from cuda.core._memory._asking cimport note_loss, note_outcome, record_being_asked, waiting_of_asked
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._memory._ownership cimport (
    CLAIM_MASK,
    EVENT_LOSE,
    LOANS_MASK,
    STATE_MASK,
    STATE_OWNED,
    STATE_TRANSFERRED,
    TAKER_DETACHED,
    TAKER_LOANS,
    VERDICT_GO,
)
from cuda.core._memory._transfer cimport (
    Allocation,
    Slot,
    abort_hand_over,
    begin_hand_over,
    commit_hand_over,
    has_passed_on,
)
from cuda.core._stream cimport Stream_accept
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._errors import CUDAError, OwnershipError


cdef class Holding:
    """One address of a resource: how large, and who has it."""

    cdef Record record(self):
        """Return the record that owns the address, or owned it last; None if that is gone."""
        if self.slot is not None:
            return self.slot.allocation()
        return self.owner()

    cdef Holder holder(self):
        cdef Record record = self.record()
        cdef uint64_t bits
        if self.range is not None:
            # The range's word tells more than a record: whoever holds it now, the loans included.
            bits = self.range.word.load()
            if bits & STATE_MASK == STATE_TRANSFERRED and bits & (LOANS_MASK | CLAIM_MASK):
                return HELD_BY_LOANS
        if record is None:
            return HELD_BY_NOBODY
        if record.state() == STATE_OWNED:
            return HELD_BY_ALLOCATION if self.slot is not None else HELD_BY_BUFFER
        if record.taker() == TAKER_LOANS and record.word.load() & (LOANS_MASK | CLAIM_MASK):
            return HELD_BY_LOANS
        return HELD_BY_BUFFER if has_passed_on(record) else HELD_BY_NOBODY


cdef Holding _FREED = Holding.__new__(Holding)


cdef class IndexedResource(MemoryResource):
    """A built-in resource with one owner for each address."""

    def __cinit__(self):
        self._holdings = {}
        self.indexed = True

    cdef Holding new_entry(self, Record record, uintptr_t address, size_t size):
        """Make an entry for the owner of an address. All that needs memory is done here, but for the table itself."""
        cdef Holding holding = Holding.__new__(Holding)
        holding.key = <size_t>address
        holding.size = size
        holding.range = record.range
        holding.serial = record.serial
        if isinstance(record, Allocation):
            # One slot for all its entries, since it is the one that is emptied when the Allocation ends.
            with cython.critical_section(record):
                if (<Allocation>record).slot is None:
                    (<Allocation>record).slot = Slot.__new__(Slot)
                    (<Allocation>record).slot.fill(<Allocation>record)
                holding.slot = (<Allocation>record).slot
        else:
            holding.owner = PyWeakref_NewRef(record, None)
        return holding

    @cython.critical_section
    cdef int enter(self, Holding holding, Record record) except -1:
        """Enter a record that owns its address from now on. Fails only where the address is new and memory is short.

        An address fresh from the driver always wins: whoever is entered there has had its memory freed behind its back,
        and is lost.
        """
        return self._enter(holding, record)

    cdef int _enter(self, Holding holding, Record record) except -1:
        """The same, in a critical section of this resource. One inside another would let go of the outer one."""
        cdef Holding before = dict_item(self._holdings, holding.key)
        cdef Record stale
        cdef bint inherits = before is not None and not holding.context
        if inherits:
            holding.context, holding.context_id = before.context, before.context_id
        self._holdings[holding.key] = holding
        record.entry = holding
        if before is not None and not before.being_freed:
            stale = before.record()
            if stale is not None and stale is not record and stale.state() == STATE_OWNED:
                if stale.word != record.word and stale.apply(EVENT_LOSE) == VERDICT_GO:
                    record_ended(stale)
                    if inherits:
                        holding.context = holding.context_id = 0  # of the memory that was there
        return 0

    cdef int remember(self, Record record) except -1:
        """Enter a record that owns its address."""
        return self.enter(self.new_entry(record, record.pointer, record.size), record) if record.size else 0

    @cython.critical_section
    cdef Holding begin_free(self, Record record):
        """Mark the entry of a record before its free. None if it has none, or the address is another's by now.

        Nothing here needs memory, so that short memory does not stop a release.
        """
        cdef Holding holding = record.entry
        if holding is None or holding.serial != record.serial or dict_item(self._holdings, holding.key) is not holding:
            return None
        holding.being_freed = True
        return holding

    @cython.critical_section
    cdef int end_free(self, Holding holding, bint freed) except -1:
        """Remove an entry after its free, unless the address is another's by now; or go back to before."""
        if holding is None:
            return 0
        holding.being_freed = False
        if freed and dict_item(self._holdings, holding.key) is holding:
            del self._holdings[holding.key]
        return 0

    @cython.critical_section
    cdef Holding owned_holding(self, uintptr_t address):
        """Return the entry of an address that somebody has at this moment, or None."""
        return self._owned_holding(address)

    cdef Holding _owned_holding(self, uintptr_t address):
        cdef Holding holding = dict_item(self._holdings, <size_t>address)
        if holding is None or holding.being_freed or holding.holder() == HELD_BY_NOBODY:
            return None
        return holding

    cdef int own(self, Record buffer) except -1:
        cdef Holding holding = self.new_entry(buffer, buffer.pointer, buffer.size)
        cdef bint taken = False
        with cython.critical_section(self):  # of two that take one address at the same time, one does
            taken = buffer.size and self._owned_holding(buffer.pointer) is not None
            if not taken:
                self.begin_owning(buffer)
                if not buffer.size:
                    return 0
                holding.range = buffer.range
                try:
                    return self._enter(holding, buffer)
                except BaseException:
                    buffer.begin_nothing()  # a call that raises has taken nothing
                    raise
        raise OwnershipError(
            f"{<size_t>buffer.pointer:#x} of this {type(self).__name__} has an owner already; two would free it twice"
        )

    cdef int ensure_adoptable(self, Record source) except -1:
        cdef Holding holding = self.owned_holding(source.pointer) if source.size else None
        if holding is not None and holding.serial != source.serial:
            raise OwnershipError(f"{<size_t>source.pointer:#x} of this {type(self).__name__} has another owner")
        return 0

    cdef object prepare_entry(self, Record source, Record target):
        cdef Holding holding
        if not source.size:
            return None
        holding = self.new_entry(target, source.pointer, source.size)
        holding.range = source.range
        return holding

    cdef void enter_owner(self, Record source, Record target, MemoryResource before, object prepared) noexcept:
        cdef IndexedResource other
        cdef Holding left = source.entry
        if prepared is None:
            return
        if before is not self:
            other = before
            other.end_free(other.begin_free(source), True)
        if left is not None:
            (<Holding>prepared).context, (<Holding>prepared).context_id = left.context, left.context_id
        try:
            self.enter(prepared, target)
        except MemoryError:  # it cannot be found by its address, and frees itself all the same
            pass

    cdef bint is_freed(self, Record record, Holding holding) noexcept:
        """Whether a record that is being released has no entry because it was freed within this very release."""
        return holding is None and record.entry is not None

    cdef int note_free(self, Record record, Holding holding) noexcept:
        """Write down that a record which is being released was freed, so that it is not freed once more."""
        self.end_free(holding, True)
        if holding is None:
            record.entry = _FREED
        return 0

    def deallocate(
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder | None = None
    ) -> None:
        """Free an allocation by its address. Buffers do this by themselves; a subclass calls it from its own.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : Stream, optional
            What to wait for first. None waits for nothing.

        Raises
        ------
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        ValueError
            If the size is not that of the detached allocation.
        CUDAError
            If the driver refuses. Nothing is lost: the same call can be made again.

        Notes
        -----
        An ``Allocation`` that is freed this way counts as handed over. An address that this resource does not know is
        freed as told.

        Examples
        --------
        >>> allocation = pinned.allocate(4096).detach()
        >>> pinned.deallocate(allocation.handle, 4096)
        """
        cdef uintptr_t address = pointer_argument(ptr, "ptr")
        cdef size_t bytes_ = size_argument(size, "size")
        cdef StreamHandle* order = NULL
        cdef Record record
        cdef Holding holding
        if stream is not None:
            order = Stream_accept(stream)._hold()
        try:
            record = record_being_asked(self, address)
            if record is not None:
                note_outcome(self.free_record(record, order, waiting_of_asked(WAIT)), address)
                return
            if not address:
                return
            holding = dict_item(self._holdings, <size_t>address)
            if holding is not None and holding.being_freed:
                raise OwnershipError(f"another call is freeing the allocation at {<size_t>address:#x}")
            if holding is not None:
                self._free_detached(address, bytes_, holding, order)
            elif bytes_:
                ensure_driver()
                was_left = end_left_behind(address)
                try:
                    self.free_unknown(address, bytes_, order)
                except BaseException:
                    if was_left:
                        put_back_left(address)
                    raise
                note_outcome(CLOSE_DONE, address)
        except CUDAError as error:
            if is_hopeless(<cydriver.CUresult><int>error.result) or getattr(error, "lost_place", None) is not None:
                note_loss(address)
            raise
        finally:
            drop_stream(order)

    cdef int _free_detached(self, uintptr_t address, size_t size, Holding holding, StreamHandle* order) except -1:
        """Free what was detached: by an Allocation that still has it, or after it was handed over or dropped."""
        cdef Holder holder = holding.holder()
        cdef Allocation allocation = None
        cdef bint was_left
        if holder == HELD_BY_BUFFER:
            raise OwnershipError(
                f"an open buffer owns the allocation at {<size_t>address:#x}; close the buffer instead"
            )
        if holder == HELD_BY_LOANS:
            raise OwnershipError(f"loans hold the allocation at {<size_t>address:#x}; it goes with the last of them")
        if holder == HELD_BY_ALLOCATION:
            allocation = holding.record()
        if size != holding.size:
            raise ValueError(
                f"size must be {holding.size}, that of the allocation at {<size_t>address:#x}, got {size}"
            )
        self._lose_if_gone(holding)
        if allocation is not None:
            begin_hand_over(allocation, TAKER_DETACHED, "freed")
        with cython.critical_section(self):  # of two that free one address at the same time, one does
            if holding.being_freed or dict_item(self._holdings, holding.key) is not holding:
                raise OwnershipError(f"another call is freeing the allocation at {<size_t>address:#x}")
            holding.being_freed = True
        was_left = end_left_behind(address)
        try:
            note_outcome(self.free_holding(holding, order, waiting_of_asked(WAIT)), address)
        except BaseException:  # it can be tried again, or adopted
            if was_left:
                put_back_left(address)
            self.end_free(holding, False)
            if allocation is not None:
                abort_hand_over(allocation)
            raise
        self.end_free(holding, True)
        if allocation is not None:
            commit_hand_over(allocation, None, TAKER_DETACHED)
            allocation.forget()
        return 0

    cdef int _lose_if_gone(self, Holding holding) except -1:
        """Let an allocation be lost that went with its context, before the driver is asked for its address."""
        cdef Record record
        try:
            self.ensure_not_lost(holding)
        except CUDAError as error:
            if getattr(error, "lost_place", None) is not None:
                record = holding.record()
                if record is not None and record.apply(EVENT_LOSE) == VERDICT_GO:
                    record_ended(record)
                self.end_free(holding, True)
            elif waiting_of_asked(WAIT) >= NEVER_WAIT:
                return 0  # it could not be asked for, and nobody is left who could ask once more; the queue does
            raise
        return 0

    cdef int ensure_not_lost(self, Holding holding) except -1:
        """Raise what tells that memory went with its context."""
        return 0

    cdef Record part(self, Holding holding):
        """Make a record for what is freed by its address, as a part of a release. The queue takes the facts from it."""
        cdef Record record = Record.__new__(Record)
        record.pointer = <uintptr_t><size_t>holding.key
        record.size, record.serial = holding.size, holding.serial
        record.resource, record.owner = self, holding.keeper
        record.range, record.entry = holding.range, holding
        return record

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        """Free what a release asks for that is in progress; like a deleter, and quiet where it was freed before."""
        raise NotImplementedError

    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1:
        """Free what was detached, or hand it to the queue where the release may not wait that this is a part of."""
        raise NotImplementedError

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        raise NotImplementedError
