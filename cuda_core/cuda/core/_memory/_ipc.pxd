# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint16_t

cdef class IPCAllocationHandle:
    cdef int _descriptor        # -1 once it is closed
    cdef int _users             # calls that use it at this moment
    cdef bint _closing          # closed while in use: whoever lets go last closes it
    cdef uint16_t _generation   # of forks, when it was made
    cdef object _uuid
    cdef object __weakref__
    cdef int hold(self) except -1
    cdef int let_go(self) noexcept
    cdef bint _is_closed(self) noexcept
    cdef int _close(self) noexcept

cdef class IPCBufferDescriptor:
    cdef bytes payload
    cdef size_t size

cdef IPCAllocationHandle own_descriptor(int descriptor, object uuid)
cdef IPCAllocationHandle duplicate_descriptor(int descriptor, object uuid)
cdef IPCBufferDescriptor describe_buffer(const void* payload, size_t size)
cdef int enable_sending_handles() except -1
cdef int uuid_argument(object value) except -1
cpdef long live_descriptors() noexcept
