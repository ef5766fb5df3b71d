# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._indexed_resource cimport Holding
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._memory._virtual_parts cimport CUdeviceptr

cdef Buffer buffer_argument(object buf)
cdef int ensure_owned_here(VirtualMemoryBase resource, Buffer buffer, str what) except -1
cdef int ensure_not_imported(Buffer buffer, str what) except -1
cdef int claim_as_it_is(Buffer buffer, str what) except -1
cdef int claim(Buffer buffer, str what) except -1
cdef void unclaim(Buffer buffer) noexcept
cdef void succeed(VirtualMemoryBase resource, Buffer old, Buffer new, Holding entry, CUdeviceptr base) noexcept
cdef int retire(VirtualMemoryBase resource, Buffer buffer) except -1
