# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_parts cimport ChunkRequest

cdef tuple facts_of(int ordinal)
cdef int check_fit(int ordinal, tuple facts, object options) except -1
cdef int prepare_request(int ordinal, object options, ChunkRequest* request, size_t* granularity) except -1
