# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._allocation cimport Record

# A number for what takes memory along when it is lost: a device, or else a context; 0 where nobody knows.
cdef size_t place_of_device(int ordinal) noexcept nogil
cdef size_t place_of_context(cydriver.CUcontext context) noexcept
cdef size_t place_of(Record record) noexcept
# The number of the context that a record's memory went with, where it is at that place; 0 where it is not known.
cdef unsigned long long number_of(Record record, size_t place) noexcept
cdef bint first_report_of(size_t place, unsigned long long number) except -1
cdef str describe_place(size_t place)
