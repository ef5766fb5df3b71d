// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sim {

struct Symbol {
    int version;
    void *entry;
    void *per_thread_entry;
    Link *link;  // null for what is not there
};

struct Failure {
    Function *function;
    std::uint64_t nth;
    CUresult result;
    bool sticky, effect;
    std::uint64_t seen, fired;
};

struct Answer {
    const char *name;
    CUresult result;
};

struct CallLog {
    bool open = true;
    std::vector<Answer> calls;
    std::uint64_t total = 0;
};

// `functions` and `symbols` are filled while the library is loaded and do not change afterwards;
// the rest is guarded by `mutex`, which is taken last of all.
struct Registry {
    static constexpr std::size_t kept_entries = 100000;
    static constexpr std::size_t most_functions = 1024;

    Registry();

    std::map<std::string, std::unique_ptr<Function>> functions;
    std::map<std::string, std::vector<Symbol>> symbols;
    std::atomic<std::uint64_t> *counts_of_children;  // in memory that forked children share, one for each function
    bool initialised_before_reset = false;

    std::mutex mutex;
    std::map<int, Failure> failures;
    int next_failure = 1;
    std::vector<Answer> refused;
    std::uint64_t refused_total = 0;
    std::map<int, CallLog> logs;
    int next_log = 1;
    std::set<std::string> absent;  // asked for and not found

    int arm(const char *name, std::uint64_t nth, CUresult result, bool sticky, bool effect);
    std::uint64_t fired(int id);
    void disarm(int id);
    int open_log();
    void close_log(int id);
    void forget_log(int id);
    void reset();
};

Registry &registry();

const char *name_of(CUresult result);  // null when there is no such result (errors.cpp)

}  // namespace sim
