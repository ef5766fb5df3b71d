# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._stream_handle cimport StreamHandle

cdef object export_chunks(VirtualMemoryBase resource, Record buffer)
cdef Record import_chunks(VirtualMemoryBase resource, object descriptor, StreamHandle* order)
cdef object reduce_to_chunks(object descriptor)
