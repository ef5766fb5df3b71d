// SPDX-License-Identifier: Apache-2.0
// Divides the addresses of a pool into blocks, in constant time however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sim {

struct Stream;

enum class BlockState : std::uint8_t { Free, Kept, Live, Freeing };

struct Block {
    std::uint32_t start = 0, units = 0;       // in units
    std::uint32_t before = 0, after = 0;      // neighbours in address order
    std::uint32_t previous = 0, next = 0;     // in the list of free blocks of about this size
    BlockState state = BlockState::Free;
    std::size_t bytes = 0;                    // as asked for
    std::uint64_t id = 0;                     // of the allocation
    Stream *freed_on = nullptr;               // while Freeing
    std::uint64_t freed_order = 0;            // of the free among all submitted work

    bool held() const { return state == BlockState::Live || state == BlockState::Freeing; }
};

// Remembers at which units blocks begin; finds the last beginning at or before a unit.
class Beginnings {
  public:
    bool open(std::size_t units);
    void close();
    void set(std::size_t unit);
    void clear(std::size_t unit);
    std::size_t last_at_or_before(std::size_t unit) const;  // unit 0 is always one

  private:
    static constexpr int most_levels = 6;
    std::uint64_t *words_[most_levels] = {};  // each level has a bit for each word of the one below
    std::size_t lengths_[most_levels] = {};
    int levels_ = 0;
};

// Segregated fit: lists of free blocks by size, found through bitmaps, and neighbours joined at once
// (the scheme known as TLSF). Blocks are named by an index; 0 is none. The block freed last is kept as it is:
// most programs ask for the same size again, and joining it only to divide it again is half the cost of a pair.
class BlockAllocator {
  public:
    bool open(std::uint32_t units);
    void close();

    std::uint32_t take(std::uint32_t units);
    void give_back(std::uint32_t index);
    std::uint32_t containing(std::uint32_t unit) const;
    std::uint32_t beginning_at(std::uint32_t unit) const { return block_at_[unit]; }  // 0 when none does

    Block &operator[](std::uint32_t index) { return blocks_[index]; }

  private:
    static constexpr int steps = 16, classes = 32;
    static int bin_of(std::uint32_t units);
    std::uint32_t new_block();
    void list(std::uint32_t index);
    void unlist(std::uint32_t index);
    void split(std::uint32_t index, std::uint32_t units);
    void join(std::uint32_t index);

    std::vector<Block> blocks_;
    std::vector<std::uint32_t> unused_;       // entries of blocks_ that name no block
    std::uint32_t *block_at_ = nullptr;       // by the unit at which a block begins
    std::size_t units_ = 0;
    Beginnings beginnings_;
    std::uint32_t heads_[classes * steps] = {};
    std::uint32_t class_map_ = 0;
    std::uint32_t kept_ = 0;                  // the block freed last, in no list and not joined
    std::uint32_t step_maps_[classes] = {};
};

}  // namespace sim
