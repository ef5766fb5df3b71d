# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._memory_pool cimport _MemPool

cdef class PinnedMemoryResource(_MemPool):
    cdef int _node
