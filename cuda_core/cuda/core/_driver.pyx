# SPDX-License-Identifier: Apache-2.0
"""The way down to the driver: loading it, and turning its results into exceptions.

Modules above call ``cuda.bindings.cydriver`` themselves, without the GIL, and hand the result to :func:`check`.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t

from cuda.core._fork cimport fork_generation

from cuda.core._errors import CUDAError

cdef extern from "Python.h" nogil:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define cuda_core_is_finalizing() Py_IsFinalizing()
    #else
    #define cuda_core_is_finalizing() _Py_IsFinalizing()
    #endif
    """
    bint cuda_core_is_finalizing() noexcept

cdef extern from *:
    """
    #define cuda_core_put_function(place, function) (*(void **)(place) = (function))
    """
    void _put_function "cuda_core_put_function"(void* place, void* function) noexcept

cdef bint _ready = False
cdef uint16_t _ready_generation = 0  # of forks, when the driver was initialised

_WAY_OUT = (
    "cuda.core needs an NVIDIA driver with a GPU and found none ({}). To run without a GPU, use the simulated "
    "driver: install cuda-driver-sim and run `python -m cuda_driver_sim SCRIPT`, or call "
    "`cuda_driver_sim.activate()` before anything uses CUDA."
)


# Every driver function that the package calls. A function that the driver lacks is found here, at the first use: the
# calls themselves are made without the GIL, where an exception of the bindings could only be printed.
REQUIRED_FUNCTIONS = (
    b"cuCtxGetCurrent",
    b"cuCtxGetDevice",
    b"cuCtxGetId",
    b"cuCtxGetStreamPriorityRange",
    b"cuCtxPopCurrent",
    b"cuCtxPushCurrent",
    b"cuCtxSetCurrent",
    b"cuCtxSynchronize",
    b"cuDeviceCanAccessPeer",
    b"cuDeviceGetAttribute",
    b"cuDeviceGetCount",
    b"cuDeviceGetGraphMemAttribute",
    b"cuDeviceGetMemPool",
    b"cuDeviceGetName",
    b"cuDeviceGetPCIBusId",
    b"cuDeviceGetUuid",
    b"cuDeviceGraphMemTrim",
    b"cuDevicePrimaryCtxGetState",
    b"cuDevicePrimaryCtxRelease",
    b"cuDevicePrimaryCtxRetain",
    b"cuDeviceSetGraphMemAttribute",
    b"cuDriverGetVersion",
    b"cuEventCreate",
    b"cuEventDestroy",
    b"cuEventElapsedTime",
    b"cuEventQuery",
    b"cuEventRecord",
    b"cuEventSynchronize",
    b"cuGraphAddMemFreeNode",
    b"cuGraphDebugDotPrint",
    b"cuGraphDestroy",
    b"cuGraphExecDestroy",
    b"cuGraphExecUpdate",
    b"cuGraphInstantiateWithParams",
    b"cuGraphLaunch",
    b"cuGraphReleaseUserObject",
    b"cuGraphRetainUserObject",
    b"cuGraphUpload",
    b"cuLaunchHostFunc",
    b"cuIpcGetEventHandle",
    b"cuIpcOpenEventHandle",
    b"cuMemAddressFree",
    b"cuMemAddressReserve",
    b"cuMemAdvise",
    b"cuMemAlloc",
    b"cuMemAllocAsync",
    b"cuMemAllocFromPoolAsync",
    b"cuMemAllocHost",
    b"cuMemCreate",
    b"cuMemFree",
    b"cuMemFreeAsync",
    b"cuMemFreeHost",
    b"cuMemGetAccess",
    b"cuMemGetAllocationGranularity",
    b"cuMemGetMemPool",
    b"cuMemMap",
    b"cuMemPoolCreate",
    b"cuMemPoolDestroy",
    b"cuMemPoolExportPointer",
    b"cuMemPoolExportToShareableHandle",
    b"cuMemPoolGetAccess",
    b"cuMemPoolGetAttribute",
    b"cuMemPoolImportFromShareableHandle",
    b"cuMemPoolImportPointer",
    b"cuMemPoolSetAccess",
    b"cuMemPoolSetAttribute",
    b"cuMemPrefetchAsync",
    b"cuMemRangeGetAttribute",
    b"cuMemRangeGetAttributes",
    b"cuMemRelease",
    b"cuMemRetainAllocationHandle",
    b"cuMemSetAccess",
    b"cuMemUnmap",
    b"cuMemcpyAsync",
    b"cuMemsetD16Async",
    b"cuMemsetD32Async",
    b"cuMemsetD8Async",
    b"cuPointerGetAttributes",
    b"cuStreamBeginCapture",
    b"cuStreamCreate",
    b"cuStreamCreateWithPriority",
    b"cuStreamDestroy",
    b"cuStreamEndCapture",
    b"cuStreamGetCaptureInfo",
    b"cuStreamGetCtx",
    b"cuStreamGetFlags",
    b"cuStreamGetPriority",
    b"cuStreamIsCapturing",
    b"cuStreamQuery",
    b"cuStreamSynchronize",
    b"cuStreamWaitEvent",
    b"cuThreadExchangeStreamCaptureMode",
    b"cuUserObjectCreate",
    b"cuUserObjectRelease",
)


