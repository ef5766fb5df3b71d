# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._virtual_parts cimport Parts
from cuda.core._stream_handle cimport StreamHandle

cdef int queue_parts(Parts* source, Record record, StreamHandle* order, bint once, bint refused) except -1
