# SPDX-License-Identifier: Apache-2.0

# From the question whether a stream is being captured to the end of the call that uses it: no capture begins or ends.
# Nothing between the two may wait for work, take the GIL, or hold captures off again.
cdef void hold_captures_off() noexcept nogil
cdef void let_captures_begin() noexcept nogil

# Around what begins or ends a capture, and around what may take a stream into one. Without the GIL.
cdef void enter_capture() noexcept nogil
cdef void leave_capture(bint begun) noexcept nogil
cdef void capture_has_ended() noexcept nogil

cdef bint captures_go_on() noexcept nogil
cdef long captures_begun() noexcept nogil
