# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

cpdef size_t size_argument(object value, str name) except? 0xFFFFFFFF
cdef size_t round_up(size_t size, size_t granularity, str name) except? 0xFFFFFFFF
cdef uintptr_t pointer_argument(object value, str name) except? 0xFFFFFFFF
cdef int device_argument(object device) except -1
