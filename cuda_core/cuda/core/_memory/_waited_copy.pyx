# SPDX-License-Identifier: Apache-2.0
"""A copy of this package's own, which is over when the call returns: memory is about to be unmapped behind it."""

from cuda.bindings cimport cydriver

from cuda.core._memory._virtual_parts cimport CUdeviceptr, Failure, succeeded
from cuda.core._stream_handle cimport StreamHandle, create_own_stream, release_stream


cdef bint copy_and_wait(CUdeviceptr target, CUdeviceptr source, size_t size, cydriver.CUcontext context,
                        Failure* failure) noexcept nogil:
    """Copy bytes on a stream of its own: no other work waits for this, and no capture is disturbed."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUcontext popped = NULL
    cdef bint done
    if not succeeded(cydriver.cuCtxPushCurrent(context), b"cuCtxPushCurrent", failure):
        return False
    done = succeeded(
        cydriver.cuThreadExchangeStreamCaptureMode(&mode), b"cuThreadExchangeStreamCaptureMode", failure
    )
    if done:
        done = _copy(target, source, size, context, failure)
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    cydriver.cuCtxPopCurrent(&popped)
    return done


cdef bint _copy(CUdeviceptr target, CUdeviceptr source, size_t size, cydriver.CUcontext context,
                Failure* failure) noexcept nogil:
    cdef StreamHandle* own = NULL
    cdef bint done
    if not succeeded(create_own_stream(context, &own), b"cuStreamCreate", failure):
        return False
    done = succeeded(cydriver.cuMemcpyAsync(target, source, size, own.stream), b"cuMemcpyAsync", failure)
    if done:
        done = succeeded(cydriver.cuStreamSynchronize(own.stream), b"cuStreamSynchronize", failure)
        if not done:
            cydriver.cuStreamSynchronize(own.stream)  # the memory must not go under a copy that may still run
    release_stream(own)
    return done
