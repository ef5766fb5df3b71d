// SPDX-License-Identifier: Apache-2.0
// Counting the live objects of the simulation.
#include "live.h"

#include "driver.h"
#include "graph.h"
#include "pool.h"

#include <algorithm>

namespace sim {

const char *const live_kind_names[live_kinds] = {
    "address_reservation", "physical_allocation", "mapping",           "device_allocation",     "host_allocation",
    "host_registration",   "managed_allocation",  "memory_pool",       "pool_allocation",       "pool_destroyed_in_use",
    "stream",              "event",               "graph",             "graph_exec",            "graph_allocation",
    "user_object",         "primary_context",     "context",
};

void with_live_objects(const UseCounts &use) {
    if (passing())
        return with_objects_in_front(use);
    Driver &d = driver();
    LiveCounts counts{};
    Lock lock(d.mutex);
    if (!forked()) {
        counts[LIVE_ADDRESS_RESERVATION] = d.reservations.size();
        counts[LIVE_PHYSICAL_ALLOCATION] = d.chunks.size();
        counts[LIVE_MAPPING] = d.mappings.size();
        counts[LIVE_DEVICE_ALLOCATION] = d.kinds_live[int(MemoryKind::Plain)];
        counts[LIVE_HOST_ALLOCATION] = d.kinds_live[int(MemoryKind::Host)];
        counts[LIVE_HOST_REGISTRATION] = d.kinds_live[int(MemoryKind::RegisteredHost)];
        counts[LIVE_MANAGED_ALLOCATION] = d.kinds_live[int(MemoryKind::Managed)];
        for (Pool *pool : d.pools)
            counts[LIVE_MEMORY_POOL] += !pool->is_default;
        for (auto &entry : d.pools_by_address)
            counts[LIVE_POOL_ALLOCATION] += entry.second->occupied;
        counts[LIVE_POOL_DESTROYED_IN_USE] = d.pools_destroyed_in_use;
        counts[LIVE_STREAM] = d.streams.size();
        counts[LIVE_EVENT] = d.events.size();
        counts[LIVE_GRAPH] = d.graphs.size();
        counts[LIVE_GRAPH_EXEC] = d.executable_graphs.size();
        counts[LIVE_GRAPH_ALLOCATION] =
            std::uint64_t(std::count_if(d.graph_blocks.begin(), d.graph_blocks.end(),
                                        [](auto &entry) { return entry.second->armed; }));
        counts[LIVE_USER_OBJECT] = d.user_objects.size();
        for (auto &device : d.devices)
            counts[LIVE_PRIMARY_CONTEXT] += device->retained != 0;
        for (Context *context : d.contexts)
            counts[LIVE_CONTEXT] += context->alive && !context->is_primary;
    }
    use(counts);
}

}  // namespace sim
