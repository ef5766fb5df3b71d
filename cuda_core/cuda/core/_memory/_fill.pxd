# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._stream cimport Stream

cdef int fill(Record record, object value, Stream stream) except -1
