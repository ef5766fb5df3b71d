# SPDX-License-Identifier: Apache-2.0
"""The record of an allocation: the recipe for its free, and the way to its ownership word.

The record is the C base class of ``Buffer``. It keeps everything that a free needs (address, size, resource, stream,
range), so that a buffer can be returned after the program has dropped all of those.

While a record must still return something it is on the list of what is live. Every change of its word passes here, so
this is also where an observer hears of it.
"""

import types
import weakref

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic, memory_order_relaxed, memory_order_release
from libcpp.unordered_set cimport unordered_set
from posix.unistd cimport getpid

from cuda.core._driver cimport is_finalizing
from cuda.core._fork cimport fork_generation
from cuda.core._memory._chains cimport keep, let_go
from cuda.core._memory._live_list cimport (
    Link,
    enter_live,
    is_live,
    leave_live,
    live_count,
    note_of,
    put_note,
    visit_live,
)
from cuda.core._memory._ownership cimport (
    CLAIM_MASK,
    CLAIMED_TO_RELEASE,
    EPOCH_MASK,
    EVENT_COMMIT_TRANSFER,
    EVENT_USE,
    FAILED_BIT,
    LOANS_MASK,
    LOST_BIT,
    STATE_OWNED,
    STATE_RELEASED,
    STATE_TRANSFERRED,
    TAKER_MASK,
    VERDICT_CLAIMED,
    VERDICT_CLOSED,
    VERDICT_GO,
    VERDICT_HAS_LOANS,
    VERDICT_NOT_OWNER,
    commit_shared_transfer,
    fresh,
    state_of,
    step,
)
from cuda.core._memory._try_reference cimport allow_try, drop_reference, try_reference
from cuda.core._memory._virtual_parts cimport live_parts
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport drop_stream, retain_stream

from cuda.core._error_text import shown
from cuda.core._errors import OwnershipError
from cuda.core._memory import _left_behind
from cuda.core._memory._ownership import Ownership, TransferredTo

cdef extern from *:
    """
    #include <atomic>
    #include <cstdint>

    /* Records are made with the GIL, where there is one: nobody else counts at that moment. */
    static inline uint64_t cuda_core_count_record(std::atomic<uint64_t> &number) {
    #if defined(Py_GIL_DISABLED)
        return number.fetch_add(1, std::memory_order_relaxed) + 1;
    #else
        uint64_t next = number.load(std::memory_order_relaxed) + 1;
        number.store(next, std::memory_order_relaxed);
        return next;
    #endif
    }
    """
    uint64_t _count_record "cuda_core_count_record"(atomic[uint64_t]&) noexcept

cdef atomic[uint64_t] _serial
# What is told of a change; NULL while nobody listens. An observer, once set, may be called for a moment after it was
# taken back, by a thread that has looked before.
cdef Observer _observer = NULL
cdef Witness _witness = NULL


cdef void observe(Observer observer, Witness witness) noexcept nogil:
    """Have an observer told of every change of a word, and a witness of every new record. NULL: nobody."""
    global _observer, _witness
    _observer = observer
    _witness = witness


# Where something is left that nobody can return any more; nearly always empty. A release looks here and must need no
# memory, so that it is not the dictionary of the entries.
cdef unordered_set[uintptr_t] _left_addresses
cdef atomic[size_t] _left_count  # of them, for a look without the lock
cdef dict _entries = _left_behind.entries
cdef object _left_lock = object()
cdef tuple _FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


