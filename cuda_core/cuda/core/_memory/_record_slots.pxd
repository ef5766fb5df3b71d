# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t

cdef uint32_t enter_slot(void* record) except 0
cdef void leave_slot(uint32_t slot) noexcept
cdef uint32_t slot_count() noexcept
cdef void* record_in_slot(uint32_t slot) noexcept
