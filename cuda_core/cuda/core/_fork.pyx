# SPDX-License-Identifier: Apache-2.0
"""How many forks this process is away from the one that loaded the package.

A forked child cannot use the driver: nearly everything answers that it is not initialised, some frees even succeed, on
nothing, some calls crash, and any may wait for ever, for a lock that another thread of the parent held at the fork. So
what the driver has made keeps the generation that it began in. What is of an earlier one is the parent's: its use is
refused, and its end calls no driver.
"""

from cuda.core._pthread cimport pthread_atfork


cdef void _in_child() noexcept nogil:
    """Count. It runs before any Python of the child, whose first steps may drop what other threads had."""
    global forks_so_far
    forks_so_far += 1


if pthread_atfork(NULL, NULL, _in_child) != 0:
    raise MemoryError("no memory for a fork handler")
