# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

# The driver's own functions, for the calls of which a pair of allocation and free makes eight: the way through the
# bindings takes longer than some of them. There as soon as ensure_driver() has returned, and called without the GIL.
# No stream is given as 0 to any of them, so it does not matter what the bindings are told that 0 shall mean.
cdef struct DirectCalls:
    cydriver.CUresult (*stream_is_capturing)(cydriver.CUstream, cydriver.CUstreamCaptureStatus*) noexcept nogil
    cydriver.CUresult (*exchange_capture_mode)(cydriver.CUstreamCaptureMode*) noexcept nogil
    cydriver.CUresult (*allocate_from_pool)(cydriver.CUdeviceptr*, size_t, cydriver.CUmemoryPool,
                                            cydriver.CUstream) noexcept nogil
    cydriver.CUresult (*free_in_stream)(cydriver.CUdeviceptr, cydriver.CUstream) noexcept nogil

cdef DirectCalls direct

cdef int ensure_driver() except -1
cdef bint driver_is_the_parents() noexcept nogil
cdef int check(cydriver.CUresult result, const char* function) except -1
cdef object error_for(cydriver.CUresult result, const char* function)
cdef bint is_finalizing() noexcept nogil
cdef bint is_hopeless(cydriver.CUresult result) noexcept nogil
cdef int driver_version() except -1
cdef void* optional_function(const char* name, int version) except? NULL
