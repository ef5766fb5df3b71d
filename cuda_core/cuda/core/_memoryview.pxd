# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, intptr_t

from cuda.core._layout cimport _StridedLayout
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._dlpack_abi cimport DLDataType


cdef class StridedMemoryView:
    cdef readonly int device_id
    cdef readonly bint is_device_accessible
    cdef readonly bint readonly
    # These are emptied together, in a critical section of the view. Whoever does not make the view reads them in one.
    cdef intptr_t _address
    cdef object _exporter
    cdef object _source             # what keeps the memory: an imported tensor, a loan, or the exporter itself
    cdef Record _record             # the buffer whose streams order the work, or None
    cdef tuple _place               # DLPack device type and id
    cdef _StridedLayout _known_layout
    cdef object _known_dtype        # None until asked for, and where the type is not known
    cdef DLDataType _dl_type        # of what was imported through DLPack; bits are 0 otherwise
    cdef object _typestr            # of what was imported through an array interface
    cdef object _low                # the bytes around ptr that belong to the view's source
    cdef object _high
    cdef int64_t* _numbers          # shape and strides for consumers written in C
    cdef object __weakref__
    cdef int _close(self) noexcept
    cdef StridedMemoryView _held(self)
    cdef int _ensure_open(self) except -1
    cdef DLDataType _export_type(self) except *
