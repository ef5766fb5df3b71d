# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

# What a thing on the list has in itself. All zero: not on the list.
cdef struct Link:
    Link* next      # NULL while it is not on the list
    Link* before

# Looks at one thing, with the list locked: it may count references, and call nothing.
ctypedef void (*Visitor)(Link* link, void* data) noexcept

cdef void enter_live(Link* link, uint64_t number) noexcept nogil
cdef bint leave_live(Link* link, uint64_t number) noexcept nogil
cdef long live_count() noexcept nogil
cdef void visit_live(Visitor visit, void* data) noexcept
