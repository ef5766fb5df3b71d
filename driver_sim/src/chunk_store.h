// SPDX-License-Identifier: Apache-2.0
// Physical memory for virtual memory management: pieces of one sparse file in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace sim {

// One descriptor serves every chunk (a process has about 20,000 descriptors and may want more
// chunks). Pages exist once they are touched; a chunk that is given back loses its pages at once.
class ChunkStore {
  public:
    static constexpr std::size_t none = ~std::size_t(0);

    bool open();
    std::size_t take(std::size_t bytes);  // an offset, or none
    void give_back(std::size_t offset, std::size_t bytes);
    bool map(std::size_t offset, std::size_t bytes, std::uintptr_t address);
    int descriptor() const { return descriptor_; }

  private:
    int descriptor_ = -1;
    std::size_t end_ = 0;                          // everything behind it was never taken
    std::map<std::size_t, std::size_t> free_;      // offset to size, below end_
};

}  // namespace sim
