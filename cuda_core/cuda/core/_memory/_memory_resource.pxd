# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Deleter, Record
from cuda.core._stream_handle cimport StreamHandle

cdef class MemoryResource:
    cdef Deleter deleter
    cdef object buffer_type     # the kind of buffer that the memory is seen through; None for Buffer itself
    cdef bint indexed           # frees by an address that it knows: its own deallocate must find the record
    cdef object __weakref__
    cdef int own(self, Record buffer) except -1
    cdef int begin_owning(self, Record buffer) except -1
    cdef int ensure_same_kind(self, MemoryResource before) except -1
    cdef int ensure_adoptable(self, Record source) except -1
    cdef object prepare_entry(self, Record source, Record target)
    cdef void enter_owner(self, Record source, Record target, MemoryResource before, object prepared) noexcept
    cdef object export_buffer(self, Record buffer)
    cdef Record import_buffer(self, object descriptor, StreamHandle* order)
    cdef object reduce_buffer(self, Record buffer, object descriptor)

cdef bint came_behind_the_free(Record record, object error) noexcept
cdef int ask_python(Record record, StreamHandle* order, int waiting) except -1
