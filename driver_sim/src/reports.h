// SPDX-License-Identifier: Apache-2.0
// What the processes of a program leave live, or are refused, told to the one at the top.
//
// The top process has a file without a name, in memory, which the others find through an environment variable. Each
// keeps a record of its own in it up to date while it runs: a process that is killed, or that ends by _exit as those
// of multiprocessing do, has no other moment to tell anything. The file goes with the last process that uses it.
#pragma once

#include "live.h"

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sim {

struct RefusedCalls {
    std::string function;
    CUresult result;
    std::uint64_t count;
};

struct OverlappingCalls {  // how many, and the names of the first one and of the other thread's
    std::uint64_t total = 0;
    std::string first, beside;
};

struct Report {
    std::int32_t process;
    bool exited;  // by way of its exit handlers
    std::string command;
    LiveCounts live;
    std::uint64_t refused_total;
    std::vector<RefusedCalls> refused;
    OverlappingCalls overlaps;
};

struct Reports {
    std::vector<Report> processes;
    std::uint32_t untold = 0;  // processes that there was no room for
};

// In the top process.
std::string open_reports();  // see cudaDriverSimOpenReports
Reports reports();

// In all others. `refused` is the function, or null when the call was not refused.
void report_call(const char *refused, CUresult result);
void report_reset();
void report_end();  // this process has run its exit handlers

}  // namespace sim
