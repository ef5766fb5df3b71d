// SPDX-License-Identifier: Apache-2.0
// Functions by name: what this driver does not have is absent.
#include "registry.h"

#include "driver.h"

#include <cstdlib>
#include <sstream>

namespace sim {

namespace {

// The functions that CUDA_DRIVER_SIM_ABSENT takes away, so that a program can be tried on a driver that lacks them.
bool hidden(const char *name) {
    static const std::set<std::string> names = [] {
        std::set<std::string> found;
        const char *text = std::getenv("CUDA_DRIVER_SIM_ABSENT");
        std::istringstream list(text ? text : "");
        for (std::string one; std::getline(list, one, ',');)
            found.insert(one);
        return found;
    }();
    return name && names.count(name);
}

// Null when this driver does not have the function, or not in so old a version.
void *find(const char *name, int version, cuuint64_t flags, bool &known) {
    Registry &r = registry();
    auto found = r.symbols.find(name);
    known = found != r.symbols.end() && !hidden(name);
    const Symbol *best = nullptr;
    if (known)
        for (const Symbol &symbol : found->second)
            if (symbol.version <= version && (!best || symbol.version > best->version))
                best = &symbol;
    if (best && best->per_thread_entry && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return best->per_thread_entry;
    if (best && best->entry)
        return best->entry;
    std::lock_guard<std::mutex> guard(r.mutex);
    r.absent.insert(name);
    return nullptr;
}

bool valid(const char *name, void **entry, int version, cuuint64_t flags) {
    constexpr cuuint64_t both = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return name && entry && version <= reported_version() && !(flags & ~both) && (flags & both) != both;
}

}  // namespace

// Asking for a function is not a driver call that a program makes: it is neither counted nor refused.
// The two versions differ in how they say that there is none, as those of the real driver do.
extern "C" SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                                   CUdriverProcAddressQueryResult *symbolStatus) {
    if (passing() && !hidden(symbol))
        return proc_address_of_real(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (!valid(symbol, pfn, cudaVersion, flags))
        return CUDA_ERROR_INVALID_VALUE;
    bool known;
    *pfn = find(symbol, cudaVersion, flags, known);
    if (symbolStatus)
        *symbolStatus = *pfn    ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

// The signature that CUDA 11.3 introduced; cuda.h gives its name to the newer one.
#undef cuGetProcAddress
extern "C" SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    if (passing() && !hidden(symbol))
        return proc_address_of_real_v1(symbol, pfn, cudaVersion, flags);
    if (!valid(symbol, pfn, cudaVersion, flags))
        return CUDA_ERROR_INVALID_VALUE;
    bool known;
    void *entry = find(symbol, cudaVersion, flags, known);
    if (!entry)
        return CUDA_ERROR_NOT_FOUND;
    *pfn = entry;
    return CUDA_SUCCESS;
}

static Link first_link{"cuGetProcAddress"}, second_link{"cuGetProcAddress_v2"};
static const Registration first_version{"cuGetProcAddress", 11030, (void *)&cuGetProcAddress, nullptr, &first_link};
static const Registration second_version{"cuGetProcAddress", 12000, (void *)&cuGetProcAddress_v2, nullptr,
                                         &second_link};

}  // namespace sim
