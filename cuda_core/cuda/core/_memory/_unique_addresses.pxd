# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record

cdef Record unique_owner(object resource, Record record)
cdef object unique_entry(object resource, Record record)
cdef int enter_unique(object resource, Record record, object entry) except -1
