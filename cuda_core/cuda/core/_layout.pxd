# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t


cdef class _StridedLayout:
    cdef tuple _shape
    cdef tuple _strides             # in elements; None: C order without gaps
    cdef object _volume             # None until asked for
    cdef readonly int itemsize
    cdef readonly int64_t slice_offset
    cdef tuple _known_strides(self)
    cdef bint _is_dense_in(self, object order) except -1

cdef _StridedLayout new_layout(tuple shape, tuple strides, int itemsize, int64_t slice_offset)
