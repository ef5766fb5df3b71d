# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef cydriver.CUmemLocation location_argument(object place, bint check_node) except *
cdef object place_of_location(int kind, int number)
cdef object place_of_ordinal(int ordinal)
cdef bint is_place(object value) except -1
