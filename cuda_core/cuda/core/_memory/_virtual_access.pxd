# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase

cdef int set_access(VirtualMemoryBase resource, object buf, object device, object access) except -1
cdef object get_access(VirtualMemoryBase resource, object buf, object device)
