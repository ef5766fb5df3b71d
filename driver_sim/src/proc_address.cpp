// SPDX-License-Identifier: Apache-2.0
// Functions by name: what this driver does not have is absent.
#include "registry.h"

namespace sim {

namespace {

CUresult find(const char *name, void **entry, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    constexpr cuuint64_t both = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !entry || (flags & ~both) || (flags & both) == both)
        return CUDA_ERROR_INVALID_VALUE;
    *entry = nullptr;
    Registry &r = registry();
    auto found = r.symbols.find(name);
    const Symbol *best = nullptr;
    if (found != r.symbols.end())
        for (const Symbol &symbol : found->second)
            if (symbol.version <= version && (!best || symbol.version > best->version))
                best = &symbol;
    if (best)
        *entry = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && best->per_thread_entry
                     ? best->per_thread_entry
                     : best->entry;
    if (*entry) {
        if (status)
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    if (status)
        *status = found == r.symbols.end() ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                           : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    std::lock_guard<std::mutex> guard(r.mutex);
    r.absent.insert(name);
    return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

// Asking for a function is not a driver call that a program makes: it is neither counted nor refused.
extern "C" SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                                   CUdriverProcAddressQueryResult *symbolStatus) {
    return find(symbol, pfn, cudaVersion, flags, symbolStatus);
}

// The signature that CUDA 11.3 introduced. cuda.h names it only for old programs.
#undef cuGetProcAddress
extern "C" SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags);
extern "C" SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return find(symbol, pfn, cudaVersion, flags, nullptr);
}

static const Registration first_version{"cuGetProcAddress", 11030, (void *)&cuGetProcAddress, nullptr};
static const Registration second_version{"cuGetProcAddress", 12000, (void *)&cuGetProcAddress_v2, nullptr};

}  // namespace sim
