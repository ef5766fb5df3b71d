# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase

cdef Buffer shrink(VirtualMemoryBase resource, object buf, object new_size, bint split)
cdef size_t trim(VirtualMemoryBase resource, object buf, bint split) except? 0xFFFFFFFF
