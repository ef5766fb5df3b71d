// SPDX-License-Identifier: Apache-2.0
// Copies and sets.
#include "driver.h"

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

void fill(Address destination, std::uint32_t value, std::size_t width, std::size_t count) {
    if (width == 1) {
        std::memset(reinterpret_cast<void *>(destination), int(value & 0xff), count);
    } else if (width == 2) {
        auto *out = reinterpret_cast<std::uint16_t *>(destination);
        for (std::size_t i = 0; i < count; ++i)
            out[i] = std::uint16_t(value);
    } else {
        auto *out = reinterpret_cast<std::uint32_t *>(destination);
        for (std::size_t i = 0; i < count; ++i)
            out[i] = value;
    }
}

struct Set {
    Address destination;
    std::size_t pitch;  // bytes from row to row
    std::uint32_t value;
    std::size_t width;  // bytes of an element
    std::size_t columns, rows;
};

CUresult check_shape(const Set &set) {
    if (set.columns == 0 || set.rows == 0)
        return CUDA_SUCCESS;
    bool aligned = set.destination % set.width == 0 && (set.rows <= 1 || set.pitch % set.width == 0);
    return aligned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check(const Set &set, Context &context, bool captured) {
    if (CUresult bad = check_shape(set))
        return bad;
    std::size_t row_bytes;
    if (__builtin_mul_overflow(set.columns, set.width, &row_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (row_bytes == 0 || set.rows == 0)
        return CUDA_SUCCESS;
    if (set.rows > 1 && set.pitch < row_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    std::size_t bytes;
    if (__builtin_mul_overflow(set.rows - 1, set.pitch, &bytes) || __builtin_add_overflow(bytes, row_bytes, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return check_use(set.destination, bytes, context, Use::Write, captured);
}

CUresult set_on(Lock &lock, Stream &stream, Set set) {
    if (CUresult bad = check_capture_whole(stream))
        return bad;
    // The memory that a captured set names is looked at when the graph is instantiated.
    if (CUresult bad = stream.capture ? check_shape(set) : check(set, *stream.context, false))
        return bad;
    if (set.columns == 0 || set.rows == 0)
        return CUDA_SUCCESS;
    Work work;
    work.kind = WorkKind::Set;
    if (stream.capture)
        work.check = [set, context = stream.context] { return check(set, *context, true); };
    work.run = [set, &context = *stream.context] {
        std::size_t bytes = (set.rows - 1) * set.pitch + set.columns * set.width;
        if (!still_there(set.destination, bytes, context, true))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (std::size_t row = 0; row < set.rows; ++row)
            fill(set.destination + row * set.pitch, set.value, set.width, set.columns);
        return CUDA_SUCCESS;
    };
    return submit(lock, stream, std::move(work));
}

CUresult set_now(Set set) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = default_stream(stream))
        return bad;
    return set_on(lock, *stream, set);
}

CUresult set_later(CUstream handle, Set set) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = resolve_stream(handle, stream))
        return bad;
    return set_on(lock, *stream, set);
}

Set line(CUdeviceptr destination, std::uint32_t value, std::size_t width, std::size_t count) {
    return Set{destination, 0, value, width, count, 1};
}

// Which side of a copy may be pageable host memory.
enum class Sides { Any, HostToDevice, DeviceToHost, DeviceToDevice };

std::function<CUresult()> copy_of(Address destination, Address source, std::size_t bytes, const Context &context) {
    return [destination, source, bytes, &context]() -> CUresult {
        if (!still_there(destination, bytes, context, true) || !still_there(source, bytes, context, false))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        std::memmove(reinterpret_cast<void *>(destination), reinterpret_cast<const void *>(source), bytes);
        return CUDA_SUCCESS;
    };
}

CUresult copy_on(Lock &lock, Stream &stream, Address destination, Address source, std::size_t bytes, Sides sides,
                 bool wait) {
    if (CUresult bad = check_capture_whole(stream))
        return bad;
    if (bytes == 0)
        return CUDA_SUCCESS;
    Context &context = *stream.context;
    bool host_may_write = sides == Sides::Any || sides == Sides::DeviceToHost;
    bool host_may_read = sides == Sides::Any || sides == Sides::HostToDevice;
    bool to_pageable = is_pageable(destination), from_pageable = is_pageable(source);
    if (CUresult bad = check_use(destination, bytes, context, host_may_write ? Use::CopyWrite : Use::DeviceWrite,
                                 stream.capture != nullptr))
        return bad;
    if (CUresult bad = check_use(source, bytes, context, host_may_read ? Use::CopyRead : Use::DeviceRead,
                                 stream.capture != nullptr))
        return bad;
    if ((to_pageable && !host_may_write) || (from_pageable && !host_may_read))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream.capture) {
        Work work;
        work.run = copy_of(destination, source, bytes, context);
        return submit(lock, stream, std::move(work));
    }
    Work work;
    if (from_pageable && !wait && work_is_queued()) {
        // The driver has read pageable memory when the call returns: the program may change it.
        auto *first = reinterpret_cast<const char *>(source);
        auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
        work.run = [destination, staged, &context] {
            if (!still_there(destination, staged->size(), context, true))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            std::memcpy(reinterpret_cast<void *>(destination), staged->data(), staged->size());
            return CUDA_SUCCESS;
        };
    } else {
        work.run = copy_of(destination, source, bytes, context);
    }
    if (CUresult bad = submit(lock, stream, std::move(work)))
        return bad;
    // A copy to pageable memory has arrived when the call returns, whatever the call.
    if (wait || to_pageable) {
        wait_for_stream(lock, stream);
        return context.fault;
    }
    return CUDA_SUCCESS;
}

CUresult copy_now(Address destination, Address source, std::size_t bytes, Sides sides) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = default_stream(stream))
        return bad;
    return copy_on(lock, *stream, destination, source, bytes, sides, true);
}

