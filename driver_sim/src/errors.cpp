// SPDX-License-Identifier: Apache-2.0
// Names and texts of results.
#include "control.h"

#include "driver.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

struct Text {
    CUresult result;
    const char *name;
    const char *text;
};

#define RESULT(name, text) {name, #name, text}

const Text texts[] = {
    RESULT(CUDA_SUCCESS, "no error"),
    RESULT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    RESULT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    RESULT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    RESULT(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool"),
    RESULT(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized: call cudaProfilerInitialize()"),
    RESULT(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    RESULT(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    RESULT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    RESULT(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "API call is not supported in the installed CUDA driver"),
    RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    RESULT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    RESULT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    RESULT(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    RESULT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    RESULT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    RESULT(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    RESULT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    RESULT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    RESULT(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    RESULT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    RESULT(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    RESULT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    RESULT(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    RESULT(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    RESULT(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    RESULT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    RESULT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
    RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    RESULT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    RESULT(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    RESULT(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    RESULT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    RESULT(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    RESULT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
    RESULT(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
           "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    RESULT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    RESULT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    RESULT(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    RESULT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    RESULT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    RESULT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    RESULT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    RESULT(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    RESULT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    RESULT(CUDA_ERROR_NOT_READY, "device not ready"),
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    RESULT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    RESULT(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    RESULT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    RESULT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    RESULT(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    RESULT(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    RESULT(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    RESULT(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    RESULT(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    RESULT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    RESULT(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    RESULT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    RESULT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    RESULT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    RESULT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    RESULT(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW"),
    RESULT(CUDA_ERROR_MPS_CONNECTION_FAILED,
           "MPS client failed to connect to the MPS control daemon or the MPS server"),
    RESULT(CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"),
    RESULT(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"),
    RESULT(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
           "the hardware resources required to create MPS client have been exhausted"),
    RESULT(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
           "the hardware resources required to support device connections have been exhausted"),
    RESULT(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
    RESULT(CUDA_ERROR_CDP_NOT_SUPPORTED,
           "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"),
    RESULT(CUDA_ERROR_CDP_VERSION_MISMATCH,
           "unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
           "operation would make the legacy stream depend on a capturing blocking stream"),
    RESULT(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
           "attempt to terminate a thread-local capture sequence from another thread"),
    RESULT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
           "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
    RESULT(CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occured in external entity outside of CUDA"),
    RESULT(CUDA_ERROR_INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration"),
    RESULT(CUDA_ERROR_FUNCTION_NOT_LOADED,
           "the function handle is not loaded when calling an API that requires a loaded function"),
    RESULT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
           "one or more resources passed in are not valid resource types for the operation"),
    RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
           "one or more resources are insufficient or non-applicable for the operation"),
    RESULT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const Text *text_of(CUresult result) {
    for (const Text &text : texts)
        if (text.result == result)
            return &text;
    return nullptr;
}

}  // namespace

const char *name_of(CUresult result) {
    const Text *text = text_of(result);
    return text ? text->name : nullptr;
}

DRIVER_CALL_NEEDING(Needs::Nothing, "cuGetErrorName", cuGetErrorName, 6000, (CUresult error, const char **pStr),
                    (error, pStr)) {
    const Text *text = text_of(error);
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = text ? text->name : nullptr;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL_NEEDING(Needs::Nothing, "cuGetErrorString", cuGetErrorString, 6000, (CUresult error, const char **pStr),
                    (error, pStr)) {
    const Text *text = text_of(error);
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = text ? text->text : nullptr;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace sim

extern "C" SIM_EXPORT size_t cudaDriverSimResults(char *out, size_t capacity) {
    std::string list;
    for (const sim::Text &text : sim::texts)
        list += std::string(text.name) + ' ' + std::to_string(int(text.result)) + '\n';
    if (out && capacity) {
        std::size_t n = std::min(list.size(), capacity - 1);
        std::memcpy(out, list.data(), n);
        out[n] = 0;
    }
    return list.size() + 1;
}
