# SPDX-License-Identifier: Apache-2.0
"""The end of a range: whole chunks behind a place, given back to the device while their addresses stay reserved.

The caller holds the claim on the range's word, and has waited for whatever may use the memory.
"""

from cuda.bindings cimport cydriver

from cuda.core._memory._virtual_parts cimport Failure, Mapping, Parts, forget_parts, succeeded
from cuda.core._memory._virtual_range cimport VirtualRange


cdef size_t whole_chunks_behind(VirtualRange range_, size_t kept) noexcept nogil:
    """Return how many chunks begin at or behind ``kept`` bytes from the start."""
    cdef size_t count = 0, number = range_.parts.mappings.size()
    while count < number and range_.parts.mappings[number - 1 - count].address >= range_.base + kept:
        count += 1
    return count


cdef bint is_within_a_chunk(VirtualRange range_, size_t kept) noexcept nogil:
    """Whether ``kept`` bytes from the start lies inside a chunk, which then holds memory on both sides."""
    cdef size_t i
    cdef Mapping mapping
    for i in range(range_.parts.mappings.size()):
        mapping = range_.parts.mappings[i]
        if mapping.address < range_.base + kept < mapping.address + mapping.size:
            return True
    return False


cdef size_t unmap_behind(VirtualRange range_, size_t kept, Failure* failure) noexcept nogil:
    """Unmap whole chunks behind ``kept`` bytes, the last one first; return how many went.

    It stops at the first refusal, so that what is mapped has no hole. What stays is mapped as before.
    """
    cdef Parts gone
    cdef Mapping last
    cdef size_t done = 0, count = whole_chunks_behind(range_, kept)
    while done < count:
        last = range_.parts.mappings.back()
        if not succeeded(cydriver.cuMemUnmap(last.address, last.size), b"cuMemUnmap", failure):
            break
        gone.mappings.push_back(last)
        range_.parts.mappings.pop_back()
        range_.mapped.fetch_sub(last.size)
        done += 1
    forget_parts(&gone)  # the driver has them back
    return done
