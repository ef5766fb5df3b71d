# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef int ensure_driver() except -1
cdef bint driver_is_the_parents() noexcept nogil
cdef int check(cydriver.CUresult result, const char* function) except -1
cdef object error_for(cydriver.CUresult result, const char* function)
cdef bint is_finalizing() noexcept nogil
cdef bint is_hopeless(cydriver.CUresult result) noexcept nogil
cdef int driver_version() except -1
cdef void* optional_function(const char* name, int version) except? NULL
