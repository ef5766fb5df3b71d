// SPDX-License-Identifier: Apache-2.0
// A stretch of addresses that the process has set aside, handed out in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace sim {

// Pieces are looked for behind the last one handed out, so that a freed address comes back only when
// the whole stretch has been used once. Addresses nobody holds are inaccessible.
class AddressSpace {
  public:
    // Sets aside `bytes` of inaccessible addresses; false if the process cannot have them.
    bool open(std::size_t bytes, std::size_t granularity);
    void close();  // while nothing is taken

    // 0 when there is no room.
    std::uintptr_t take(std::size_t bytes, std::size_t alignment);
    bool take_at(std::uintptr_t address, std::size_t bytes);
    void give_back(std::uintptr_t address, std::size_t bytes);

    bool half_is_free() const { return taken_ <= (end_ - start_) / 2; }
    bool contains(std::uintptr_t address) const { return address >= start_ && address < end_; }
    bool overlaps(std::uintptr_t address, std::size_t bytes) const {
        return contains(address) || (address < start_ && bytes > start_ - address);
    }

    // Makes pages inaccessible again; what was written to private pages is gone. False when the process has so
    // many mappings that it may not divide one: the pages are as they were.
    static bool withdraw(std::uintptr_t address, std::size_t bytes);

    // Withdraws the pages and gives them back. Pages that cannot be withdrawn lose what was written to them and
    // are never handed out again.
    void end(std::uintptr_t address, std::size_t bytes);

  private:
    void take_from(std::map<std::uintptr_t, std::uintptr_t>::iterator range, std::uintptr_t address,
                   std::size_t bytes);
    std::uintptr_t start_ = 0, end_ = 0, cursor_ = 0;
    std::size_t granularity_ = 1, taken_ = 0;
    void *set_aside_ = nullptr;
    std::map<std::uintptr_t, std::uintptr_t> free_;  // start to end, never adjacent
};

}  // namespace sim