cdef bint is_hopeless(cydriver.CUresult result) noexcept nogil:
    """Whether a result means that nothing of its context can be used or freed any more."""
    return result in (
        cydriver.CUresult.CUDA_ERROR_DEINITIALIZED,
        cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
        cydriver.CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE,
        cydriver.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,
        cydriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
        cydriver.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
        cydriver.CUresult.CUDA_ERROR_ASSERT,
        cydriver.CUresult.CUDA_ERROR_HARDWARE_STACK_ERROR,
        cydriver.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        cydriver.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
        cydriver.CUresult.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        cydriver.CUresult.CUDA_ERROR_INVALID_PC,
        cydriver.CUresult.CUDA_ERROR_LAUNCH_FAILED,
        cydriver.CUresult.CUDA_ERROR_EXTERNAL_DEVICE,
    )


cdef bint is_finalizing() noexcept nogil:
    return cuda_core_is_finalizing()


cdef bint _no_context_is_current() noexcept nogil:
    cdef cydriver.CUcontext context = NULL
    return cydriver.cuCtxGetCurrent(&context) == cydriver.CUresult.CUDA_SUCCESS and context == NULL


cdef object error_for(cydriver.CUresult result, const char* function):
    """Make the exception for a result. Errors in making it are part of its text, never raised instead of it."""
    cdef const char* name = NULL
    cdef const char* text = NULL
    cdef str where = function.decode()
    try:
        cydriver.cuGetErrorName(result, &name)
        cydriver.cuGetErrorString(result, &text)
    except Exception as error:  # a driver without these functions; the code still tells
        where += f"; its name is unknown: {error}"
    if result == cydriver.CUresult.CUDA_ERROR_INVALID_CONTEXT and _no_context_is_current():
        where += "; no CUDA context is current on this thread: call Device.set_current() first"
    cdef str label = name.decode() if name != NULL else f"CUresult {<int>result}"
    error = CUDAError(f"{label}: {text.decode() if text != NULL else 'no description'} (answered by {where})")
    error.result = <int>result
    error.result_name = label
    error.function = function.decode()
    return error


cdef int check(cydriver.CUresult result, const char* function) except -1:
    if result != cydriver.CUresult.CUDA_SUCCESS:
        raise error_for(result, function)
    return 0


cdef int _require_functions() except -1:
    cdef void* found
    cdef cydriver.CUdriverProcAddressQueryResult status
    status = cydriver.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS
    cdef cydriver.CUresult result
    cdef bytes name
    missing = []
    for name in REQUIRED_FUNCTIONS:
        found = NULL
        result = cydriver.cuGetProcAddress(name, &found, 13000, 0, &status)
        if result != cydriver.CUresult.CUDA_SUCCESS or found == NULL:
            missing.append(name.decode())
        elif name == b"cuStreamIsCapturing":
            _put_function(&direct.stream_is_capturing, found)
        elif name == b"cuThreadExchangeStreamCaptureMode":
            _put_function(&direct.exchange_capture_mode, found)
        elif name == b"cuMemAllocFromPoolAsync":
            _put_function(&direct.allocate_from_pool, found)
        elif name == b"cuMemFreeAsync":
            _put_function(&direct.free_in_stream, found)
    if missing:
        raise RuntimeError(f"the CUDA driver lacks functions that cuda.core needs: {', '.join(missing)}")
    return 0


cdef int ensure_driver() except -1:
    """Load and initialise the driver at the first call that needs it.

    Raises
    ------
    RuntimeError
        If there is no driver. The text names the simulated driver as a way out.
    CUDAError
        If the driver is there and does not start, or was started before this process was forked. It is not called then.
    """
    global _ready, _ready_generation
    cdef cydriver.CUresult result
    if _ready:
        if _ready_generation != fork_generation():
            raise _error_in_child()
        return 0
    try:
        result = cydriver.cuInit(0)
    except RuntimeError as error:
        raise RuntimeError(_WAY_OUT.format(error)) from error
    if result == cydriver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise error_for(result, b"cuInit") from RuntimeError(_WAY_OUT.format("no device"))
    check(result, b"cuInit")
    _require_functions()
    _ready_generation = fork_generation()
    _ready = True
    return 0


def ensure_usable_driver() -> None:
    """Load and initialise the driver if that is to be done, for modules that are written in Python."""
    ensure_driver()


cdef bint driver_is_the_parents() noexcept nogil:
    """Whether the driver was started before this process was forked, which is the one that can use it."""
    return _ready and _ready_generation != fork_generation()


cdef object _error_in_child():
    error = CUDAError(
        "CUDA_ERROR_NOT_INITIALIZED: the driver was initialised before this process was forked, and a forked process "
        "cannot use it; start processes with the method 'spawn' of multiprocessing, or fork before CUDA is used"
    )
    error.result = <int>cydriver.CUresult.CUDA_ERROR_NOT_INITIALIZED
    error.result_name = "CUDA_ERROR_NOT_INITIALIZED"
    error.function = "cuInit"
    return error


cdef int driver_version() except -1:
    """Return the CUDA version that the driver is made for, such as 13000."""
    cdef int version = 0
    cdef cydriver.CUresult result
    ensure_driver()
    with nogil:
        result = cydriver.cuDriverGetVersion(&version)
    check(result, b"cuDriverGetVersion")
    return version


cdef void* optional_function(const char* name, int version) except? NULL:
    """Return a function that a driver may lack, in the form of CUDA ``version``; NULL where this one lacks it.

    For functions that are newer than the oldest driver or the oldest bindings that the package runs with.
    """
    cdef void* found = NULL
    cdef cydriver.CUdriverProcAddressQueryResult status
    cdef cydriver.CUresult result
    status = cydriver.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS
    if driver_version() < version:  # a driver refuses to be asked for a version that it does not know
        return NULL
    with nogil:
        result = cydriver.cuGetProcAddress(name, &found, version, 0, &status)
    return found if result == cydriver.CUresult.CUDA_SUCCESS else NULL
