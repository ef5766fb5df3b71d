# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

# What a thing on the list has in itself. All zero: not on the list.
cdef struct Link:
    Link* next      # NULL while it is not on the list
    Link* before    # once it has left, what was noted in it

# Looks at one thing, with the list locked: it may count references, and call nothing.
ctypedef void (*Visitor)(Link* link, void* data) noexcept

cdef extern from *:
    """
    #define cuda_core_look(place) __atomic_load_n((void* const*)(place), __ATOMIC_ACQUIRE)
    """
    void* _look "cuda_core_look"(Link**) noexcept nogil

# Without the lock: whoever asks has not begun to enter it, or will look again.
cdef inline bint is_live(Link* link) noexcept nogil:
    return _look(&link.next) != NULL

cdef void enter_live(Link* link, uint64_t number) noexcept
cdef bint leave_live(Link* link, uint64_t number) noexcept
cdef long live_count() noexcept
cdef uint64_t note_of(Link* link) noexcept nogil
cdef void put_note(Link* link, uint64_t note) noexcept nogil
cdef void visit_live(Visitor visit, void* data) noexcept
