# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._virtual_range cimport VirtualRange

cdef int keep_contents(VirtualRange range_, int ordinal) except -1
cdef int put_contents_back(VirtualRange range_, int ordinal) except -1
cdef int let_contents_go(VirtualRange range_) except -1
