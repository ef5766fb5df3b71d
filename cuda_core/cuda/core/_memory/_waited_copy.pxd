# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._memory._virtual_parts cimport CUdeviceptr, Failure

cdef bint copy_and_wait(CUdeviceptr target, CUdeviceptr source, size_t size, cydriver.CUcontext context,
                        Failure* failure) noexcept nogil