cdef void _leave_behind(Record record) noexcept:
    """Note that a record goes whose memory stays allocated. Where memory is short it is not in reports.

    No instruction of Python runs here: it could be where an interrupt is raised, and this is where none can pass.
    """
    cdef uint64_t bits = record.word.load()
    cdef int state = record.state()
    cdef object resource = record.resource
    cdef size_t mapped = record.size
    cdef bint paused = False
    if is_finalizing() or not record.size or (state != STATE_OWNED and state != STATE_TRANSFERRED):
        return
    if state == STATE_TRANSFERRED and not bits & (LOANS_MASK | CLAIM_MASK | FAILED_BIT):
        return
    if record.range is not None and record.word != &record.own_word:
        paused = record.range.paused.load()
        mapped = 0 if paused else record.range.mapped.load()
    kept = record.collected and not bits & FAILED_BIT
    try:
        if isinstance(resource, FreeFunction):
            # A function in one cycle with what it frees may be gone from here: the object itself then stands for it.
            function = getattr(resource, "function", None)
            freed_by = resource if function is None else function
            name = f"function {function.__qualname__ if type(function) in _FUNCTIONS else type(freed_by).__name__}"
            reference = None
        else:
            freed_by, name = resource, type(resource).__name__
            reference = weakref.ref(resource)
        facts = (
            record.serial,
            <size_t>record.pointer,
            record.size,
            mapped,
            paused,
            record.device_id,
            "KEPT" if kept else "DROPPED",
            bool(bits & FAILED_BIT),
            reference,
            <size_t><PyObject*>freed_by,
            name,
            getpid(),
        )
        with cython.critical_section(_left_lock):
            others = _entries.get(<size_t>record.pointer, ()) if _left_addresses.count(record.pointer) else ()
            _entries[<size_t>record.pointer] = (*others, facts)
            _left_addresses.insert(record.pointer)
            _left_count.store(_left_addresses.size())
            if <size_t>len(_entries) > 2 * _left_addresses.size() + 64:
                for address in tuple(_entries):  # those that have ended
                    if not _left_addresses.count(<uintptr_t><size_t>address):
                        del _entries[address]
    except MemoryError:
        pass


cdef bint end_left_behind(uintptr_t pointer) noexcept:
    """Forget what was left at an address, which was freed or has an owner again. Needs no memory. True if anything."""
    cdef bint was_there = False
    if _left_count.load():
        with cython.critical_section(_left_lock):
            was_there = _left_addresses.erase(pointer) != 0
            _left_count.store(_left_addresses.size())
    return was_there


cdef void put_back_left(uintptr_t pointer) noexcept:
    """Take that back: it was not freed after all."""
    with cython.critical_section(_left_lock):
        if <size_t>pointer in _entries:
            _left_addresses.insert(pointer)
            _left_count.store(_left_addresses.size())


def is_left(size_t address) -> bool:
    """Whether what was left at an address is still there."""
    with cython.critical_section(_left_lock):
        return _left_addresses.count(<uintptr_t>address) != 0


cdef uint64_t newest_serial() noexcept nogil:
    return _serial.load()


def live_memory() -> dict[str, int]:
    """Return how many records must still return something, and what the ranges among them hold."""
    counts = live_parts()
    counts["buffers"] = live_count()
    return counts


cdef void record_ended(Record record) noexcept:
    """Take a record off the list of what is live: what it owned was returned, lost, or passed to another record.

    It comes before the record forgets its resource, so that whoever looks through the list finds those alive.
    """
    leave_live(&record.link, record.serial)


cdef void pass_place(Record record, Record heir) noexcept:
    """Put the heir of a record, which has its serial number, on the list in its place."""
    if leave_live(&record.link, record.serial):
        enter_live(&heir.link, heir.serial)


cdef struct _Wanted:
    PyObject* resource
    PyObject** records
    long room
    long found


cdef void _note_record(Link* link, void* data) noexcept:
    cdef _Wanted* wanted = <_Wanted*>data
    cdef PyObject* record = record_of(link)
    if <PyObject*>(<Record>record).resource != wanted.resource:
        return
    if wanted.found >= wanted.room:
        wanted.found += 1
    elif try_reference(record):
        # Not a record that is going: the callbacks of its weak references run before it has left the list, and other
        # threads get here before it does. Whoever takes a reference to it then ends it twice.
        wanted.records[wanted.found] = record
        wanted.found += 1


