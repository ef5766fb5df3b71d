# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase

cdef Buffer grow(VirtualMemoryBase resource, object buf, object new_size, object config, bint keep_old)
