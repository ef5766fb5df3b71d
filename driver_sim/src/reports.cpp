// SPDX-License-Identifier: Apache-2.0
#include "reports.h"

#include "call.h"
#include "control.h"
#include "live.h"
#include "overlaps.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace sim {

namespace {

constexpr char variable[] = "CUDA_DRIVER_SIM_REPORTS";
constexpr char magic[16] = "cuda-driver-sim";
constexpr std::uint32_t most_records = 1 << 16;
constexpr std::size_t header_size = 1 << 16;  // a multiple of every size of a page

struct Refused {
    char function[64];
    std::int32_t result;
    std::uint64_t count;
};

// One process. Written by that process only, with the mutex held that guards the live objects.
struct Record {
    std::int32_t process;
    std::uint32_t exited;
    std::uint64_t live[live_kinds];
    std::uint64_t refused_total;
    Refused refused[64];
    std::uint64_t overlaps_total;
    char first_overlap[64], beside[64];
    char command[256];
};

constexpr std::size_t record_size = 1 << 13;
static_assert(sizeof(Record) <= record_size);

struct Header {
    char magic[16];
    std::uint32_t bytes_of_record;  // differs between versions of this library
    std::atomic<std::uint32_t> claimed;
    std::atomic<std::uint32_t> reusable;  // the number of a record, from 1 on, whose process had nothing to tell
};

std::string &place = *new std::string;  // of the file; nothing where there are no reports. Outlasts this library
int file_of_top = -1;         // in the process at the top only
std::atomic<bool> telling{false};
Header *header = nullptr;     // of this process, and of those that it has forked
Record *record = nullptr;     // of this process
std::uint32_t record_number = 0;

std::size_t offset_of(std::uint32_t number) { return header_size + std::size_t(number) * record_size; }

// Records are smaller than pages may be: the page is mapped, and the record looked up in it.
void *map(int file, std::size_t offset, std::size_t bytes) {
    std::size_t page = std::size_t(sysconf(_SC_PAGESIZE)), into = offset % page;
    void *mapped = mmap(nullptr, into + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(offset - into));
    return mapped == MAP_FAILED ? nullptr : static_cast<char *>(mapped) + into;
}

bool is_ours(int file) {
    Header seen;
    return pread(file, static_cast<void *>(&seen), sizeof seen, 0) == ssize_t(sizeof seen) &&
           std::memcmp(seen.magic, magic, sizeof magic) == 0 && seen.bytes_of_record == sizeof(Record);
}

void write_command(char *out, std::size_t capacity) {
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t count = file < 0 ? 0 : read(file, out, capacity - 1);
    if (file >= 0)
        close(file);
    if (count > 0 && out[count - 1] == 0)
        --count;
    for (ssize_t i = 0; i < count; ++i)
        if (static_cast<unsigned char>(out[i]) < ' ')
            out[i] = ' ';
    out[count > 0 ? count : 0] = 0;
}

bool claim_record() {
    int file = open(place.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    if (!header && is_ours(file))
        header = static_cast<Header *>(map(file, 0, sizeof(Header)));
    if (header) {
        std::uint32_t number = header->reusable.exchange(0);
        number = number ? number - 1 : header->claimed.fetch_add(1);
        if (number < most_records && (record = static_cast<Record *>(map(file, offset_of(number), sizeof(Record))))) {
            std::memset(static_cast<void *>(record), 0, sizeof *record);
            record_number = number;
            record->process = getpid();
            write_command(record->command, sizeof record->command);
        }
    }
    close(file);
    return record != nullptr;
}

void write_refused(const char *function, CUresult result) {
    ++record->refused_total;
    for (Refused &entry : record->refused) {
        if (entry.count && (entry.result != result || std::strcmp(entry.function, function) != 0))
            continue;
        if (!entry.count) {
            std::strncpy(entry.function, function, sizeof entry.function - 1);
            entry.result = result;
        }
        ++entry.count;
        return;
    }
}

void write_overlaps() {
    if (record->overlaps_total == overlaps_total())
        return;
    Overlaps noted = overlaps();
    record->overlaps_total = noted.total;
    if (noted.calls.empty())
        return;
    std::strncpy(record->first_overlap, noted.calls.front().first, sizeof record->first_overlap - 1);
    std::strncpy(record->beside, noted.calls.front().second, sizeof record->beside - 1);
}

void stop_telling() {
    if (telling.exchange(false))
        noting.fetch_sub(1);
}

void start_telling() {
    if (!telling.exchange(true))
        noting.fetch_add(1);
}

void after_fork_in_child() {
    record = nullptr;  // the parent's
    if (file_of_top >= 0) {
        file_of_top = -1;
        start_telling();
    }
}

bool told_to_tell() {
    const char *text = std::getenv(variable);
    // A simulated driver with a real one's part has a library of this kind in front of it, which tells.
    if (!text || !*text || (!passing() && std::getenv("CUDA_DRIVER_SIM_REAL")))
        return false;
    place = text;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    start_telling();
    return true;
}

[[maybe_unused]] const bool started = told_to_tell();

__attribute__((destructor)) void at_exit() { report_end(); }

}  // namespace

void report_call(const char *refused, CUresult result) {
    if (!telling.load(std::memory_order_relaxed))
        return;
    with_live_objects([&](const LiveCounts &counts) {
        if (!record && (!telling.load() || !claim_record())) {
            stop_telling();
            return;
        }
        std::memcpy(record->live, counts.data(), sizeof record->live);
        if (refused)
            write_refused(refused, result);
        write_overlaps();
    });
}

void report_reset() {
    if (!telling.load(std::memory_order_relaxed))
        return;
    with_live_objects([](const LiveCounts &) {
        if (!record)
            return;
        record->refused_total = 0;
        std::memset(record->refused, 0, sizeof record->refused);
        record->overlaps_total = 0;
    });
}

std::string open_reports() {
    if (!place.empty()) {
        int file = open(place.c_str(), O_RDONLY | O_CLOEXEC);
        bool told = file >= 0 && is_ours(file);
        if (file >= 0)
            close(file);
        if (told || file_of_top >= 0)
            return file_of_top >= 0 ? place : "told";
        stop_telling();  // to a process that is gone
    } else {
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
    }
    place.clear();
    int file = memfd_create("cuda-driver-sim-reports", MFD_CLOEXEC);
    if (file < 0)
        return "";
    Header first{};
    std::memcpy(first.magic, magic, sizeof magic);
    first.bytes_of_record = sizeof(Record);
    if (ftruncate(file, off_t(offset_of(most_records))) != 0 ||
        pwrite(file, static_cast<const void *>(&first), sizeof first, 0) != ssize_t(sizeof first)) {
        close(file);
        return "";
    }
    file_of_top = file;
    place = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
    return place;
}

void report_end() {
    if (!record)
        return;
    with_live_objects([](const LiveCounts &counts) {
        bool silent = record->refused_total == 0 && record->overlaps_total == 0;
        for (int kind = 0; kind < live_kinds; ++kind) {
            record->live[kind] = counts[kind];
            silent = silent && (counts[kind] == 0 || kind == LIVE_PRIMARY_CONTEXT);
        }
        record->exited = 1;
        if (silent && header->reusable.load() == 0) {
            Record *own = record;
            record = nullptr;
            stop_telling();
            std::memset(static_cast<void *>(own), 0, sizeof *own);
            header->reusable.store(record_number + 1);
        }
    });
}

Reports reports() {
    Reports all;
    Header seen;
    if (file_of_top < 0 || !is_ours(file_of_top) ||
        pread(file_of_top, static_cast<void *>(&seen), sizeof seen, 0) != ssize_t(sizeof seen))
        return all;
    std::uint32_t claimed = seen.claimed.load();
    all.untold = claimed > most_records ? claimed - most_records : 0;
    for (std::uint32_t number = 0; number < std::min(claimed, most_records); ++number) {
        Record r;
        if (pread(file_of_top, static_cast<void *>(&r), sizeof r, off_t(offset_of(number))) != ssize_t(sizeof r))
            break;
        r.command[sizeof r.command - 1] = 0;
        r.first_overlap[sizeof r.first_overlap - 1] = r.beside[sizeof r.beside - 1] = 0;
        OverlappingCalls overlapping{r.overlaps_total, r.first_overlap, r.beside};
        Report report{r.process, r.exited != 0, r.command, {}, r.refused_total, {}, overlapping};
        std::copy(std::begin(r.live), std::end(r.live), report.live.begin());
        for (Refused &entry : r.refused)
            if (entry.count) {
                entry.function[sizeof entry.function - 1] = 0;
                report.refused.push_back({entry.function, CUresult(entry.result), entry.count});
            }
        all.processes.push_back(std::move(report));
    }
    return all;
}

}  // namespace sim
