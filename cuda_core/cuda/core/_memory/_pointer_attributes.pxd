# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uintptr_t

cdef tuple pointer_attributes(uintptr_t pointer)
