// SPDX-License-Identifier: Apache-2.0
// What the program has made and not given back, by kind.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace sim {

enum LiveKind {
    LIVE_ADDRESS_RESERVATION,
    LIVE_PHYSICAL_ALLOCATION,
    LIVE_MAPPING,
    LIVE_DEVICE_ALLOCATION,
    LIVE_HOST_ALLOCATION,
    LIVE_HOST_REGISTRATION,
    LIVE_MANAGED_ALLOCATION,
    LIVE_MEMORY_POOL,
    LIVE_POOL_ALLOCATION,
    LIVE_POOL_DESTROYED_IN_USE,  // counted for good: drivers crash later
    LIVE_STREAM,
    LIVE_EVENT,
    LIVE_GRAPH,
    LIVE_GRAPH_EXEC,
    LIVE_GRAPH_ALLOCATION,
    LIVE_USER_OBJECT,
    LIVE_PRIMARY_CONTEXT,
    LIVE_CONTEXT,
    live_kinds
};

extern const char *const live_kind_names[live_kinds];

using LiveCounts = std::array<std::uint64_t, live_kinds>;
using UseCounts = std::function<void(const LiveCounts &)>;

// Counts, and calls `use` while nothing can change. Nothing is live in the child of a fork: it is the parent's.
void with_live_objects(const UseCounts &use);
void with_objects_in_front(const UseCounts &use);  // as seen from in front of a real driver

}  // namespace sim
