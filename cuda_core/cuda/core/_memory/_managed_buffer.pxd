# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._buffer cimport Buffer

cdef class ManagedBuffer(Buffer):
    pass
