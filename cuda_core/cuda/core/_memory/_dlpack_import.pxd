# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint16_t

from cuda.core._memory._dlpack_abi cimport DLManagedTensor, DLManagedTensorVersioned, DLTensor

cdef class ImportedTensor:
    cdef DLManagedTensor* plain
    cdef DLManagedTensorVersioned* versioned
    cdef DLTensor* tensor           # inside one of them
    cdef readonly bint is_readonly
    cdef uint16_t generation        # of forks, when it was taken over

cdef ImportedTensor take_capsule(object capsule)
cdef ImportedTensor take_managed(DLManagedTensorVersioned* managed)
