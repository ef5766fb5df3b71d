# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef class Context:
    cdef cydriver.CUcontext _context
    cdef size_t _key
    cdef readonly int device_id
    cdef object __weakref__

cdef int device_count() except -1
cdef int device_attribute(int ordinal, cydriver.CUdevice_attribute attribute) except? -1
cdef cydriver.CUcontext current_context() except? NULL
cdef cydriver.CUcontext primary_context(int ordinal) except? NULL
cdef bint context_is_gone(cydriver.CUcontext context, unsigned long long id) noexcept nogil
cdef cydriver.CUresult ask_for_context(cydriver.CUcontext context, unsigned long long id) noexcept nogil
cdef cydriver.CUresult ask_for_id(cydriver.CUcontext context, unsigned long long* id) noexcept nogil
cdef int device_of_primary_context(cydriver.CUcontext context) noexcept
cdef int device_of_context(cydriver.CUcontext context) except -1
cdef Context wrap_context(cydriver.CUcontext context, int device_id)
