// SPDX-License-Identifier: Apache-2.0
#include "chunk_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sim {

namespace {
constexpr std::size_t file_size = std::size_t(1) << 45;  // sparse: costs nothing until touched
}

bool ChunkStore::open() {
    descriptor_ = memfd_create("cuda-driver-sim-chunks", MFD_CLOEXEC);
    return descriptor_ >= 0 && ftruncate(descriptor_, off_t(file_size)) == 0;
}

std::size_t ChunkStore::take(std::size_t bytes) {
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
        if (piece->second < bytes)
            continue;
        std::size_t offset = piece->first, rest = piece->second - bytes;
        free_.erase(piece);
        if (rest)
            free_[offset + bytes] = rest;
        return offset;
    }
    if (bytes > file_size - end_)
        return none;
    std::size_t offset = end_;
    end_ += bytes;
    return offset;
}

void ChunkStore::give_back(std::size_t offset, std::size_t bytes) {
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(bytes));
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
        bytes += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        auto before = next;
        --before;
        if (before->first + before->second == offset) {
            before->second += bytes;
            if (before->first + before->second == end_) {
                end_ = before->first;
                free_.erase(before);
            }
            return;
        }
    }
    if (offset + bytes == end_)
        end_ = offset;
    else
        free_[offset] = bytes;
}

bool ChunkStore::map(std::size_t offset, std::size_t bytes, std::uintptr_t address) {
    return mmap(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                descriptor_, off_t(offset)) != MAP_FAILED;
}

}  // namespace sim
