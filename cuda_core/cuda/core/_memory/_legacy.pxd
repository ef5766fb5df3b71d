# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._plain_resource cimport PlainResource

cdef class LegacyPinnedMemoryResource(PlainResource):
    pass
