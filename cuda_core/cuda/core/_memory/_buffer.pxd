# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uintptr_t

from cuda.core._memory._allocation cimport Deleter, Record
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream cimport StreamHandle

cdef class Buffer(Record):
    cdef object __weakref__

cdef class MemoryResource:
    cdef Deleter deleter
    cdef bint indexed           # frees by an address that it knows: its own deallocate must find the record
    cdef object __weakref__
    cdef int own(self, Buffer buffer) except -1
    cdef int begin_owning(self, Buffer buffer) except -1
    cdef int ensure_same_kind(self, MemoryResource before) except -1
    cdef int ensure_adoptable(self, Record source) except -1
    cdef int detached(self, Buffer buffer, Record allocation) except -1
    cdef int adopted(self, Record source, Buffer buffer, MemoryResource before) except -1

cdef Buffer new_buffer(uintptr_t pointer, size_t size, MemoryResource resource, int device_id, StreamHandle* stream)
cdef int ask_python(Record record, StreamHandle* order, int waiting) except -1
cdef Record record_being_asked(MemoryResource resource, uintptr_t pointer)
