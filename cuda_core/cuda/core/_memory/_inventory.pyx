# SPDX-License-Identifier: Apache-2.0
"""What is live at one moment, as plain facts: a look through the list that every record is on while it owns something.

Under the list's locks only numbers are copied and references counted. What has to be asked of Python (the name of a
resource, its device) is asked afterwards, of resources that are alive because the copy holds them.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from cuda.core._fork cimport fork_generation
from cuda.core._memory._allocation cimport Record, newest_serial, record_of
from cuda.core._memory._live_list cimport Link, live_count, visit_live
from cuda.core._memory._ownership cimport (
    CLAIM_MASK,
    FAILED_BIT,
    LOANS_MASK,
    STATE_OWNED,
    STATE_TRANSFERRED,
    TAKER_LOANS,
    TAKER_MASK,
    state_of,
)

__all__ = ["live_allocations", "newest"]

cdef extern from "Python.h":
    void _Py_INCREF "Py_INCREF"(PyObject*) noexcept
    void _Py_DECREF "Py_DECREF"(PyObject*) noexcept

cdef extern from *:
    """
    #define cuda_core_type(object) ((PyObject*)Py_TYPE(object))
    """
    PyObject* _type_of "cuda_core_type"(PyObject*) noexcept

cdef struct Facts:
    uint64_t serial
    uint64_t bits
    uint32_t epoch
    uintptr_t pointer
    size_t size
    size_t mapped
    int paused
    int16_t device_id
    PyObject* resource
    PyObject* kind

cdef struct Copies:
    Facts* facts
    long room
    long found
    uint16_t generation


cdef void _copy(Link* link, void* data) noexcept:
    cdef Copies* copies = <Copies*>data
    cdef PyObject* record = record_of(link)
    cdef Facts* facts
    if (<Record>record).generation != copies.generation:
        return  # the parent's
    if copies.found < copies.room:
        facts = &copies.facts[copies.found]
        facts.serial = (<Record>record).serial
        facts.bits = (<Record>record).word.load()
        facts.epoch = (<Record>record).epoch
        facts.pointer = (<Record>record).pointer
        facts.size = facts.mapped = (<Record>record).size
        facts.paused = 0
        if <void*>(<Record>record).range != NULL and (<Record>record).word != &(<Record>record).own_word:
            facts.paused = (<Record>record).range.paused.load()
            facts.mapped = 0 if facts.paused else (<Record>record).range.mapped.load()
        facts.device_id = (<Record>record).device_id
        facts.resource = <PyObject*>(<Record>record).resource
        facts.kind = _type_of(record)
        _Py_INCREF(facts.resource)
        _Py_INCREF(facts.kind)
    copies.found += 1


cdef void _let_go(Copies* copies) noexcept:
    cdef long index
    for index in range(min(copies.found, copies.room)):
        _Py_DECREF(copies.facts[index].resource)
        _Py_DECREF(copies.facts[index].kind)
    free(copies.facts)


cdef str _standing(Facts* facts):
    """Return the state as far as it says who has the memory; None where a transfer has just passed it on."""
    cdef int state = state_of(facts.bits, facts.epoch)
    if state == STATE_OWNED:
        return "OWNED"
    if state == STATE_TRANSFERRED and (facts.bits & TAKER_MASK) >> 6 == TAKER_LOANS:
        return "LENT"
    return None


def live_allocations() -> list[tuple[Any, ...]]:
    """Return what must still be returned, the oldest first.

    Returns
    -------
    list of tuple
        Of each allocation its serial number, address, size in bytes, device ordinal (-1 where the record has none),
        resource, the type of what holds it, ``"OWNED"`` or ``"LENT"``, the number of loans, whether a call is releasing
        or moving it, whether a release has failed, how many bytes are mapped, and whether it is paused.
    """
    cdef Copies copies
    cdef Facts* facts
    cdef long index
    cdef list found = []
    copies.room, copies.found, copies.generation = 0, 1, fork_generation()
    copies.facts = NULL
    while copies.found > copies.room:  # what is live may have become more while there was memory to be found for it
        if copies.facts != NULL:
            _let_go(&copies)
        copies.room = live_count() + 64
        copies.found = 0
        copies.facts = <Facts*>malloc(copies.room * sizeof(Facts))
        if copies.facts == NULL:
            raise MemoryError("no memory for a list of what is live")
        visit_live(_copy, &copies)
    try:
        for index in range(copies.found):
            facts = &copies.facts[index]
            standing = _standing(facts)
            if standing is None:
                continue
            found.append((
                facts.serial,
                <size_t>facts.pointer,
                facts.size,
                facts.device_id,
                <object>facts.resource,
                <object>facts.kind,
                standing,
                (facts.bits & LOANS_MASK) >> 16,
                bool(facts.bits & CLAIM_MASK),
                bool(facts.bits & FAILED_BIT),
                facts.mapped,
                bool(facts.paused),
            ))
    finally:
        _let_go(&copies)
    found.sort(key=lambda facts: facts[0])
    return found


def newest() -> int:
    """Return the serial number that was given out last."""
    return newest_serial()