CUresult copy_later(CUstream handle, Address destination, Address source, std::size_t bytes, Sides sides) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = resolve_stream(handle, stream))
        return bad;
    return copy_on(lock, *stream, destination, source, bytes, sides, false);
}

}  // namespace

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemcpy", cuMemcpy, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
                              (dst, src, ByteCount)) {
    return copy_now(dst, src, ByteCount, Sides::Any);
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020,
                              (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
                              (dstDevice, srcHost, ByteCount)) {
    return copy_now(dstDevice, Address(srcHost), ByteCount, Sides::HostToDevice);
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020,
                              (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
                              (dstHost, srcDevice, ByteCount)) {
    return copy_now(Address(dstHost), srcDevice, ByteCount, Sides::DeviceToHost);
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemcpyDtoD", cuMemcpyDtoD_v2, 3020,
                              (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
                              (dstDevice, srcDevice, ByteCount)) {
    return copy_now(dstDevice, srcDevice, ByteCount, Sides::DeviceToDevice);
}

DRIVER_CALL_ON_STREAM("cuMemcpyAsync", cuMemcpyAsync, 4000,
                      (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream stream),
                      (dst, src, ByteCount, stream)) {
    return copy_later(stream, dst, src, ByteCount, Sides::Any);
}

DRIVER_CALL_ON_STREAM("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 3020,
                      (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream stream),
                      (dstDevice, srcHost, ByteCount, stream)) {
    return copy_later(stream, dstDevice, Address(srcHost), ByteCount, Sides::HostToDevice);
}

DRIVER_CALL_ON_STREAM("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, 3020,
                      (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream stream),
                      (dstHost, srcDevice, ByteCount, stream)) {
    return copy_later(stream, Address(dstHost), srcDevice, ByteCount, Sides::DeviceToHost);
}

DRIVER_CALL_ON_STREAM("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, 3020,
                      (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream stream),
                      (dstDevice, srcDevice, ByteCount, stream)) {
    return copy_later(stream, dstDevice, srcDevice, ByteCount, Sides::DeviceToDevice);
}

// Copies of a batch are in no order among themselves; here they run one after the other.
static CUresult copy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                           size_t *attrsIdxs, size_t numAttrs, CUstream handle) {
    Lock lock(driver().mutex);
    Stream *stream;
    if (CUresult bad = resolve_stream(handle, stream))
        return bad;
    if (stream->capture)  // which survives this
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!current_context())  // other copies need none
        return CUDA_ERROR_INVALID_VALUE;
    if (!dsts || !srcs || !sizes || count == 0 || !attrs || !attrsIdxs || numAttrs == 0 || numAttrs > count ||
        stream->is_legacy || attrsIdxs[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttrs; ++i) {
        if (i && (attrsIdxs[i] <= attrsIdxs[i - 1] || attrsIdxs[i] >= count))
            return CUDA_ERROR_INVALID_VALUE;
        if (attrs[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attrs[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (std::find(sizes, sizes + count, 0u) != sizes + count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
        if (CUresult bad = copy_on(lock, *stream, dsts[i], srcs[i], sizes[i], Sides::Any, false))
            return bad;
    return CUDA_SUCCESS;
}

DRIVER_CALL_ON_STREAM("cuMemcpyBatchAsync", cuMemcpyBatchAsync_v2, 13000,
                      (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                       size_t *attrsIdxs, size_t numAttrs, CUstream stream),
                      (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, stream)) {
    return copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, stream);
}

// Partly: only where the driver is told to be one of CUDA 13.2 (CUDA_DRIVER_SIM_VERSION). Its answers follow those of
// `cuMemcpyBatchAsync` and the documentation; no driver of that version was recorded.
DRIVER_CALL_ON_STREAM("cuMemcpyWithAttributesAsync", cuMemcpyWithAttributesAsync, 13020,
                      (CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr, CUstream stream),
                      (dst, src, size, attr, stream)) {
    size_t first = 0;
    return copy_batch(&dst, &src, &size, 1, attr, &first, 1, stream);
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemsetD8", cuMemsetD8_v2, 3020, (CUdeviceptr dstDevice, unsigned char uc, size_t N),
                              (dstDevice, uc, N)) {
    return set_now(line(dstDevice, uc, 1, N));
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemsetD16", cuMemsetD16_v2, 3020,
                              (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N)) {
    return set_now(line(dstDevice, us, 2, N));
}

DRIVER_CALL_ON_DEFAULT_STREAM("cuMemsetD32", cuMemsetD32_v2, 3020, (CUdeviceptr dstDevice, unsigned int ui, size_t N),
                              (dstDevice, ui, N)) {
    return set_now(line(dstDevice, ui, 4, N));
}

DRIVER_CALL_ON_STREAM("cuMemsetD8Async", cuMemsetD8Async, 3020,
                      (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream stream),
                      (dstDevice, uc, N, stream)) {
    return set_later(stream, line(dstDevice, uc, 1, N));
}

DRIVER_CALL_ON_STREAM("cuMemsetD16Async", cuMemsetD16Async, 3020,
                      (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream stream),
                      (dstDevice, us, N, stream)) {
    return set_later(stream, line(dstDevice, us, 2, N));
}

DRIVER_CALL_ON_STREAM("cuMemsetD32Async", cuMemsetD32Async, 3020,
                      (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream stream),
                      (dstDevice, ui, N, stream)) {
    return set_later(stream, line(dstDevice, ui, 4, N));
}

DRIVER_CALL_ON_STREAM("cuMemsetD2D8Async", cuMemsetD2D8Async, 3020,
                      (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
                       CUstream stream),
                      (dstDevice, dstPitch, uc, Width, Height, stream)) {
    return set_later(stream, Set{dstDevice, dstPitch, uc, 1, Width, Height});
}

DRIVER_CALL_ON_STREAM("cuMemsetD2D16Async", cuMemsetD2D16Async, 3020,
                      (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
                       CUstream stream),
                      (dstDevice, dstPitch, us, Width, Height, stream)) {
    return set_later(stream, Set{dstDevice, dstPitch, us, 2, Width, Height});
}

DRIVER_CALL_ON_STREAM("cuMemsetD2D32Async", cuMemsetD2D32Async, 3020,
                      (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
                       CUstream stream),
                      (dstDevice, dstPitch, ui, Width, Height, stream)) {
    return set_later(stream, Set{dstDevice, dstPitch, ui, 4, Width, Height});
}

}  // namespace sim
