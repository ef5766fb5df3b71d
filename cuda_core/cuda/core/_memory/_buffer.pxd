# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._stream_handle cimport StreamHandle

cdef class Buffer(Record):
    cdef object __weakref__
    # How other processes know the memory: its descriptor, once it was asked for; of an import, by what name it came,
    # which stays when the buffer is closed.
    cdef object known_as
    cdef object _name(self)

cdef Buffer new_buffer(uintptr_t pointer, size_t size, MemoryResource resource, int device_id, StreamHandle* stream)
cdef int take_handle(Buffer self, object ptr, object size, object mr, object owner, object stream,
                     object deallocate) except -1
