# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._plain_resource cimport PlainResource

cdef class _SynchronousMemoryResource(PlainResource):
    cdef int _ordinal
    cdef cydriver.CUcontext _context
