# SPDX-License-Identifier: Apache-2.0
"""How many forks this process is away from the one that loaded the package.

A forked child cannot use the driver: nearly everything answers that it is not initialised, and some frees even
succeed, on nothing. So records keep the generation that they began in, and a record of an earlier one is lost.
"""

from libc.stdint cimport uint16_t

cdef extern from "<pthread.h>" nogil:
    ctypedef void (*ForkHandler)() noexcept nogil
    int pthread_atfork(ForkHandler prepare, ForkHandler parent, ForkHandler child)

cdef uint16_t _generation = 0


cdef void _in_child() noexcept nogil:
    global _generation
    _generation += 1


cdef uint16_t fork_generation() noexcept nogil:
    return _generation


if pthread_atfork(NULL, NULL, _in_child) != 0:
    raise MemoryError("no memory for a fork handler")
