# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

cdef extern from "Python.h":
    bint PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int* overflow) except? -1

cdef inline long long small_integer(object value) except? -1:
    """Return an exact int from 0 to 2**63 - 1 as it is, -1 for anything else: nearly all arguments need no more."""
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return -1
    return PyLong_AsLongLongAndOverflow(value, &overflow)

cpdef size_t size_argument(object value, str name) except? 0xFFFFFFFF
cdef size_t round_up(size_t size, size_t granularity, str name) except? 0xFFFFFFFF
cdef uintptr_t pointer_argument(object value, str name) except? 0xFFFFFFFF
cdef int device_argument(object device) except -1
