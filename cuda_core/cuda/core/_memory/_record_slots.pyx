# SPDX-License-Identifier: Apache-2.0
"""Where the open records are that no index knows yet: one array for the whole process.

An index by address costs a dictionary entry for each allocation, and most programs never need one. So an allocation
only takes a slot here, which is a store, and a resource that comes to need an index finds its records by looking
through the slots once.

Everything here is called with the GIL held; where there is none, a lock takes its place.
"""

cimport cython
from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc

cdef extern from *:
    """
    #define cuda_core_is_going(object) (Py_REFCNT((PyObject*)(object)) == 0)
    """
    bint _is_going "cuda_core_is_going"(void*) noexcept

# A free slot holds the number of the next free one, shifted left and with the lowest bit set, which no address has.
cdef void** _slots = NULL
cdef uint32_t _capacity = 0
cdef object _lock = object()
cdef uint32_t _free = 0  # slot 0 is never given out: it means none


cdef int _grow() except -1:
    global _slots, _capacity, _free
    cdef uint32_t wanted = 2 * _capacity if _capacity else 256
    cdef uint32_t slot
    cdef void** larger = NULL
    if wanted > _capacity:  # not beyond the numbers
        larger = <void**>realloc(_slots, wanted * sizeof(void*))
    if larger == NULL:
        raise MemoryError("no memory for the list of open buffers")
    _slots = larger
    for slot in range(wanted - 1, max(_capacity, <uint32_t>1) - 1, -1):
        _slots[slot] = <void*>((<size_t>_free << 1) | 1)
        _free = slot
    _capacity = wanted
    return 0


cdef uint32_t enter_slot(void* record) except 0:
    """Return the number of a slot that holds this record from now on."""
    global _free
    cdef uint32_t slot
    with cython.critical_section(_lock):
        if not _free:
            _grow()
        slot = _free
        _free = <uint32_t>(<size_t>_slots[slot] >> 1)
        _slots[slot] = record
    return slot


cdef void leave_slot(uint32_t slot) noexcept:
    """Empty a slot. The record in it may be about to go."""
    global _free
    if slot:
        with cython.critical_section(_lock):
            _slots[slot] = <void*>((<size_t>_free << 1) | 1)
            _free = slot


cdef uint32_t slot_count() noexcept:
    """Return the number behind the last slot; slots are counted from 1."""
    return _capacity


cdef void* record_in_slot(uint32_t slot) noexcept:
    """Return the record in a slot, NULL where there is none.

    A record that is going is none: the callbacks of its weak references run before it has left its slot, and whoever
    takes a reference to it then ends it twice.
    """
    if <size_t>_slots[slot] & 1 or _is_going(_slots[slot]):
        return NULL
    return _slots[slot]