cdef list open_records_of(object resource):
    """Return the records that must still return something to a resource."""
    cdef _Wanted wanted
    cdef list records = []
    cdef long index
    wanted.resource, wanted.room, wanted.found = <PyObject*>resource, 0, 1
    while wanted.found > wanted.room:  # what is live may have become more while there was memory to be found for it
        wanted.room = live_count() + 64
        wanted.found = 0
        wanted.records = <PyObject**>malloc(wanted.room * sizeof(PyObject*))
        if wanted.records == NULL:
            raise MemoryError("no memory for a list of open buffers")
        visit_live(_note_record, &wanted)
        try:
            for index in range(min(wanted.found, wanted.room)):
                records.append(<object>wanted.records[index])
        finally:
            for index in range(min(wanted.found, wanted.room)):
                drop_reference(wanted.records[index])
            free(wanted.records)
        if wanted.found > wanted.room:
            records.clear()
    return records


class FreeFunction:
    """What stands in a record in the place of a resource where memory is freed by a function."""

    __slots__ = ("function",)
    function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function


cdef class Keeper:
    """Base of what an allocation keeps alive without telling, such as the pool that it was taken from."""

    cdef bint is_alone(self) noexcept:
        """Whether a free by foreign code would take the memory from nobody else."""
        return True

    cdef void let_out(self) noexcept:
        """Memory of this stays allocated, and nobody will say when it is returned."""


