# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t

cdef class Event:
    cdef cydriver.CUevent _event
    cdef cydriver.CUcontext _context
    cdef unsigned long long _context_id
    cdef uint16_t _generation         # of forks, when it was made
    cdef size_t _key
    cdef readonly int device_id
    cdef bint _timing
    cdef bint _blocking
    cdef object __weakref__
    cdef cydriver.CUevent _ending     # closed, and in use by another thread still
    cdef int _users
    cdef bint _shared                 # made for other processes, or opened from one
    cdef bint _opened                 # it is another process's
    cdef object _descriptor           # for other processes, once it was asked for
    cdef int _ensure_open(self) except -1
    cdef int _ensure_usable(self) except -1
    cdef size_t _address(self) noexcept
    cdef int ensure_recordable(self) except -1
    # A failure if the event went with its context: to be asked before the event is named.
    cdef cydriver.CUresult ask_whether_there(self, const char** function) noexcept nogil
    # The driver's event, which stays until let_go() even if another thread closes the object.
    cdef cydriver.CUevent hold(self) except NULL
    cdef void let_go(self) noexcept

cdef Event create_event(cydriver.CUcontext context, int device_id, object options, bint recorded)
cpdef long live_event_handles() noexcept
