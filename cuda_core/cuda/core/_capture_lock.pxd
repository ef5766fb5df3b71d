# SPDX-License-Identifier: Apache-2.0

# From the question whether a stream is being captured to the end of the call that uses it: no capture begins or ends,
# and while one goes on no other thread is between the two. Nothing there may wait for work, take the GIL or the mutex
# of a graph, or hold captures off again.
cdef void hold_captures_off() noexcept nogil
cdef void let_captures_begin() noexcept nogil

# Around a launch, by the same rules.
cdef void hold_streams_off() noexcept nogil
cdef void let_streams_be_used() noexcept nogil

# Around what begins or ends a capture. Without the GIL.
cdef void enter_capture() noexcept nogil
cdef void leave_capture(bint begun) noexcept nogil
cdef void capture_has_ended() noexcept nogil

cpdef long captures_begun() noexcept nogil
