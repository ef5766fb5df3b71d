# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._stream_handle cimport StreamHandle

cdef class Buffer(Record):
    cdef object __weakref__
    cdef object descriptor      # for other processes, once it was asked for
    cdef object imported        # by what name it came from another process; it stays when the buffer is closed

cdef Buffer new_buffer(uintptr_t pointer, size_t size, MemoryResource resource, int device_id, StreamHandle* stream)
cdef int take_handle(Buffer self, object ptr, object size, object mr, object owner, object stream,
                     object deallocate) except -1
