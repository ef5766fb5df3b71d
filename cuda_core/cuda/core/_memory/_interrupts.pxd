# SPDX-License-Identifier: Apache-2.0

cdef bint is_interrupt(object error) noexcept
cdef void pass_on(object error) noexcept
cdef void raise_on_main_thread(object error) noexcept
cdef int raise_what_has_come() except -1
cdef bint has_come() noexcept
