// SPDX-License-Identifier: Apache-2.0
#include "block_allocator.h"

#include <sys/mman.h>

#include <new>

namespace sim {

namespace {

// Zeroed memory that costs nothing until it is touched.
void *lazy_memory(std::size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

}  // namespace

bool Beginnings::open(std::size_t units) {
    std::size_t bits = units;
    for (levels_ = 0; levels_ < most_levels; ++levels_) {
        std::size_t words = (bits + 63) / 64;
        lengths_[levels_] = words * 8;
        words_[levels_] = static_cast<std::uint64_t *>(lazy_memory(words * 8));
        if (!words_[levels_]) {
            close();
            return false;
        }
        if (words == 1) {
            ++levels_;
            break;
        }
        bits = words;
    }
    return true;
}

void Beginnings::close() {
    for (auto level = 0; level < levels_; ++level)
        munmap(words_[level], lengths_[level]);
    levels_ = 0;
}

void Beginnings::set(std::size_t unit) {
    for (int level = 0; level < levels_; ++level) {
        std::uint64_t &word = words_[level][unit / 64];
        bool was_empty = word == 0;
        word |= std::uint64_t(1) << (unit % 64);
        if (!was_empty)
            return;
        unit /= 64;
    }
}

void Beginnings::clear(std::size_t unit) {
    for (int level = 0; level < levels_; ++level) {
        std::uint64_t &word = words_[level][unit / 64];
        word &= ~(std::uint64_t(1) << (unit % 64));
        if (word)
            return;
        unit /= 64;
    }
}

std::size_t Beginnings::last_at_or_before(std::size_t unit) const {
    int level = 0;
    std::uint64_t below = words_[0][unit / 64] & (~std::uint64_t(0) >> (63 - unit % 64));
    while (!below) {
        unit /= 64;
        ++level;
        below = words_[level][unit / 64] & ((std::uint64_t(1) << (unit % 64)) - 1);
    }
    unit = unit / 64 * 64 + (63 - std::size_t(__builtin_clzll(below)));
    while (level--)
        unit = unit * 64 + (63 - std::size_t(__builtin_clzll(words_[level][unit])));
    return unit;
}

bool BlockAllocator::open(std::uint32_t units) {
    units_ = units;
    block_at_ = static_cast<std::uint32_t *>(lazy_memory(units_ * sizeof *block_at_));
    if (!block_at_)
        return false;
    if (!beginnings_.open(units)) {
        munmap(block_at_, units_ * sizeof *block_at_);
        return false;
    }
    blocks_.resize(1);
    std::uint32_t whole = new_block();
    blocks_[whole].units = units;
    block_at_[0] = whole;
    beginnings_.set(0);
    list(whole);
    return true;
}

void BlockAllocator::close() {
    munmap(block_at_, units_ * sizeof *block_at_);
    beginnings_.close();
    std::vector<Block>().swap(blocks_);  // the pool itself is kept for a while
    std::vector<std::uint32_t>().swap(unused_);
}

// Sizes below `steps` have a bin each; above, each power of two is divided into `steps` bins.
int BlockAllocator::bin_of(std::uint32_t units) {
    if (units < steps)
        return int(units);
    int power = 31 - __builtin_clz(units);
    return (power - 3) * steps + int((units >> (power - 4)) & (steps - 1));
}

std::uint32_t BlockAllocator::new_block() {
    if (unused_.empty()) {
        blocks_.emplace_back();
        return std::uint32_t(blocks_.size() - 1);
    }
    std::uint32_t index = unused_.back();
    unused_.pop_back();
    blocks_[index] = Block{};
    return index;
}

void BlockAllocator::list(std::uint32_t index) {
    Block &block = blocks_[index];
    int bin = bin_of(block.units);
    block.previous = 0;
    block.next = heads_[bin];
    if (block.next)
        blocks_[block.next].previous = index;
    heads_[bin] = index;
    step_maps_[bin / steps] |= 1u << (bin % steps);
    class_map_ |= 1u << (bin / steps);
}

void BlockAllocator::unlist(std::uint32_t index) {
    Block &block = blocks_[index];
    int bin = bin_of(block.units);
    if (block.previous)
        blocks_[block.previous].next = block.next;
    else
        heads_[bin] = block.next;
    if (block.next)
        blocks_[block.next].previous = block.previous;
    if (!heads_[bin]) {
        step_maps_[bin / steps] &= ~(1u << (bin % steps));
        if (!step_maps_[bin / steps])
            class_map_ &= ~(1u << (bin / steps));
    }
}

void BlockAllocator::split(std::uint32_t index, std::uint32_t units) {
    std::uint32_t rest = new_block();
    Block &block = blocks_[index], &tail = blocks_[rest];
    tail.start = block.start + units;
    tail.units = block.units - units;
    tail.before = index;
    tail.after = block.after;
    if (tail.after)
        blocks_[tail.after].before = rest;
    block.after = rest;
    block.units = units;
    block_at_[tail.start] = rest;
    beginnings_.set(tail.start);
    list(rest);
}

std::uint32_t BlockAllocator::take(std::uint32_t units) {
    if (std::uint32_t kept = kept_) {
        kept_ = 0;
        if (blocks_[kept].units == units) {
            blocks_[kept].state = BlockState::Live;
            return kept;
        }
        join(kept);
    }
    int bin = bin_of(units);
    // The last block freed in the own bin may fit; all blocks of the bins above do.
    std::uint32_t index = heads_[bin];
    if (!index || blocks_[index].units < units) {
        index = 0;
        int above = bin + 1, row = above / steps;
        if (row < classes) {
            std::uint32_t map = step_maps_[row] & (~0u << (above % steps));
            if (!map) {
                std::uint32_t rows = row + 1 < classes ? class_map_ & (~0u << (row + 1)) : 0;
                if (rows) {
                    row = __builtin_ctz(rows);
                    map = step_maps_[row];
                }
            }
            if (map)
                index = heads_[row * steps + __builtin_ctz(map)];
        }
        // Rarely, only a later block of the own bin fits.
        if (!index)
            for (std::uint32_t at = heads_[bin]; at && !index; at = blocks_[at].next)
                if (blocks_[at].units >= units)
                    index = at;
    }
    if (!index)
        return 0;
    unlist(index);
    if (blocks_[index].units > units)
        split(index, units);
    blocks_[index].state = BlockState::Live;
    return index;
}

void BlockAllocator::give_back(std::uint32_t index) {
    if (kept_)
        join(kept_);
    kept_ = index;
    blocks_[index].state = BlockState::Kept;
    blocks_[index].freed_on = nullptr;
}

void BlockAllocator::join(std::uint32_t index) {
    std::uint32_t after = blocks_[index].after, before = blocks_[index].before;
    if (after && blocks_[after].state == BlockState::Free) {
        unlist(after);
        Block &block = blocks_[index], &other = blocks_[after];
        block.units += other.units;
        block.after = other.after;
        if (block.after)
            blocks_[block.after].before = index;
        block_at_[other.start] = 0;
        beginnings_.clear(other.start);
        unused_.push_back(after);
    }
    if (before && blocks_[before].state == BlockState::Free) {
        unlist(before);
        Block &block = blocks_[index], &other = blocks_[before];
        other.units += block.units;
        other.after = block.after;
        if (other.after)
            blocks_[other.after].before = before;
        block_at_[block.start] = 0;
        beginnings_.clear(block.start);
        unused_.push_back(index);
        index = before;
    }
    Block &block = blocks_[index];
    block.state = BlockState::Free;
    list(index);
}

std::uint32_t BlockAllocator::containing(std::uint32_t unit) const {
    return block_at_[beginnings_.last_at_or_before(unit)];
}

}  // namespace sim