# No gc_clear: the word of a range lies inside the range object, and both must outlive the last look at the word,
# which __dealloc__ takes.
@cython.no_gc_clear
cdef class Record:
    """The C side of a buffer. Made by resources, never by users."""

    def __cinit__(self):
        self.word = &self.own_word
        self.own_word.store(fresh(STATE_RELEASED, 0), memory_order_relaxed)  # nobody else knows of it yet
        self.device_id = -1
        self.generation = fork_generation()
        self.serial = _count_record(_serial)
        allow_try(<PyObject*>self)
        if _witness != NULL:
            _witness(self.serial)

    def __dealloc__(self):
        cdef StreamHandle* stream
        if is_open(self):
            self.end_unfinished()
        if self.owner is not None and isinstance(self.owner, Keeper):
            if state_of_record(self) in (STATE_OWNED, STATE_TRANSFERRED):  # the latter to loans, whose end has failed
                (<Keeper>self.owner).let_out()  # what stays allocated now, nobody returns
        # Still live: its release failed, or the interpreter is going.
        if is_live(&self.link) and leave_live(&self.link, self.serial):
            if _observer != NULL:
                _observer(self, CHANGE_GONE, VERDICT_GO, 0)
            _leave_behind(self)
        stream = self.stream
        self.stream = NULL
        drop_stream(stream)

    cdef void end_unfinished(self) noexcept:
        """Called at the end of an object that is still open: no finalizer has run. Fields of subclasses are gone."""

    cdef void begin(self, int state, VirtualRange range, uint32_t epoch) noexcept:
        """Enter the first state. With a range, the range's word counts, for the holder of this epoch."""
        if range is None:
            self.own_word.store(fresh(state, 0), memory_order_release)
        else:
            self.range = range
            self.word = &range.word
            self.epoch = epoch
        if state == STATE_OWNED:
            enter_live(&self.link, self.serial)
            end_left_behind(self.pointer)
        if _observer != NULL:
            _observer(self, CHANGE_ALLOCATED if state == STATE_OWNED else CHANGE_BORROWED, VERDICT_GO, 0)

    cdef void begin_nothing(self) noexcept:
        """Take the beginning back: what it stood for is again whose it was."""
        record_ended(self)
        if _observer != NULL:
            _observer(self, CHANGE_TAKEN_BACK, VERDICT_GO, 0)
        self.word = &self.own_word
        self.own_word.store(fresh(STATE_RELEASED, 0))
        self.epoch = 0
        self.range = None

    cdef bint is_lost(self) noexcept nogil:
        """Whether the allocation is out of reach for good: its context is gone, or this is a forked child."""
        cdef uint64_t bits = self.word.load()
        if self.generation != fork_generation():
            return True
        return <uint32_t>(bits >> 40) == self.epoch and bits & LOST_BIT != 0

    cdef int state(self) noexcept nogil:
        return state_of_record(self)

    cdef int taker(self) noexcept nogil:
        """Return who took the allocation over, 0 unless it is TRANSFERRED."""
        cdef uint64_t bits = self.word.load()
        if state_of(bits, self.epoch) != STATE_TRANSFERRED:
            return 0
        if self.generation != fork_generation():
            return 0
        if <uint32_t>(bits >> 40) != self.epoch:
            return self.left_to
        return (bits & TAKER_MASK) >> 6

    cdef int apply(self, int event) noexcept nogil:
        if self.generation != fork_generation():
            # The child of a fork is alone with its copy of the word, which may have been in any situation.
            self.word.store((self.word.load() & EPOCH_MASK) | LOST_BIT | STATE_RELEASED)
        cdef int verdict = step(self.word, self.epoch, event)
        if _observer != NULL:
            _observer(self, event, verdict, 0)
        return verdict

    cdef int commit_transfer(self, uint64_t taker) noexcept nogil:
        """Commit a transfer that was claimed, to the record with this serial number; 0 for foreign code."""
        cdef int verdict
        if self.word == &self.own_word:
            verdict = step(self.word, self.epoch, EVENT_COMMIT_TRANSFER)
        else:
            verdict = commit_shared_transfer(self.word, self.epoch)
        if _observer != NULL:
            _observer(self, EVENT_COMMIT_TRANSFER, verdict, taker)
        return verdict

    cdef long open_loans(self) noexcept nogil:
        return (self.word.load() >> 16) & 0xFFFFFF

    cdef uint32_t claiming_thread(self) noexcept nogil:
        return self.claimant.load() if self.word == &self.own_word else (<VirtualRange>self.range).claimant.load()

    cdef void set_claiming_thread(self, uint32_t thread) noexcept nogil:
        if self.word == &self.own_word:
            self.claimant.store(thread, memory_order_release)
        else:
            (<VirtualRange>self.range).claimant.store(thread, memory_order_release)

    cdef uint64_t taker_serial(self) noexcept nogil:
        """Return the serial number of the record that took the allocation over; 0 where there is none."""
        return note_of(&self.link)

    cdef void set_taker_serial(self, uint64_t serial) noexcept nogil:
        """Write down who took it over. The record has left the list, and never comes back to it."""
        put_note(&self.link, serial)

    cdef int ensure_usable(self) except -1:
        """Raise OwnershipError unless the buffer is open and nobody is releasing or moving it."""
        cdef int verdict = self.apply(EVENT_USE)
        if verdict != VERDICT_GO:
            raise self.refusal(verdict, "used")
        return 0

    cdef int ensure_not_paused(self, str what) except -1:
        """Raise OwnershipError if the memory behind the addresses is away. To be asked with a claim, or with a loan."""
        if self.range is not None and self.range.paused.load():
            raise self.refusal_of_paused(what)
        return 0

    cdef object refusal_of_paused(self, str what):
        return OwnershipError(
            f"the buffer is paused and cannot be {what}: its memory is away until it is resumed ({self.describe()})"
        )

    cdef object refusal(self, int verdict, str what):
        """Make the error for an event that the machine refused."""
        if verdict == VERDICT_CLOSED:
            if self.generation != fork_generation():
                return OwnershipError(
                    f"Buffer has been closed: it is RELEASED, lost in a forked process ({self.describe()})"
                )
            if self.state() == STATE_RELEASED:
                lost = ", lost" if self.is_lost() else ""
                return OwnershipError(f"Buffer has been closed: it is RELEASED{lost} ({self.describe()})")
            taker = TransferredTo(self.taker()).name
            went = f" into buffer #{self.taker_serial()}" if self.taker_serial() else ""
            return OwnershipError(f"Buffer has been closed: it is TRANSFERRED, {taker}{went} ({self.describe()})")
        if verdict == VERDICT_NOT_OWNER:
            return OwnershipError(f"a BORROWED buffer cannot be {what}: somebody else owns it ({self.describe()})")
        if verdict == VERDICT_HAS_LOANS:
            return BufferError(f"the buffer cannot be {what} while loans on it are open ({self.describe()})")
        if verdict == VERDICT_CLAIMED:
            doing = "released" if (self.word.load() & CLAIM_MASK) == CLAIMED_TO_RELEASE else "moved"
            return OwnershipError(
                f"the buffer cannot be {what} while another call is having it {doing} ({self.describe()})"
            )
        return OwnershipError(f"the buffer cannot be {what} (verdict {verdict}; {self.describe()})")

    cdef void copy_recipe(self, Record source) noexcept:
        """Take over everything that the free needs, except the word and the range.

        A record that was made for another resource keeps that one: its resource is said before it begins, and changes
        only when it has ended, since whoever looks through what is live takes a reference to it.
        """
        self.pointer = source.pointer
        self.size = source.size
        self.device_id = source.device_id
        self.kept_by_collector = source.kept_by_collector
        self.stream = source.hold_stream()
        self.owner = source.owner
        if self.resource is None:
            self.resource = source.resource
            self.deleter = source.deleter

    cdef void forget(self) noexcept:
        """Drop what the free needed, once it is done or passed on."""
        cdef StreamHandle* stream
        cdef PyObject* owner = NULL
        with cython.critical_section(self):
            stream = self.stream
            if self.owner is not None:
                owner = keep(self.owner)
            self.stream = NULL
            self.resource = None
            self.owner = None
            self.entry = None
        drop_stream(stream)
        if owner != NULL:
            let_go(owner)  # a slice of a slice of a slice

    cdef object held_resource(self):
        """Return the resource, or None once the record is emptied: a thread that closes it may do that at any moment.

        Whoever has claimed the record may look at the field itself.
        """
        with cython.critical_section(self):
            return self.resource

    cdef object held_owner(self):
        with cython.critical_section(self):
            return self.owner

    cdef StreamHandle* hold_stream(self) noexcept:
        """Return the ordering stream with a reference of its own: another thread may replace the record's."""
        with cython.critical_section(self):
            return retain_stream(self.stream)

    cdef StreamHandle* swap_stream(self, StreamHandle* order) noexcept:
        """Put another ordering stream in place, whose reference passes to the record; return the old one.

        While the record is claimed for a release its stream stays, as the deleter uses it: the other one is returned.
        """
        cdef StreamHandle* old = order
        with cython.critical_section(self):
            if (self.word.load() & CLAIM_MASK) != CLAIMED_TO_RELEASE:
                old, self.stream = self.stream, order
        return old

    cdef str describe(self):
        resource = self.held_resource()
        of = ""
        if isinstance(resource, FreeFunction):
            of = f" freed by {shown(getattr(resource, 'function', 'a function'))}"
        elif resource is not None:
            of = f" of {type(resource).__name__}"
        return f"buffer #{self.serial}, {self.size} bytes at {<size_t>self.pointer:#x}{of}"

    @property
    def ownership(self) -> Ownership:
        """Ownership: who must return the allocation. Readable in every state, from every thread."""
        return _STATES[self.state()]

    @property
    def transferred_to(self) -> TransferredTo | None:
        """TransferredTo or None: who took the allocation over, for a TRANSFERRED buffer."""
        cdef int taker = self.taker()
        return TransferredTo(taker) if taker else None

    @property
    def loans(self) -> int:
        """int: how many exports of this memory are open."""
        return 0 if self.generation != fork_generation() else self.open_loans()


_STATES = tuple(Ownership(number) for number in range(4))


cdef Py_ssize_t _find_link() except -1:
    cdef Record record = Record.__new__(Record)
    return <char*>&record.link - <char*><PyObject*>record


cdef Py_ssize_t _LINK_OFFSET = _find_link()


cdef PyObject* record_of(Link* link) noexcept nogil:
    """Return the record that a link lies in."""
    return <PyObject*>(<char*>link - _LINK_OFFSET)
