# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._allocation cimport Record

# A number for what takes memory along when it is lost: a device, or else a context; 0 where nobody knows.
cdef size_t place_of_device(int ordinal) noexcept nogil
cdef size_t place_of_context(cydriver.CUcontext context) noexcept
cdef size_t place_of(Record record) noexcept
cdef bint first_report_of(size_t place) except -1
cdef str describe_place(size_t place)
