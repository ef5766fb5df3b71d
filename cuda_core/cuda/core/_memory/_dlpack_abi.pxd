# SPDX-License-Identifier: Apache-2.0
# The binary interface of DLPack 1.x, as its specification lays it out
# (https://dmlc.github.io/dlpack/latest/c_api.html). Its structures have the natural alignment of C, so plain
# declarations give them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DLPACK_MAJOR = 1
    DLPACK_MINOR = 3

    DL_CPU = 1
    DL_CUDA = 2
    DL_CUDA_HOST = 3
    DL_CUDA_MANAGED = 13

    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_BFLOAT = 4
    DL_COMPLEX = 5
    DL_BOOL = 6
    DL_FLOAT8_E3M4 = 7      # the first of the narrow types
    DL_FLOAT4_E2M1FN = 17   # the last of them

    DL_READ_ONLY = 1
    DL_IS_COPIED = 2
    DL_SUBBYTE_PADDED = 4

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides        # in elements; NULL: C order without gaps
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept nogil

cdef struct DLPackVersion:
    uint32_t major
    uint32_t minor

cdef struct DLManagedTensorVersioned:
    DLPackVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned*) noexcept nogil
    uint64_t flags
    DLTensor dl_tensor

# The table of functions that consumers written in C find in an attribute of the exporting type.
cdef struct DLPackExchangeAPIHeader:
    DLPackVersion version
    DLPackExchangeAPIHeader* prev_api

cdef struct DLPackExchangeAPI:
    DLPackExchangeAPIHeader header
    int (*managed_tensor_allocator)(
        DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
        void (*set_error)(void* error_ctx, const char* kind, const char* message) noexcept nogil) noexcept nogil
    int (*managed_tensor_from_py_object_no_sync)(void* py_object, DLManagedTensorVersioned** out) except -1
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out_py_object) except -1
    int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out) except -1
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_current_stream) noexcept nogil
