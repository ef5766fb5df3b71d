# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef list devices_with_host_pools(bint on_a_node)
cdef cydriver.CUmemAccessDesc* rights_for(list devices) except NULL
cdef int grant_access(cydriver.CUmemoryPool pool, list devices, bint own) except -1
cdef int nearest_node() except -1
