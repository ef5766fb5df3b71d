# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase

cdef int pause(VirtualMemoryBase resource, object buffers, object keep_contents) except -1
cdef int resume(VirtualMemoryBase resource, object buffers) except -1
