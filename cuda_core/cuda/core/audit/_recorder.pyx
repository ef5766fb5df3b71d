# SPDX-License-Identifier: Apache-2.0
"""The recorder: writes every change of an ownership word down as it happens, for Python to read later.

It is called in the middle of transitions, from any thread, the reaper of the queue included. So it takes a clock, a
mutex and a line of a table of fixed size, and runs no Python. Where the table is full, what comes is counted and lost,
loans first. Only the making of a new record is a safe moment for Python: there the stack is looked at, and a table
that is half full is read.
"""

import sys

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from cuda.core._shared_containers cimport dict_item
from cuda.core._memory._allocation cimport (
    CHANGE_ALLOCATED,
    Record,
    observe,
)
from cuda.core._memory._interrupts cimport pass_on
from cuda.core._memory._ownership cimport (
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_COMMIT_TRANSFER,
    EVENT_END_LOAN,
    EVENT_LEND,
    EVENT_USE,
    VERDICT_LAST_LOAN,
)
from cuda.core._memory._queue cimport QueueChange, observe_queue
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

__all__ = ["CAPACITY", "Stacks", "drain", "install", "is_installed", "monotonic", "uninstall"]

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil
    void _Py_INCREF "Py_INCREF"(PyObject*) noexcept nogil
    void _Py_DECREF "Py_DECREF"(PyObject*) noexcept

cdef extern from *:
    """
    #include <atomic>
    #include <time.h>

    static unsigned long long cuda_core_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
    }

    static unsigned cuda_core_installed = 0;    /* how often */

    /* Unlike what the system calls a thread by, no number is given out twice. */
    static unsigned cuda_core_audit_thread(int *is_new) {
        static std::atomic<unsigned> threads{0};
        static thread_local unsigned number = 0, seen = 0;
        *is_new = seen != cuda_core_installed;
        seen = cuda_core_installed;
        if (!number) number = ++threads;
        return number;
    }

    #define cuda_core_type_of(object) ((PyObject*)Py_TYPE((PyObject*)(object)))
    """
    uint64_t _now "cuda_core_now"() noexcept nogil
    unsigned _installed "cuda_core_installed"
    uint32_t _thread_number "cuda_core_audit_thread"(int* is_new) noexcept nogil
    PyObject* _type_of "cuda_core_type_of"(PyObject*) noexcept nogil

cdef enum:
    _CAPACITY = 32768
    _LOANS_UNTIL = 24576    # what is left is for what says who owns the memory

    _MADE = 50              # a new record, and where
    _THREAD = 51            # a thread that was not seen before: what Python calls it by

cdef struct Event:
    uint64_t time           # nanoseconds
    uint64_t serial
    uint64_t other          # serial number of a taker; number of a stack; of a thread what Python calls it by
    uint64_t pointer
    uint64_t size
    PyObject* kind          # a reference to the type of the resource, or NULL
    uint64_t resource       # its address, which tells two of a type apart
    uint32_t thread
    int16_t device
    uint8_t code
    uint8_t verdict
    uint8_t taker           # 0 for none
    uint8_t collected

cdef pthread_mutex_t _mutex
cdef Event* _table = NULL       # being written
cdef Event* _spare = NULL       # being read, or empty
cdef uint32_t _count = 0
cdef uint64_t _lost_loans = 0
cdef uint64_t _lost_others = 0
cdef bint _on = False
cdef atomic[int] _draining
cdef object _turn = object()    # of who reads and who replaces the next three
cdef object _learning = object()
cdef object _stacks = None
cdef object _when_half_full = None
cdef object _name_thread = None


cdef void _init_mutex() noexcept nogil:
    pthread_mutex_init(&_mutex, NULL)


cdef void _before_fork() noexcept nogil:
    pthread_mutex_lock(&_mutex)


cdef void _after_fork_in_parent() noexcept nogil:
    pthread_mutex_unlock(&_mutex)


cdef void _after_fork_in_child() noexcept nogil:
    """The recording is the parent's."""
    global _on, _count
    _init_mutex()
    _on = False
    _count = 0
    observe(NULL, NULL)


_init_mutex()
if pthread_atfork(_before_fork, _after_fork_in_parent, _after_fork_in_child) != 0:
    raise MemoryError("no memory for fork handlers")


cdef Event* _next_line(bint is_loan) noexcept nogil:
    """Return the line to write to, NULL where there is none. The mutex is held."""
    global _count, _lost_loans, _lost_others
    if not _on:
        return NULL
    if _count >= (<uint32_t>_LOANS_UNTIL if is_loan else <uint32_t>_CAPACITY):
        if is_loan:
            _lost_loans += 1
        else:
            _lost_others += 1
        return NULL
    _count += 1
    return &_table[_count - 1]


