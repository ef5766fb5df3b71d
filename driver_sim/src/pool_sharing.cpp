// SPDX-License-Identifier: Apache-2.0
// Pools and their pointers between processes. A pool that can be shared lives in a file of its own; the
// importer maps the whole file, and a pointer travels as its place in it.
#include "pool.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {

namespace {

constexpr char mark[16] = "cuda-sim-pool-1";

struct Label {  // in the page behind the memory of the pool
    char mark[16];
    std::uint64_t identity;
    CUmemPoolProps properties;
};

struct PointerTicket {
    char mark[16];
    std::uint64_t pool;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint64_t sum;

    std::uint64_t right_sum() const { return (pool * 31 + offset) * 31 + bytes + 0x5173; }
};
static_assert(sizeof(PointerTicket) <= sizeof(CUmemPoolPtrExportData));

bool read_label(int descriptor, struct stat &file, Label &label) {
    return fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > off_t(page_size) &&
           pread(descriptor, &label, sizeof label, file.st_size - off_t(page_size)) == ssize_t(sizeof label) &&
           std::memcmp(label.mark, mark, sizeof mark) == 0;
}

}  // namespace

bool is_shared_pool(int descriptor) {
    struct stat file;
    Label label;
    return read_label(descriptor, file, label);
}

// Called when the pool is made; its file has room for the label behind `span`.
bool label_pool(Pool &pool) {
    Label label{};
    std::memcpy(label.mark, mark, sizeof mark);
    label.properties = pool.properties;
    if (getrandom(&label.identity, sizeof label.identity, 0) != ssize_t(sizeof label.identity))
        return false;
    pool.identity = label.identity;
    return ftruncate(pool.descriptor, off_t(pool.span + page_size)) == 0 &&
           pwrite(pool.descriptor, &label, sizeof label, off_t(pool.span)) == ssize_t(sizeof label);
}

DRIVER_CALL("cuMemPoolExportToShareableHandle", cuMemPoolExportToShareableHandle, 11020,
            (void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType, unsigned long long flags),
            (handle_out, pool, handleType, flags)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!handle_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || p->descriptor < 0 ||
        p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    int descriptor = fcntl(p->descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(handle_out, &descriptor, sizeof descriptor);
    p->exported = true;
    return CUDA_SUCCESS;
}

// The descriptor stays the caller's. `handle` is the descriptor itself, not a pointer to it.
DRIVER_CALL("cuMemPoolImportFromShareableHandle", cuMemPoolImportFromShareableHandle, 11020,
            (CUmemoryPool * pool_out, void *handle, CUmemAllocationHandleType handleType, unsigned long long flags),
            (pool_out, handle, handleType, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    int descriptor = int(reinterpret_cast<std::intptr_t>(handle));
    if (is_shared_chunk(descriptor))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct stat file;
    Label label;
    if (!read_label(descriptor, file, label))
        return CUDA_ERROR_UNKNOWN;
    // A pool that is open already is given again, and has to be given up as often.
    for (Pool *open : d.pools)
        if (open->imported && open->identity == label.identity) {
            ++open->times_opened;
            *pool_out = reinterpret_cast<CUmemoryPool>(open);
            return CUDA_SUCCESS;
        }
    auto pool = std::make_unique<Pool>();
    pool->properties = label.properties;
    pool->identity = label.identity;
    pool->imported = true;
    pool->times_opened = 1;
    if (label.properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        pool->device = d.device(label.properties.location.id);
        if (!pool->device)
            return CUDA_ERROR_INVALID_DEVICE;
        pool->rights.device[pool->device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    } else {
        pool->rights.host = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    pool->span = std::size_t(file.st_size) - page_size;
    pool->base = d.pool_space.take(pool->span, pool_chunk);
    if (!pool->base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (pool->descriptor < 0 ||
        mmap(reinterpret_cast<void *>(pool->base), pool->span, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pool->descriptor, 0) == MAP_FAILED) {
        if (pool->descriptor >= 0)
            close(pool->descriptor);
        d.pool_space.end(pool->base, pool->span);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    take_old_rights(*pool);
    Pool *made = pool.release();
    d.pools_by_address[made->base] = made;
    d.pools.insert(made);
    *pool_out = reinterpret_cast<CUmemoryPool>(made);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuMemPoolExportPointer", cuMemPoolExportPointer, 11020,
            (CUmemPoolPtrExportData * shareData_out, CUdeviceptr ptr), (shareData_out, ptr)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Place place = place_of(ptr);
    if (!shareData_out || place.kind != PlaceKind::Pool || place.freed || place.base != ptr ||
        place.pool->descriptor < 0 || place.pool->imported || !place.pool->exported)
        return CUDA_ERROR_INVALID_VALUE;
    PointerTicket ticket{};
    std::memcpy(ticket.mark, mark, sizeof mark);
    ticket.pool = place.pool->identity;
    ticket.offset = ptr - place.pool->base;
    ticket.bytes = place.size;
    ticket.sum = ticket.right_sum();
    std::memset(shareData_out, 0, sizeof *shareData_out);
    std::memcpy(shareData_out, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

// A pointer that is imported twice is the same address, and one free ends both; at the host the second time is refused.
// Partly: a pointer that the exporter has freed is imported. A payload that was changed is refused; drivers believe the
// place and the size in it.
DRIVER_CALL("cuMemPoolImportPointer", cuMemPoolImportPointer, 11020,
            (CUdeviceptr * ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData),
            (ptr_out, pool, shareData)) {
    Lock lock(driver().mutex);
    if (CUresult bad = check_capture_allows())
        return bad;
    Pool *p;
    if (CUresult bad = known_pool(pool, p))
        return bad;
    if (!ptr_out || !shareData || !p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    PointerTicket ticket;
    std::memcpy(&ticket, shareData, sizeof ticket);
    if (std::memcmp(ticket.mark, mark, sizeof mark) != 0 || ticket.pool != p->identity ||
        ticket.sum != ticket.right_sum() || ticket.offset >= p->span || ticket.bytes > p->span - ticket.offset)
        return CUDA_ERROR_INVALID_VALUE;
    Address address = p->base + ticket.offset;
    // The same pointer imported twice is one import, which the first free ends.
    auto [import, is_new] = p->imports.try_emplace(address);
    if (!is_new && !import->second.freed && p->at_host())
        return CUDA_ERROR_ALREADY_MAPPED;
    if (is_new)
        ++p->occupied;
    // Frees that are pending do not end what is imported now.
    if (is_new || import->second.freed)
        import->second = {std::size_t(ticket.bytes), driver().next_id++, false, import->second.pending};
    *ptr_out = address;
    return CUDA_SUCCESS;
}

}  // namespace sim
