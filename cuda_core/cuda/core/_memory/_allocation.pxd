# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic

from cuda.core._fork cimport fork_generation
from cuda.core._memory._live_list cimport Link
from cuda.core._memory._ownership cimport STATE_BORROWED, STATE_OWNED, STATE_RELEASED, state_of
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle

cdef enum:
    CLOSE_DONE = 0
    CLOSE_QUEUED = 1
    CLOSE_LENT = 2
    CLOSE_IN_PROGRESS = 3
    CLOSE_NOTHING = 4

cdef enum:
    WAIT = 0            # wait for work in flight
    QUEUE_IF_BUSY = 1   # queue the release behind work in flight; refuse a capturing stream
    NEVER_WAIT = 2      # a collection: queue also what only might wait, also behind a capture; never try again
    LAST_LOAN = 3       # the same after a last loan: somebody has closed the buffer, so what is refused is tried again

# Returns an allocation in the order of a stream, or hands it to the queue where it may not wait. Called by the waist
# alone, with the record claimed. Gives CLOSE_DONE or CLOSE_QUEUED. A failure is raised, and promises that the same
# call can be made again.
ctypedef int (*Deleter)(Record record, StreamHandle* order, int waiting) except -1

# Beside the events of the table, what an observer is told of.
cdef enum:
    CHANGE_ALLOCATED = 0    # the record owns an allocation from now on
    CHANGE_BORROWED = 1
    CHANGE_TAKEN_BACK = 30  # as if it had not begun
    CHANGE_GONE = 31        # the record is gone, and what it should have returned is still there

# Told of each change of a word after it was made: the event, its verdict, and of a transfer the new owner's serial.
# Called in the middle of things, from any thread: it may only write down.
ctypedef void (*Observer)(Record record, int event, int verdict, uint64_t taker) noexcept nogil
# Told of each new record, which stands for nothing yet. It may do what making an object may do.
ctypedef void (*Witness)(uint64_t serial) noexcept

# What an allocation keeps alive and no user needs to see; it stands in the place of an owner.
cdef class Keeper:
    cdef object imported            # by what name the allocation came from another process; None for others
    cdef bint is_alone(self) noexcept
    cdef void let_out(self) noexcept

cdef enum:
    TOLD = 1
    # All that has failed is a close that a capture has refused before anything happened: a collection may try.
    REFUSED_UNTOUCHED = 2

cdef class Record:
    cdef atomic[uint64_t] own_word
    cdef atomic[uint64_t]* word     # own_word, or the word of the range
    cdef uint32_t epoch
    cdef atomic[uint32_t] claimant  # number of the thread that has claimed it; 0 for none
    cdef int16_t device_id
    cdef uint16_t generation        # of forks, when the record began
    cdef uint8_t left_to            # who took over what a range holds, once its epoch has passed this record's
    cdef uint8_t collected          # that its release was begun by a collection
    cdef uint8_t reported            # TOLD: that it was dropped and could not be returned; or REFUSED_UNTOUCHED
    cdef uint8_t kept_by_collector    # a collection must not free it
    cdef uintptr_t pointer
    cdef size_t size
    cdef uint64_t serial
    cdef Deleter deleter            # NULL for a borrowed allocation
    cdef StreamHandle* stream
    cdef Link link                  # of the list of what is live: of all that must still return something
    cdef object resource
    cdef object owner
    cdef object entry               # its own in the index of its resource by address; None where it has none
    cdef VirtualRange range

    cdef void begin(self, int state, VirtualRange range, uint32_t epoch) noexcept
    cdef void begin_nothing(self) noexcept
    cdef void end_unfinished(self) noexcept
    cdef bint is_lost(self) noexcept nogil
    cdef int state(self) noexcept nogil
    cdef int taker(self) noexcept nogil
    cdef int apply(self, int event) noexcept nogil
    cdef int commit_transfer(self, uint64_t taker) noexcept nogil
    cdef long open_loans(self) noexcept nogil
    cdef uint32_t claiming_thread(self) noexcept nogil
    cdef void set_claiming_thread(self, uint32_t thread) noexcept nogil
    cdef uint64_t taker_serial(self) noexcept nogil
    cdef void set_taker_serial(self, uint64_t serial) noexcept nogil
    cdef int ensure_usable(self) except -1
    cdef int ensure_not_paused(self, str what) except -1
    cdef object refusal_of_paused(self, str what)
    cdef object refusal(self, int verdict, str what)
    cdef void copy_recipe(self, Record source) noexcept
    cdef void forget(self) noexcept
    cdef object held_resource(self)
    cdef object held_owner(self)
    cdef StreamHandle* hold_stream(self) noexcept
    cdef StreamHandle* swap_stream(self, StreamHandle* order) noexcept
    cdef str describe(self)

# What Record.state() gives, compiled into whoever asks at every allocation and release.
cdef inline int state_of_record(Record record) noexcept nogil:
    if record.generation != fork_generation():
        return STATE_RELEASED
    return state_of(record.word.load(), record.epoch)

cdef inline bint is_open(Record record) noexcept nogil:
    """Whether there is something that the record must return, or borrows."""
    cdef int state = state_of_record(record)
    return state == STATE_OWNED or state == STATE_BORROWED

cdef void record_ended(Record record) noexcept
cdef bint end_left_behind(uintptr_t pointer) noexcept
cdef void put_back_left(uintptr_t pointer) noexcept
cdef void pass_place(Record record, Record heir) noexcept
cdef list open_records_of(object resource)
cdef PyObject* record_of(Link* link) noexcept nogil
cdef void observe(Observer observer, Witness witness) noexcept nogil
cdef uint64_t newest_serial() noexcept nogil
