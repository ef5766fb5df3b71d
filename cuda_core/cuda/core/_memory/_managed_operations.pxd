# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._allocation cimport Record

cdef int advise(Record record, cydriver.CUmem_advise advice, object place) except -1
cdef int read_flag(Record record, cydriver.CUmem_range_attribute attribute) except? -9
cdef object read_preferred_location(Record record)
cdef list read_accessed_by(Record record)
