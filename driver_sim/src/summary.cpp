// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include "control.h"
#include "overlaps.h"
#include "registry.h"
#include "reports.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

namespace sim {

namespace {

constexpr std::size_t most_shown = 20;  // processes, one by one

std::string plural(std::uint64_t count, std::string noun) {
    std::replace(noun.begin(), noun.end(), '_', ' ');
    return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

// What one process has to say, or several together.
struct Lines {
    std::map<std::string, std::uint64_t> live;
    std::vector<RefusedCalls> refused;
    std::uint64_t refused_total = 0;
    OverlappingCalls overlaps;

    bool nothing() const { return live.empty() && !refused_total && !overlaps.total; }

    void add(const LiveCounts &counts) {
        // Whoever uses a device retains its primary context, and nearly everybody keeps it to the end: it is no leak.
        for (int kind = 0; kind < live_kinds; ++kind)
            if (counts[kind] && kind != LIVE_PRIMARY_CONTEXT)
                live[live_kind_names[kind]] += counts[kind];
    }

    void add(const std::string &function, CUresult result, std::uint64_t count) {
        for (RefusedCalls &known : refused)
            if (known.function == function && known.result == result) {
                known.count += count;
                return;
            }
        refused.push_back({function, result, count});
    }

    void add(const OverlappingCalls &calls) {
        if (!overlaps.total)
            overlaps = {0, calls.first, calls.beside};
        overlaps.total += calls.total;
    }

    void add(const Report &report) {
        add(report.live);
        add(report.overlaps);
        refused_total += report.refused_total;
        for (const RefusedCalls &calls : report.refused)
            add(calls.function, calls.result, calls.count);
    }

    std::string text(const std::string &indentation) const {
        std::string text, left;
        auto line = [&](const std::string &what) { text += "cuda_driver_sim: " + indentation + what + '\n'; };
        for (auto &[kind, count] : live)
            left += (left.empty() ? "" : ", ") + plural(count, kind);
        if (!left.empty())
            line("left live: " + left);
        if (overlaps.total)
            line(plural(overlaps.total, "call") + " beside another thread's: a real driver may crash or answer with " +
                 "an error (first: " + overlaps.first + " beside " + overlaps.beside + ")");
        if (!refused_total)
            return text;
        line("refused: " + plural(refused_total, "driver call"));
        std::uint64_t others = refused_total;
        for (const RefusedCalls &calls : refused) {
            const char *name = name_of(calls.result);
            std::string times = calls.count == 1 ? "" : " (" + std::to_string(calls.count) + " times)";
            line("  " + calls.function + ": " + (name ? name : std::to_string(int(calls.result))) + times);
            others -= calls.count;
        }
        if (others)
            line("  and " + std::to_string(others) + " others");
        return text;
    }
};

Lines of_this_process() {
    Lines own;
    with_live_objects([&](const LiveCounts &counts) { own.add(counts); });
    Overlaps noted = overlaps();
    if (noted.total)
        own.add(OverlappingCalls{noted.total, noted.calls.front().first, noted.calls.front().second});
    Registry &r = registry();
    std::lock_guard<std::mutex> guard(r.mutex);
    own.refused_total = r.refused_total;
    for (const Answer &answer : r.refused)
        own.add(answer.name, answer.result, 1);
    return own;
}

bool is_running(std::int32_t process) {
    char text[512];
    int file = open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    text[count > 0 ? count : 0] = 0;
    const char *state = std::strrchr(text, ')');  // behind the name, which can hold anything
    return state && std::strlen(state) > 2 && state[2] != 'Z' && state[2] != 'X';
}

// Without the folder of the program, and cut off where it is long.
std::string short_command(std::string command) {
    std::size_t end = std::min(command.find(' '), command.size());
    if (std::size_t slash = command.substr(0, end).rfind('/'); slash != std::string::npos)
        command.erase(0, slash + 1);
    return command.size() <= 60 ? command : command.substr(0, 57) + "...";
}

std::string heading(const Report &report) {
    const char *end = is_running(report.process) ? ", still running"
                      : report.exited            ? ""
                                                 : ", ended by a signal or _exit";
    return "cuda_driver_sim: process " + std::to_string(report.process) + " (" + short_command(report.command) + ')' +
           end + ":\n";
}

std::atomic<int> ending_process{0}, code_when_left{0};
std::atomic<bool> says{false};

}  // namespace

std::string summary(bool &left) {
    Lines own = of_this_process(), rest;
    std::string text = own.text("");
    left = !own.live.empty();
    Reports others = reports();
    std::size_t shown = 0, more = 0;
    for (const Report &report : others.processes) {
        Lines lines;
        lines.add(report);
        if (lines.nothing())
            continue;
        left = left || !lines.live.empty();
        if (shown++ < most_shown) {
            text += heading(report) + lines.text("  ");
        } else {
            ++more;
            rest.add(report);
        }
    }
    if (more)
        text += "cuda_driver_sim: " + std::to_string(more) + " more processes:\n" + rest.text("  ");
    if (others.untold)
        text += "cuda_driver_sim: " + std::to_string(others.untold) + " more processes were not watched\n";
    return text;
}

}  // namespace sim

using namespace sim;

extern "C" SIM_EXPORT void cudaDriverSimAtEnd(int say, int exit_code) {
    ending_process.store(getpid());
    says.store(say != 0);
    code_when_left.store(exit_code);
}

extern "C" SIM_EXPORT void cudaDriverSimEnd(void) {
    if (ending_process.load() != getpid())
        return;
    bool left;
    std::string text = summary(left);
    for (std::size_t done = 0; says.load() && done < text.size();) {
        ssize_t count = write(STDERR_FILENO, text.data() + done, text.size() - done);
        if (count <= 0)
            break;
        done += std::size_t(count);
    }
    if (int code = code_when_left.load(); left && code) {
        report_end();
        std::fflush(nullptr);
        _exit(code);
    }
}
