# SPDX-License-Identifier: Apache-2.0
cdef void count_addresses(size_t size) noexcept nogil
cdef void uncount_addresses(size_t size) noexcept nogil
cdef size_t reserved_addresses() noexcept nogil
cdef int ensure_addresses_left(size_t wanted) except -1
