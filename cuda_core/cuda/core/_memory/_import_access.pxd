# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._pool_handle cimport PoolHandle

cdef int prepare_access(PoolHandle* pool, list devices) except -1
cdef cydriver.CUresult withdraw_access(PoolHandle* pool, const char** function) noexcept nogil
cdef cydriver.CUresult grant_access_behind(PoolHandle* pool, const char** function) noexcept nogil
