# SPDX-License-Identifier: Apache-2.0
"""When the devices get access to a pool of another process whose memory is the host's.

Such a pool gives them none until it is granted. Granted before the first import, a driver leaves a mapping of the
device at the address of the import when the pool is given up, and the next thing that comes to that address is refused,
or worse (recorded on an H200, 580.159). So it is granted behind an import, and withdrawn before the next one where
nothing of the pool is mapped any more. Where something is, an import with access leaves nothing (recorded), and
withdrawing it would be a fault for work in flight.
"""

from cuda.bindings cimport cydriver

from cuda.core._memory._host_pool cimport rights_for
from cuda.core._memory._pending_frees cimport all_is_known, frees_have_run
from cuda.core._memory._pool_handle cimport PoolHandle


cdef int prepare_access(PoolHandle* pool, list devices) except -1:
    """Note who shall have access to what is imported. Where the pool was opened before, that is known already."""
    if pool.rights == NULL:
        pool.rights, pool.right_count = rights_for(devices), len(devices)
    return 0


cdef cydriver.CUresult _set(PoolHandle* pool, bint granted, const char** function) noexcept nogil:
    cdef cydriver.CUresult result
    cdef int place
    for place in range(pool.right_count):
        pool.rights[place].flags = (
            cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if granted
            else cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        )
    function[0] = b"cuMemPoolSetAccess"
    result = cydriver.cuMemPoolSetAccess(pool.pool, pool.rights, pool.right_count)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        pool.granted = granted
    return result


cdef cydriver.CUresult withdraw_access(PoolHandle* pool, const char** function) noexcept nogil:
    """Before an import, where no other is open. The caller keeps others from importing and freeing meanwhile."""
    cdef bint blocked = False
    if not pool.granted or not all_is_known(&pool.frees) or not frees_have_run(&pool.frees, &blocked):
        return cydriver.CUresult.CUDA_SUCCESS
    return _set(pool, False, function)


cdef cydriver.CUresult grant_access_behind(PoolHandle* pool, const char** function) noexcept nogil:
    """Behind an import."""
    if pool.granted or pool.rights == NULL:
        return cydriver.CUresult.CUDA_SUCCESS
    return _set(pool, True, function)
