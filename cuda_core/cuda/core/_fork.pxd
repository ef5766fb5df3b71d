# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint16_t

cdef uint16_t forks_so_far

# Asked with every look at a word, so it is compiled into whoever asks.
cdef inline uint16_t fork_generation() noexcept nogil:
    return forks_so_far
