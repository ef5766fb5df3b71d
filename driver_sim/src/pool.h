// SPDX-License-Identifier: Apache-2.0
// Memory pools. Guarded by `driver().mutex`.
#pragma once

#include "block_allocator.h"
#include "driver.h"

namespace sim {

constexpr std::size_t pool_unit = 256;                        // alignment of allocations
constexpr std::size_t pool_chunk = std::size_t(32) << 20;     // in which a pool takes and returns memory
constexpr std::size_t most_of_a_pool = (std::size_t(1) << 40) - pool_chunk;  // units are counted in 32 bits

struct Import {  // a pointer of another process
    std::size_t bytes = 0;
    std::uint64_t id = 0;
    bool freed = false;  // the last time that it was imported
    int pending = 0;     // frees that wait in a queue
};

struct Pool {
    CUmemPoolProps properties{};
    Device *device = nullptr;  // null for pools at the host, and managed ones without a place
    Rights rights;
    Address base = 0;
    std::size_t span = 0;       // bytes of addresses
    std::size_t most = 0;       // bytes of memory, 0 for no limit
    BlockAllocator blocks;
    std::vector<std::uint32_t> blocks_in;  // by chunk: live and freeing blocks that touch it
    std::vector<bool> has_memory;          // by chunk
    std::size_t spare_chunks = 0;          // with memory, touched by no block
    std::vector<std::uint32_t> freeing;    // blocks whose free waits in a queue

    std::size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
    std::uint64_t threshold = 0;
    int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
    std::map<Address, Advice> advice;      // of allocations, when managed
    std::size_t live = 0;       // allocations not freed
    std::size_t occupied = 0;   // those, and the ones whose free waits in a queue
    bool is_default = false;
    bool destroyed = false;     // by the program; it stays until the last allocation is gone
    bool imported = false;      // from another process, or from this one
    int times_opened = 0;       // and not given up, when it is
    bool exported = false;      // once at least
    std::uint64_t identity = 0;             // in all processes that share it
    std::map<Address, Import> imports;      // pointers imported, when the pool is
    int descriptor = -1;        // of its memory, when it can be shared

    bool managed() const { return properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED; }
    bool at_host() const { return !managed() && properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE; }
};

CUresult make_pool(const CUmemPoolProps &properties, Pool *&pool);
CUresult known_pool(CUmemoryPool handle, Pool *&pool);
bool label_pool(Pool &pool);  // one that can be shared
bool is_shared_pool(int descriptor);
bool is_shared_chunk(int descriptor);
Pool *default_pool(Device &device);
Pool *pool_at(Address address);

CUresult pool_allocate(Pool &pool, Stream &stream, std::size_t bytes, Address &address);
// Frees when the work in front of it on the stream has run. False if it is no live allocation.
bool pool_free(Lock &lock, Pool &pool, Stream &stream, Address address);
// Frees at once, when nothing uses it any more.
bool pool_free_now(Pool &pool, Address address);
void trim(Pool &pool, std::size_t keep);
void take_old_rights(Pool &pool);

}  // namespace sim
