# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._memory._virtual_range cimport VirtualRange

cdef enum:
    SPLIT_DONE = 0
    SPLIT_FAILED = 1  # the chunk is what it was
    SPLIT_BROKE = 2   # neither the old chunk nor the new one could be mapped where the old one was

cdef int split_last_chunk(VirtualRange range_, size_t kept, int ordinal, void* context, Failure* failure) noexcept nogil
