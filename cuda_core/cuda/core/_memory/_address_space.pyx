# SPDX-License-Identifier: Apache-2.0
"""How many addresses the ranges of this process have reserved, and how many they may reserve ahead.

A process has 128 TiB of addresses at most, shared by the host and all devices. Reserving costs no memory, so nothing
but this count stops a program that reserves ahead for every buffer before other allocations fail for want of addresses.
"""

from libcpp.atomic cimport atomic

cdef atomic[size_t] _reserved

cdef size_t LARGEST = <size_t>1 << 46  # half of what there is: the other half is for everything else


cdef void count_addresses(size_t size) noexcept nogil:
    _reserved.fetch_add(size)


cdef void uncount_addresses(size_t size) noexcept nogil:
    _reserved.fetch_sub(size)


cdef size_t reserved_addresses() noexcept nogil:
    """Return how many bytes of addresses are reserved by ranges."""
    return _reserved.load()


cdef int ensure_addresses_left(size_t wanted) except -1:
    """Refuse to reserve so many bytes ahead where they would be more than this process may hold. No driver call.

    Raises
    ------
    ValueError
        If they are more than what is left.
    """
    cdef size_t held = _reserved.load()
    if wanted > LARGEST or held > LARGEST - wanted:
        raise ValueError(
            f"reserve_size: reserving {wanted} bytes of addresses, beside {held} that this process has reserved, would "
            f"pass {LARGEST}, which is half of its address space; give a smaller reserve_size or close buffers"
        )
    return 0
