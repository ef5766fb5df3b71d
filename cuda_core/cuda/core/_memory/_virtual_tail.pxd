# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._memory._virtual_range cimport VirtualRange

cdef size_t whole_chunks_behind(VirtualRange range_, size_t kept) noexcept nogil
cdef bint is_within_a_chunk(VirtualRange range_, size_t kept) noexcept nogil
cdef size_t unmap_behind(VirtualRange range_, size_t kept, Failure* failure) noexcept nogil