cdef void _write(uint8_t code, uint64_t serial, uint64_t other) noexcept nogil:
    """Write an event that is no change of a word. The mutex is held."""
    cdef int is_new = 0
    cdef uint32_t thread = _thread_number(&is_new)
    cdef Event* event
    if is_new:
        _write_thread(thread)
    event = _next_line(False)
    if event == NULL:
        return
    event.time, event.code, event.serial, event.other, event.thread = _now(), code, serial, other, thread
    event.pointer = event.size = event.resource = 0
    event.kind = NULL
    event.device = -1
    event.verdict = event.taker = event.collected = 0


cdef void _write_thread(uint32_t thread) noexcept nogil:
    cdef Event* event = _next_line(False)
    if event == NULL:
        return
    event.time, event.code, event.serial, event.thread = _now(), _THREAD, 0, thread
    event.other = PyThread_get_thread_ident()
    event.pointer = event.size = event.resource = 0
    event.kind = NULL
    event.device = -1
    event.verdict = event.taker = event.collected = 0


cdef void _change(Record record, int code, int verdict, uint64_t taker) noexcept nogil:
    """The observer of the ownership words."""
    cdef int is_new = 0
    cdef uint32_t thread
    cdef Event* event
    if code == EVENT_USE or verdict > VERDICT_LAST_LOAN:
        return  # allowed or refused: nothing has changed
    pthread_mutex_lock(&_mutex)
    thread = _thread_number(&is_new)
    if is_new:
        _write_thread(thread)
    event = _next_line(code == EVENT_LEND or (code == EVENT_END_LOAN and verdict != VERDICT_LAST_LOAN))
    if event != NULL:
        event.time, event.serial, event.other = _now(), record.serial, taker
        event.pointer, event.size, event.device = record.pointer, record.size, record.device_id
        event.thread, event.code, event.verdict = thread, code, verdict
        event.taker = record.left_to if code == EVENT_COMMIT_TRANSFER else 0
        event.collected = record.collected if code == EVENT_BEGIN_AUTOMATIC_RELEASE else 0
        event.kind = NULL
        event.resource = 0
        if code == CHANGE_ALLOCATED:
            event.resource = <uint64_t><PyObject*>record.resource
            event.kind = _type_of(<PyObject*>record.resource)
            _Py_INCREF(event.kind)
    pthread_mutex_unlock(&_mutex)


cdef void _queue_change(uint64_t serial, QueueChange code) noexcept nogil:
    """The observer of the queue."""
    pthread_mutex_lock(&_mutex)
    _write(<uint8_t>code, serial, 0)
    pthread_mutex_unlock(&_mutex)


cdef void _made(uint64_t serial) noexcept:
    """The witness of new records: note where, and have the table read when it fills up."""
    cdef uint64_t stack = 0
    cdef int is_new = 0
    try:
        with cython.critical_section(_turn):  # another thread may end the recording
            name_thread, stacks, when_half_full = _name_thread, _stacks, _when_half_full
        if name_thread is not None:  # it may have ended when the table is read
            name_thread(_thread_number(&is_new), PyThread_get_thread_ident())
        if stacks is not None:
            stack = (<Stacks>stacks).number_here()
        if _count > <uint32_t>_CAPACITY // 2 and not _draining.load() and when_half_full is not None:
            when_half_full()
    except BaseException as error:  # short of memory, or interrupted: the record is made all the same
        pass_on(error)
    pthread_mutex_lock(&_mutex)
    _write(_MADE, serial, stack)
    pthread_mutex_unlock(&_mutex)


CAPACITY = _CAPACITY


def monotonic() -> int:
    """Return the time that events are written with, in nanoseconds."""
    return _now()


def is_installed() -> bool:
    return _on


