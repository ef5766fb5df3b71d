// SPDX-License-Identifier: Apache-2.0
// The memory of pools: blocks, the memory behind them, frees in the order of streams.
#include "pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::size_t first_chunk(const Block &block) { return std::size_t(block.start) * pool_unit / pool_chunk; }

std::size_t last_chunk(const Block &block) {
    return (std::size_t(block.start + block.units) * pool_unit - 1) / pool_chunk;
}

bool take_memory(Pool &pool) {
    Driver &d = driver();
    if (pool.most && pool.reserved + pool_chunk > round_up(pool.most, pool_chunk))
        return false;
    if (pool.device) {
        if (!pool.device->take(pool_chunk))
            return false;
    } else if (pool_chunk > d.host_total - d.host_used) {
        return false;
    } else {
        d.host_used += pool_chunk;
    }
    pool.reserved += pool_chunk;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
}

void return_memory(Pool &pool) {
    if (pool.device)
        pool.device->give_back(pool_chunk);
    else
        driver().host_used -= pool_chunk;
    pool.reserved -= pool_chunk;
}

// Who still reads freed memory sees a pattern. Of a large block both ends are enough to notice, and cost little.
void poison(Pool &pool, const Block &block) {
    constexpr std::size_t end = 256;
    auto *first = reinterpret_cast<unsigned char *>(pool.base + std::size_t(block.start) * pool_unit);
    if (block.bytes <= 2 * end) {
        std::memset(first, 0xDD, block.bytes);
    } else {
        std::memset(first, 0xDD, end);
        std::memset(first + block.bytes - end, 0xDD, end);
    }
}

void leave_chunks(Pool &pool, const Block &block) {
    for (std::size_t chunk = first_chunk(block); chunk <= last_chunk(block); ++chunk)
        if (--pool.blocks_in[chunk] == 0)
            ++pool.spare_chunks;
}

// Gives memory to every chunk that the block touches, or to none.
bool enter_chunks(Pool &pool, const Block &block) {
    std::size_t first = first_chunk(block), last = last_chunk(block);
    for (std::size_t chunk = first; chunk <= last; ++chunk) {
        if (!pool.has_memory[chunk]) {
            if (!take_memory(pool)) {
                for (std::size_t done = first; done < chunk; ++done)
                    if (--pool.blocks_in[done] == 0)
                        ++pool.spare_chunks;
                return false;
            }
            pool.has_memory[chunk] = true;
            ++pool.spare_chunks;
        }
        if (pool.blocks_in[chunk]++ == 0)
            --pool.spare_chunks;
    }
    return true;
}

void end_pool(Pool &pool) {
    Driver &d = driver();
    if (!pool.imported)
        trim(pool, 0);
    d.pool_space.end(pool.base, pool.span);
    if (pool.descriptor >= 0)
        close(pool.descriptor);
    if (!pool.imported)
        pool.blocks.close();
    d.pools_by_address.erase(pool.base);
    retire(&pool);
}

void finish_free(Pool &pool, std::uint32_t index) {
    Block &block = pool.blocks[index];
    poison(pool, block);
    leave_chunks(pool, block);
    if (!pool.advice.empty())
        pool.advice.erase(pool.base + std::size_t(block.start) * pool_unit);
    pool.blocks.give_back(index);
    --pool.occupied;
    if (pool.destroyed && pool.occupied == 0)
        end_pool(pool);
}

// A block whose free waits in a queue can be used again at once on the same stream, and on a stream that
// waits for an event behind the free.
std::uint32_t take_freeing(Pool &pool, Stream &stream, std::uint32_t units) {
    for (auto it = pool.freeing.begin(); it != pool.freeing.end(); ++it) {
        Block &block = pool.blocks[*it];
        if (block.units != units || !ordered_behind(stream, *block.freed_on, block.freed_order))
            continue;
        std::uint32_t index = *it;
        pool.freeing.erase(it);
        --pool.occupied;
        block.state = BlockState::Live;
        block.freed_on = nullptr;
        return index;
    }
    return 0;
}

