# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef list devices_with_access(cydriver.CUmemoryPool pool, int owner)
cdef int change_access(cydriver.CUmemoryPool pool, list granted, list withdrawn) except -1
cdef int withdraw_all(cydriver.CUmemoryPool pool, int owner) except -1
cdef bint has_access(cydriver.CUmemoryPool pool, int ordinal) except -1