def install(
    stacks: Stacks, when_half_full: Callable[[], object], name_thread: Callable[[int, int], object]
) -> None:
    """Begin to record.

    Parameters
    ----------
    stacks : Stacks
        Keeps where things are made.
    when_half_full : callable
        Called, at a moment at which it may do anything, to read the table.
    name_thread : callable
        Called at such moments with the number of the thread and what Python calls it by.

    Raises
    ------
    MemoryError
        If there is none for the tables.
    """
    global _on, _stacks, _when_half_full, _name_thread, _table, _spare, _count, _lost_loans, _lost_others, _installed
    if _table == NULL:  # never given back: a thread may be about to write
        _table = <Event*>calloc(_CAPACITY, sizeof(Event))
        _spare = <Event*>calloc(_CAPACITY, sizeof(Event))
        if _table == NULL or _spare == NULL:
            free(_table)
            free(_spare)
            _table = _spare = NULL
            raise MemoryError("no memory for the audit's tables")
    with cython.critical_section(_turn):
        _stacks, _when_half_full, _name_thread = stacks, when_half_full, name_thread
    pthread_mutex_lock(&_mutex)
    _count = 0
    _lost_loans = _lost_others = 0
    _installed += 1  # every thread is told of anew
    _on = True
    pthread_mutex_unlock(&_mutex)
    observe_queue(_queue_change)
    observe(_change, _made)


def uninstall() -> None:
    """Stop recording. What was written can still be read."""
    global _on, _stacks, _when_half_full, _name_thread
    observe(NULL, NULL)
    observe_queue(NULL)
    pthread_mutex_lock(&_mutex)
    _on = False
    pthread_mutex_unlock(&_mutex)
    with cython.critical_section(_turn):
        _stacks = _when_half_full = _name_thread = None


def drain() -> tuple[list[tuple[Any, ...]], int, int]:
    """Read the table and empty it.

    Returns
    -------
    events : list of tuple
        Of each the time, code, verdict, serial number, other number, address, size, device, address and type of the
        resource (0 and None where it is not told), thread, taker, and whether a collection has begun it.
    lost_loans, lost_others : int
        How many events there was no room for since the last call.
    """
    global _table, _spare, _count, _lost_loans, _lost_others
    cdef uint32_t count, index
    cdef Event* event
    cdef list events = []
    cdef uint64_t loans, others
    if _draining.exchange(1):  # another thread does, or this is Python code that runs within
        return events, 0, 0
    try:
        pthread_mutex_lock(&_mutex)
        _table, _spare = _spare, _table
        count, _count = _count, 0
        loans, others = _lost_loans, _lost_others
        _lost_loans = _lost_others = 0
        pthread_mutex_unlock(&_mutex)
        for index in range(count):
            event = &_spare[index]
            events.append((
                event.time,
                event.code,
                event.verdict,
                event.serial,
                event.other,
                event.pointer,
                event.size,
                event.device,
                event.resource,
                None if event.kind == NULL else <object>event.kind,
                event.thread,
                event.taker,
                bool(event.collected),
            ))
            if event.kind != NULL:
                _Py_DECREF(event.kind)
    finally:
        _draining.store(0)
    return events, loans, others


cdef class Stacks:
    """Where things were made: every stack that was seen, by number.

    Parameters
    ----------
    depth : int
        How many frames are kept of each, the innermost ones.
    limit : int
        How many different stacks are kept; what comes beyond has number 0.

    Notes
    -----
    A stack that was seen before costs a look at the frames and no text. Number 0 has no frames.
    """

    cdef readonly int depth
    cdef readonly long limit
    # By number: tuples of file, line and function, the innermost first.
    cdef readonly list frames  # type: list[tuple[tuple[str, int, str], ...]]
    cdef dict _numbers
    cdef dict _codes                # by id, so that no other code object can have the id of one that was seen

    def __init__(self, depth: int, limit: int = 65536) -> None:
        self.depth, self.limit = depth, limit
        self.frames = [()]
        self._numbers = {}
        self._codes = {}

    cdef uint64_t number_here(self) except? 0:
        cdef list key = []
        cdef object frame
        cdef int left = self.depth
        try:
            frame = sys._getframe(0)
        except ValueError:  # a thread of C code
            return 0
        while frame is not None and left:
            key.append(id(frame.f_code))
            key.append(frame.f_lasti)
            frame = frame.f_back
            left -= 1
        known = tuple(key)
        number = dict_item(self._numbers, known)
        if number is None:
            number = self._learn(known)
        return number

    cdef object _learn(self, tuple known):
        cdef list frames = []
        cdef object frame
        frame = sys._getframe(0)
        while frame is not None and len(frames) < self.depth:
            code = frame.f_code
            self._codes[id(code)] = code
            frames.append((code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)))
            frame = frame.f_back
        with cython.critical_section(_learning):  # another thread may learn the same, or something else
            number = dict_item(self._numbers, known)
            if number is None and len(self.frames) < self.limit:
                number = len(self.frames)
                self.frames.append(tuple(frames))
                self._numbers[known] = number
        return 0 if number is None else number
