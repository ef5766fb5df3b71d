// SPDX-License-Identifier: Apache-2.0
// Chunks of virtual memory as file descriptors, within a process and between processes.
//
// When a chunk is exported for the first time it moves to a file of its own. From then on the kernel counts
// who holds the memory: mappings and descriptors of any process, also a descriptor on its way to one.
#include "pool.h"

#include <array>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {

namespace {

constexpr char mark[16] = "cuda-sim-chunk1";

struct Label {  // in the page behind the chunk
    char mark[16];
    CUmemAllocationProp properties;
};

bool read_label(int descriptor, struct stat &file, Label &label) {
    return fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > off_t(page_size) &&
           pread(descriptor, &label, sizeof label, file.st_size - off_t(page_size)) == ssize_t(sizeof label) &&
           std::memcmp(label.mark, mark, sizeof mark) == 0;
}

// Copies what was ever written; the rest of the new file stays a hole, as it was in the old one.
bool copy_written(int from, off_t start, std::size_t bytes, int to) {
    std::array<char, 1 << 16> buffer;
    off_t at = start, end = start + off_t(bytes);
    while ((at = lseek(from, at, SEEK_DATA)) >= 0 && at < end) {
        std::size_t n = std::min(buffer.size(), std::size_t(end - at));
        ssize_t got = pread(from, buffer.data(), n, at);
        if (got <= 0 || pwrite(to, buffer.data(), std::size_t(got), at - start) != got)
            return false;
        at += got;
    }
    return true;
}

bool move_to_own_file(Chunk &chunk) {
    int file = memfd_create("cuda-driver-sim-shared-chunk", MFD_CLOEXEC);
    if (file < 0)
        return false;
    Label label{};
    std::memcpy(label.mark, mark, sizeof mark);
    label.properties = chunk.properties;
    if (ftruncate(file, off_t(chunk.size + page_size)) != 0 ||
        pwrite(file, &label, sizeof label, off_t(chunk.size)) != ssize_t(sizeof label) ||
        !copy_written(chunk_store().descriptor(), off_t(chunk.offset), chunk.size, file)) {
        close(file);
        return false;
    }
    // All mappings must move, or none: those left behind would show memory that is given to another chunk.
    chunk.descriptor = file;
    bool moved = true;
    for (auto &entry : driver().mappings)
        moved = moved && (entry.second.chunk != &chunk || map_chunk(chunk, entry.second.base));
    if (!moved) {
        chunk.descriptor = -1;
        for (auto &entry : driver().mappings)
            if (entry.second.chunk == &chunk)
                map_chunk(chunk, entry.second.base);
        close(file);
        return false;
    }
    chunk_store().give_back(chunk.offset, chunk.size);
    return true;
}

}  // namespace

bool is_shared_chunk(int descriptor) {
    struct stat file;
    Label label;
    return read_label(descriptor, file, label);
}

bool map_chunk(const Chunk &chunk, Address base) {
    if (chunk.descriptor < 0)
        return chunk_store().map(chunk.offset, chunk.size, base);
    return mmap(reinterpret_cast<void *>(base), chunk.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                chunk.descriptor, 0) != MAP_FAILED;
}

DRIVER_CALL("cuMemExportToShareableHandle", cuMemExportToShareableHandle, 10020,
            (void *shareableHandle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType,
             unsigned long long flags),
            (shareableHandle, handle, handleType, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    auto found = d.chunks.find(handle);
    if (!shareableHandle || flags || found == d.chunks.end() || found->second->references == 0 ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    Chunk &chunk = *found->second;
    if (!(unsigned(chunk.properties.requestedHandleTypes) & unsigned(handleType)))
        return CUDA_ERROR_INVALID_VALUE;
    if (chunk.descriptor < 0 && !move_to_own_file(chunk))
        return CUDA_ERROR_OPERATING_SYSTEM;
    int descriptor = fcntl(chunk.descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(shareableHandle, &descriptor, sizeof descriptor);
    return CUDA_SUCCESS;
}

// The descriptor stays the caller's. `osHandle` is the descriptor itself, not a pointer to it.
DRIVER_CALL("cuMemImportFromShareableHandle", cuMemImportFromShareableHandle, 10020,
            (CUmemGenericAllocationHandle * handle, void *osHandle, CUmemAllocationHandleType shHandleType),
            (handle, osHandle, shHandleType)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    if (!osHandle)
        return CUDA_ERROR_INVALID_VALUE;
    int descriptor = int(reinterpret_cast<std::intptr_t>(osHandle));
    if (is_shared_pool(descriptor))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct stat file;
    Label label;
    if (!read_label(descriptor, file, label))
        return CUDA_ERROR_UNKNOWN;
    Device *device = nullptr;
    if (label.properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        device = d.device(label.properties.location.id);
        if (!device)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    auto *chunk = new Chunk;
    chunk->handle = d.next_chunk++;
    chunk->properties = label.properties;
    chunk->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;  // an import is not exported again
    chunk->size = std::size_t(file.st_size) - page_size;
    chunk->device = device;
    chunk->references = 1;
    chunk->descriptor = own;
    chunk->imported = true;
    d.chunks[chunk->handle] = chunk;
    *handle = chunk->handle;
    return CUDA_SUCCESS;
}

}  // namespace sim
