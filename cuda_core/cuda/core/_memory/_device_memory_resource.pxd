# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._shared_pool cimport _SharedPool

cdef class DeviceMemoryResource(_SharedPool):
    pass
