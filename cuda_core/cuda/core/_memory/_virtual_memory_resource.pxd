# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase

cdef class VirtualMemoryResource(VirtualMemoryBase):
    pass
