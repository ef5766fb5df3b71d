# SPDX-License-Identifier: Apache-2.0

cdef class VirtualBufferDescriptor:
    cdef readonly size_t size
    cdef tuple sizes            # of each chunk, in the order of their addresses
    cdef tuple handles          # for each chunk an IPCAllocationHandle, or the bytes of a fabric handle
    cdef object __weakref__
    cdef object _check(self)

cdef VirtualBufferDescriptor describe_chunks(size_t size, tuple sizes, tuple handles)
cdef int enable_sending_descriptors() except -1
