# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint16_t

cdef uint16_t fork_generation() noexcept nogil
