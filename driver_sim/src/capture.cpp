// SPDX-License-Identifier: Apache-2.0
// Stream capture. No capture can begin yet, so no stream is in one.
#include "driver.h"

namespace sim {

DRIVER_CALL_ON_STREAM("cuStreamIsCapturing", cuStreamIsCapturing, 10000,
                      (CUstream stream, CUstreamCaptureStatus *captureStatus), (stream, captureStatus)) {
    Lock lock(driver().mutex);
    Stream *s;
    if (CUresult bad = resolve_stream(stream, s))
        return bad;
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

}  // namespace sim
