# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._dlpack_abi cimport DLDataType, DLManagedTensor, DLManagedTensorVersioned

# What one export hands out. The numbers of its shape and strides lie behind it in the same piece of memory.
cdef struct Export:
    DLManagedTensor plain
    DLManagedTensorVersioned versioned
    void* keeper        # a Python object whose end is the end of the loan, or NULL
    void* copied        # memory of the host that belongs to the export, or NULL

cdef Export* new_export(void* data, int device_type, int device_id, DLDataType dtype, tuple shape, tuple strides,
                        uint64_t flags, object keeper) except NULL
cdef object export_capsule(Export* export, bint versioned)
cdef bint wants_versioned(object max_version) except -1
cdef tuple wanted_device(object dl_device)
cdef bint usable_from(tuple place, tuple wanted) except -1
cdef object export_buffer(Record record, object stream, object max_version, object dl_device, object copy)
cpdef tuple classify_dl_device(object buf)
cdef object export_memory(void* data, tuple place, DLDataType dtype, tuple shape, tuple strides, uint64_t flags,
                          object keeper, Record record, object number, bint versioned)
cdef object checked_copy(object copy)
cdef int check_consumer(object number, int device_type, object stream) except -1