// The memory stays the exporter's.
void end_import(Pool &pool, std::map<Address, Import>::iterator import) {
    pool.imports.erase(import);
    --pool.occupied;
    if (pool.destroyed && pool.occupied == 0)
        end_pool(pool);
}

bool free_import(Lock &lock, Pool &pool, Stream &stream, Address address) {
    auto found = pool.imports.find(address);
    if (found == pool.imports.end() || found->second.freed)
        return false;
    found->second.freed = true;
    ++found->second.pending;
    Work work;
    work.kind = WorkKind::PoolFree;
    work.run = [&pool, address] {
        auto import = pool.imports.find(address);
        // Whoever has imported it again meanwhile, or freed that one too, keeps it mapped.
        if (import != pool.imports.end() && --import->second.pending == 0 && import->second.freed)
            end_import(pool, import);
        return CUDA_SUCCESS;
    };
    submit(lock, stream, std::move(work));
    return true;
}

std::uint32_t live_block(Pool &pool, Address address) {
    if ((address - pool.base) % pool_unit)
        return 0;
    std::uint32_t index = pool.blocks.beginning_at(std::uint32_t((address - pool.base) / pool_unit));
    return index && pool.blocks[index].state == BlockState::Live ? index : 0;
}

}  // namespace

CUresult make_pool(const CUmemPoolProps &properties, Pool *&pool) {
    Driver &d = driver();
    if (!d.has_pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    auto made = std::make_unique<Pool>();
    made->properties = properties;
    bool managed = made->managed();
    switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        made->device = d.device(properties.location.id);
        if (!made->device)
            return CUDA_ERROR_INVALID_VALUE;
        if (!managed)
            made->rights.device[made->device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && properties.location.id != 0)
            return CUDA_ERROR_INVALID_VALUE;
        made->rights.host = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        break;
    case CU_MEM_LOCATION_TYPE_INVALID:
        if (!managed)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t total = made->device ? made->device->total : d.host_total;
    made->most = properties.maxSize < total ? properties.maxSize : 0;
    // Twice the memory, as blocks that are still held break up the addresses; less where these are scarce.
    std::size_t memory = round_up(made->most ? made->most : total, pool_chunk);
    for (std::size_t times : {d.pool_space.half_is_free() ? 2 : 1, 1}) {
        made->span = std::min(times * memory, most_of_a_pool);
        if ((made->base = d.pool_space.take(made->span, pool_chunk)))
            break;
    }
    if (!made->base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int flags = MAP_FIXED | MAP_NORESERVE | MAP_PRIVATE | MAP_ANONYMOUS;
    bool ok = true;
    if (properties.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        made->descriptor = memfd_create("cuda-driver-sim-pool", MFD_CLOEXEC);
        ok = made->descriptor >= 0 && label_pool(*made);
        flags = MAP_FIXED | MAP_NORESERVE | MAP_SHARED;
    }
    ok = ok && mmap(reinterpret_cast<void *>(made->base), made->span, PROT_READ | PROT_WRITE, flags,
                    made->descriptor, 0) != MAP_FAILED;
    ok = ok && made->blocks.open(std::uint32_t(made->span / pool_unit));
    if (!ok) {
        d.pool_space.end(made->base, made->span);
        if (made->descriptor >= 0)
            close(made->descriptor);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    take_old_rights(*made);
    made->blocks_in.resize(made->span / pool_chunk);
    made->has_memory.resize(made->span / pool_chunk);
    pool = made.release();
    d.pools_by_address[pool->base] = pool;
    return CUDA_SUCCESS;
}

Pool *pool_at(Address address) {
    auto &pools = driver().pools_by_address;
    auto it = pools.upper_bound(address);
    if (it == pools.begin())
        return nullptr;
    Pool *pool = std::prev(it)->second;
    return address < pool->base + pool->span ? pool : nullptr;
}

CUresult pool_allocate(Pool &pool, Stream &stream, std::size_t bytes, Address &address) {
    address = 0;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (bytes > pool.span)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto units = std::uint32_t((bytes + pool_unit - 1) / pool_unit);
    std::uint32_t index = pool.freeing.empty() ? 0 : take_freeing(pool, stream, units);
    if (!index) {
        index = pool.blocks.take(units);
        if (!index)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!enter_chunks(pool, pool.blocks[index])) {
            pool.blocks.give_back(index);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    Block &block = pool.blocks[index];
    block.bytes = bytes;
    block.id = driver().next_id++;
    ++pool.live;
    ++pool.occupied;
    pool.used += bytes;
    pool.used_high = std::max(pool.used_high, pool.used);
    address = pool.base + std::size_t(block.start) * pool_unit;
    return CUDA_SUCCESS;
}

bool pool_free(Lock &lock, Pool &pool, Stream &stream, Address address) {
    if (pool.imported)
        return free_import(lock, pool, stream, address);
    std::uint32_t index = live_block(pool, address);
    if (!index)
        return false;
    // What is used falls when the free is submitted, not when it runs.
    --pool.live;
    pool.used -= pool.blocks[index].bytes;
    if (!work_is_queued()) {
        finish_free(pool, index);
        return true;
    }
    Block &block = pool.blocks[index];
    block.state = BlockState::Freeing;
    block.freed_on = &stream;
    block.freed_order = next_order();
    pool.freeing.push_back(index);
    Work work;
    work.kind = WorkKind::PoolFree;
    work.run = [&pool, index, id = block.id] {
        auto waiting = std::find(pool.freeing.begin(), pool.freeing.end(), index);
        // Used again on its stream, or freed with its context: nothing is left to do.
        if (waiting == pool.freeing.end() || pool.blocks[index].id != id)
            return CUDA_SUCCESS;
        pool.freeing.erase(waiting);
        finish_free(pool, index);
        return CUDA_SUCCESS;
    };
    submit(lock, stream, std::move(work));
    return true;
}

bool pool_free_now(Pool &pool, Address address) {
    if (pool.imported) {
        auto import = pool.imports.find(address);
        if (import == pool.imports.end() || import->second.freed)
            return false;
        if (import->second.pending)
            import->second.freed = true;
        else
            end_import(pool, import);
        return true;
    }
    std::uint32_t index = live_block(pool, address);
    if (!index)
        return false;
    --pool.live;
    // What is used does not fall: only a free in the order of a stream counts.
    finish_free(pool, index);
    return true;
}

// Returns unused memory while at least `keep` bytes stay.
void trim(Pool &pool, std::size_t keep) {
    for (std::size_t chunk = pool.has_memory.size(); chunk-- && pool.spare_chunks;) {
        if (!pool.has_memory[chunk] || pool.blocks_in[chunk] || pool.reserved < keep + pool_chunk)
            continue;
        Address start = pool.base + chunk * pool_chunk;
        // Shared pages are the file's: they go when the file has a hole there.
        madvise(reinterpret_cast<void *>(start), pool_chunk, pool.descriptor >= 0 ? MADV_REMOVE : MADV_DONTNEED);
        pool.has_memory[chunk] = false;
        --pool.spare_chunks;
        return_memory(pool);
    }
}

void synchronised() {
    driver().freed_in_order.clear();
    for (auto &entry : driver().pools_by_address)
        if (entry.second->spare_chunks && entry.second->reserved > entry.second->threshold)
            trim(*entry.second, entry.second->threshold);
}

// Devices that could use the pool destroyed last can use a new one, where that is asked for.
void take_old_rights(Pool &pool) {
    Driver &d = driver();
    if (!d.keeps_old_rights || pool.managed() || !pool.device)
        return;
    pool.rights = d.old_rights;
    pool.rights.device[pool.device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

void destroy_pool(Pool &pool) {
    Driver &d = driver();
    if (pool.device && !pool.managed())
        d.old_rights = pool.rights;
    d.pools.erase(&pool);
    pool.destroyed = true;
    for (auto &device : d.devices)
        if (device->current_pool == &pool)
            device->current_pool = device->default_pool;
    for (auto &entry : d.current_pools)
        if (entry.second == &pool)
            entry.second = nullptr;
    if (pool.occupied == 0)
        end_pool(pool);
}

}  // namespace sim
