// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"

#include <sys/mman.h>

namespace sim {

namespace {

std::uintptr_t round_up(std::uintptr_t value, std::size_t alignment) {
    return (value + alignment - 1) & ~(std::uintptr_t(alignment) - 1);
}

}  // namespace

bool AddressSpace::open(std::size_t bytes, std::size_t granularity) {
    void *p = mmap(nullptr, bytes + granularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return false;
    set_aside_ = p;
    granularity_ = granularity;
    start_ = cursor_ = round_up(std::uintptr_t(p), granularity);
    end_ = start_ + bytes;
    free_[start_] = end_;
    return true;
}

void AddressSpace::close() {
    if (set_aside_)
        munmap(set_aside_, end_ - start_ + granularity_);
    *this = AddressSpace();
}

std::uintptr_t AddressSpace::take(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0 || bytes > end_ - start_)
        return 0;
    bytes = round_up(bytes, granularity_);
    if (alignment < granularity_)
        alignment = granularity_;
    // First from the cursor to the end, then from the start.
    for (int pass = 0; pass < 2; ++pass) {
        std::uintptr_t from = pass == 0 ? cursor_ : start_;
        auto range = free_.upper_bound(from);
        if (range != free_.begin())
            --range;
        for (; range != free_.end(); ++range) {
            std::uintptr_t low = range->first < from ? from : range->first;
            std::uintptr_t address = round_up(low, alignment);
            if (address >= low && address < range->second && range->second - address >= bytes) {
                take_from(range, address, bytes);
                cursor_ = address + bytes;
                return address;
            }
        }
    }
    return 0;
}

bool AddressSpace::take_at(std::uintptr_t address, std::size_t bytes) {
    if (address < start_ || address >= end_ || bytes > end_ - address)
        return false;
    auto range = free_.upper_bound(address);
    if (range == free_.begin())
        return false;
    --range;
    if (range->second <= address || range->second - address < bytes)
        return false;
    take_from(range, address, bytes);
    return true;
}

void AddressSpace::take_from(std::map<std::uintptr_t, std::uintptr_t>::iterator range, std::uintptr_t address,
                             std::size_t bytes) {
    taken_ += bytes;
    std::uintptr_t end = range->second;
    if (range->first == address)
        free_.erase(range);
    else
        range->second = address;
    if (address + bytes != end)
        free_[address + bytes] = end;
}

void AddressSpace::give_back(std::uintptr_t address, std::size_t bytes) {
    bytes = round_up(bytes, granularity_);
    taken_ -= bytes;
    std::uintptr_t end = address + bytes;
    auto next = free_.lower_bound(address);
    if (next != free_.end() && next->first == end) {
        end = next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        auto before = std::prev(next);
        if (before->second == address) {
            before->second = end;
            return;
        }
    }
    free_[address] = end;
}

bool AddressSpace::withdraw(std::uintptr_t address, std::size_t bytes) {
    void *pages = reinterpret_cast<void *>(address);
    if (mmap(pages, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
        return true;
    // A process with too many mappings gets no other, not even in the place of one. What need not be divided can
    // still be closed.
    return mprotect(pages, bytes, PROT_NONE) == 0 && madvise(pages, bytes, MADV_DONTNEED) == 0;
}

void AddressSpace::end(std::uintptr_t address, std::size_t bytes) {
    if (withdraw(address, bytes))
        give_back(address, bytes);
    else
        madvise(reinterpret_cast<void *>(address), bytes, MADV_DONTNEED);
}

}  // namespace sim
