# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record

cdef Record unique_owner(object resource, Record record)
cdef int enter_unique(object resource, Record record) except -1
