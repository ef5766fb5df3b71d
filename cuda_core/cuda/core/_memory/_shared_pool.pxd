# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._ipc cimport IPCAllocationHandle
from cuda.core._memory._memory_pool cimport _MemPool
from cuda.core._memory._pointer_import cimport ImportReference
from cuda.core._memory._pool_handle cimport PoolReference
from cuda.core._stream_handle cimport StreamHandle

cdef class _SharedPool(_MemPool):
    cdef IPCAllocationHandle _descriptor   # of an imported pool, which the driver does not export again
    cdef IPCAllocationHandle _handle       # what allocation_handle has given out
    cdef object _home                      # weak reference to this pool as imported here, for buffers that come back
    cdef int take_imported_pool(self, IPCAllocationHandle descriptor, int ordinal, int given) except -1
    cdef int begin_importing(self, PoolReference reference, int ordinal) except -1
    cdef int _ensure_as_described(self, ImportReference share, size_t size) except -1
    cdef int _ensure_shareable(self) except -1

cdef int enable_sending() except -1
cdef StreamHandle* default_order(int ordinal) except NULL
cdef object open_pool(object kind, object handle, int ordinal)
