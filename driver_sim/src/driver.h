// SPDX-License-Identifier: Apache-2.0
// The objects of the simulated driver. All of them are guarded by one mutex, `driver().mutex`,
// except where a comment says otherwise. Handles that the program holds are addresses of objects;
// a handle is looked up before it is used, so that a stale one is refused and not followed.
#pragma once

#include "address_space.h"
#include "call.h"
#include "chunk_store.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sim {

using Address = std::uintptr_t;

// The version of CUDA that this driver says it is made for.
int reported_version();
constexpr std::size_t granule = std::size_t(2) << 20;  // of virtual memory management
constexpr std::size_t page_size = 4096;
constexpr int least_priority = 0, greatest_priority = -5;  // of streams
using Lock = std::unique_lock<std::mutex>;

struct Capture;
struct Context;
struct Device;
struct ExecutableGraph;
struct Graph;
struct GraphBlock;
struct Node;
struct Pool;
struct SharedEventPage;
struct Stream;
struct UserObject;

// --- work on streams --------------------------------------------------------------------------

// One recording of an event: done when the work in front of it has run.
struct Marker {
    bool done = false;
    double milliseconds = 0;
    std::shared_ptr<SharedEventPage> shared;
    std::uint64_t number = 0;  // of this recording among those of the shared event
    Stream *stream = nullptr;
    std::uint64_t order = 0;
    std::map<Stream *, std::uint64_t> behind;  // as of Stream, when it was recorded
};

enum class WorkKind { Memory, Set, Record, Wait, HostFunction, PoolFree, LaunchEnd };

struct Work {
    WorkKind kind = WorkKind::Memory;
    std::function<CUresult()> check;  // Set in a capture: what an instantiation looks at
    std::function<CUresult()> run;  // HostFunction runs on the callback thread, without the mutex
    std::shared_ptr<Marker> marker;  // Record: what to complete; Wait: what to wait for
    std::uint64_t order = 0;         // place in the order of all submissions
    std::shared_ptr<const void> keeps;  // what lasts until it has run or is dropped; let go with the mutex held
};

struct Stream {
    Context *context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    std::uint64_t id = 0;
    bool is_default = false;   // legacy or per-thread: cannot be destroyed
    bool is_legacy = false;
    bool running_host_function = false;
    bool destroyed = false;    // destroyed by the program while work was left
    std::deque<Work> queue;
    std::map<Stream *, std::uint64_t> behind;  // what it waits for: another stream, up to which order
    std::shared_ptr<Capture> capture;
    Touch last_use, last_boundary;  // the latter where it gets into a capture or out of it
    Touch last_keeping_launch;      // of a graph that keeps user objects
    Touch last_wait;                // that, or a question whether there is anything to wait for

    bool idle() const { return queue.empty() && !running_host_function; }
    bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct SharedEvent;

struct SharedEventPage {  // of an event that other processes can open
    SharedEvent *page = nullptr;
    int descriptor = -1;
    ~SharedEventPage();
};

struct Event {
    Context *context = nullptr;
    unsigned flags = 0;
    std::shared_ptr<Marker> recorded;
    std::shared_ptr<SharedEventPage> shared;
    bool captured = false;               // the last record was
    Stream *captured_on = nullptr;       // then; only compared
    std::weak_ptr<Capture> captured_in;
    std::vector<Node *> captured_behind;
};

// --- contexts and devices -----------------------------------------------------------------------

struct Context {
    Device *device = nullptr;
    std::uint64_t id = 0;
    unsigned flags = 0;
    bool alive = true;
    bool is_primary = false;
    CUresult fault = CUDA_SUCCESS;  // a sticky error: every later call on the context answers it
    Stream *legacy = nullptr;
    std::map<std::uint64_t, Stream *> per_thread;  // by thread number
    std::set<Context *> peers;
};

struct Device {
    int ordinal = 0;
    std::size_t total = 0;
    std::size_t used = 0;
    Context *primary = nullptr;  // null while not active
    Context *ended_primary = nullptr;  // the primary one that was reset last
    unsigned primary_flags = 0;
    unsigned retained = 0;
    Pool *default_pool = nullptr;
    Pool *current_pool = nullptr;
    std::size_t graph_used = 0, graph_reserved = 0;  // memory of graphs: what they need, what is taken for it
    std::size_t graph_idle_used = 0, graph_idle_reserved = 0;  // of them: of graphs that are gone, until a trim
    std::size_t graph_used_high = 0, graph_reserved_high = 0;

    bool take(std::size_t bytes) {
        if (bytes > total - used)
            return false;
        used += bytes;
        return true;
    }
    void give_back(std::size_t bytes) { used -= bytes; }
};

// --- memory ---------------------------------------------------------------------------------------

constexpr int max_devices = 16;

// Access rights, one entry for each device and one for the host.
struct Rights {
    std::uint8_t device[max_devices] = {};
    std::uint8_t host = 0;
};

struct Chunk {  // one physical allocation of virtual memory management
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    std::size_t size = 0;
    std::size_t offset = 0;  // in the chunk store, while it has no file of its own
    int descriptor = -1;     // of its own file, once it has been exported
    bool imported = false;   // the exporter has paid for the memory
    Device *device = nullptr;  // null when located at the host
    unsigned references = 0;   // what the program holds
    unsigned mappings = 0;
};

struct Mapping {
    Address base = 0;
    std::size_t size = 0;
    Chunk *chunk = nullptr;
    Rights rights;
};

struct Reservation {
    Address base = 0;
    std::size_t size = 0;
};

struct Advice {  // on managed memory
    bool read_mostly = false;
    CUmemLocation preferred{};
    CUmemLocation last_prefetch{};
    std::set<int> accessed_by;
};

enum class MemoryKind { Plain, Host, RegisteredHost, Managed };

struct Allocation {  // plain, pinned host, registered host and managed memory
    MemoryKind kind = MemoryKind::Plain;
    Address base = 0;
    std::size_t size = 0;
    Device *device = nullptr;
    Context *context = nullptr;
    unsigned flags = 0;
    std::uint64_t id = 0;
    Advice advice;
};

// --- the driver -------------------------------------------------------------------------------------

struct Driver {
    std::mutex mutex;
    std::condition_variable progress;  // some host function has returned

    std::vector<std::unique_ptr<Device>> devices;
    std::unordered_set<Context *> contexts;  // all that were ever made: few, and never freed
    std::unordered_set<Stream *> streams;    // made by the program; default streams are not in it
    Stream *recent_stream = nullptr;         // one of them that was looked up last, or null
    std::unordered_set<Event *> events;
    std::unordered_set<Graph *> graphs;
    std::unordered_set<ExecutableGraph *> executable_graphs;
    std::unordered_set<UserObject *> user_objects;
    std::map<Address, GraphBlock *> graph_blocks;

    AddressSpace virtual_space;  // reservations
    AddressSpace plain_space;    // plain, host and managed memory
    AddressSpace pool_space;     // pools
    std::map<Address, Reservation> reservations;
    std::map<Address, Mapping> mappings;
    std::unordered_map<CUmemGenericAllocationHandle, Chunk *> chunks;
    std::map<Address, Allocation> allocations;
    std::unordered_set<Address> freed_in_order;  // plain memory given to cuMemFreeAsync, see there
    bool has_pools = true;                       // as devices without them say otherwise
    bool has_rdma_for_virtual_memory = true;     // likewise
    bool keeps_old_rights = false;               // a new pool has the rights of the one destroyed last, as seen in the field
    Rights old_rights;
    std::unordered_set<Pool *> pools;            // whose handles are good
    std::map<Address, Pool *> pools_by_address;  // also destroyed ones with allocations left
    std::uint64_t pools_destroyed_in_use = 0;
    using PoolPlace = std::tuple<int, int, int>;  // allocation type, location type and number
    std::map<PoolPlace, Pool *> default_pools, current_pools;  // other than those of devices
    std::size_t kinds_live[4] = {};  // by MemoryKind
    std::size_t host_total = 0, host_used = 0;

    std::uint64_t next_id = 1;
    CUmemGenericAllocationHandle next_chunk = 0x10;

    Device *device(int ordinal) {
        return ordinal >= 0 && std::size_t(ordinal) < devices.size() ? devices[ordinal].get() : nullptr;
    }
};

// Never destroyed: driver calls can come after the destructors of this library have run.
extern Driver *const the_driver;
inline Driver &driver() { return *the_driver; }
ChunkStore &chunk_store();
bool forked();  // in the child of a fork that came after cuInit

// Keeps destroyed objects for a while, so that the address of a destroyed one is not at once the
// handle of a new one, and so that a stale handle can be told from one that never was any.
template <class T> struct Retired {
    static constexpr std::size_t kept = 4096;
    std::deque<T *> objects;
    std::unordered_set<const T *> known;
};

template <class T> Retired<T> &retired() {
    static auto &list = *new Retired<T>;
    return list;
}

template <class T> void retire(T *object) {
    Retired<T> &list = retired<T>();
    list.objects.push_back(object);
    list.known.insert(object);
    if (list.objects.size() > Retired<T>::kept) {
        list.known.erase(list.objects.front());
        delete list.objects.front();
        list.objects.pop_front();
    }
}

template <class T> bool was_destroyed(const T *object) { return retired<T>().known.count(object) != 0; }

// --- contexts (context.cpp) ---

Context *current_context();
CUresult usable_context(Context *&context);  // INVALID_CONTEXT, CONTEXT_IS_DESTROYED, a sticky error
Context *primary_context(Device &device);    // made active when it is not
std::uint64_t thread_number();

// --- streams (stream.cpp, work_queue.cpp) ---

// Using the legacy stream would wait for blocking streams, which a capturing one cannot allow: that breaks the
// capture, and only asking whether it is capturing does not.
enum class LegacyUse { Used, Asked };
CUresult resolve_stream(CUstream handle, Stream *&stream, LegacyUse use = LegacyUse::Used);
CUresult find_stream(CUstream handle, Stream *&stream, LegacyUse use = LegacyUse::Used);  // which is no use of it
void note_use(Stream &stream);  // by the call of this thread
CUresult bad_stream(const Stream *stream);  // what a handle that names no stream is answered with
CUresult default_stream(Stream *&stream);  // of the current context, legacy or per-thread
Stream *legacy_stream(Context &context);
Stream *per_thread_stream(Context &context);

CUresult submit(Lock &lock, Stream &stream, Work work);
std::uint64_t next_order();  // that work submitted next will have
bool ordered_behind(const Stream &stream, Stream &other, std::uint64_t order);
void wait_for_stream(Lock &lock, Stream &stream);
void wait_for_marker(Lock &lock, const std::shared_ptr<Marker> &marker);
void wait_for_context(Lock &lock, Context &context);
bool blocking_streams_idle(Context &context);
bool work_is_queued();  // whether what is submitted now may run later
void forget_work(Context &context);  // of a context that ends
void go_on(Lock &lock);              // with what may have become free to run
void run_everything(Lock &lock);
void hold_work(Lock &lock, bool hold);
// The thread that calls them is started before anything is queued for it; throws std::system_error.
void start_host_thread();
void call_on_host_thread(std::function<CUresult()> call);
std::size_t pick(std::size_t count);  // 0, or any number below `count` while work is interleaved
void interleave_work(bool on, std::uint64_t seed);

// --- capture (capture.cpp) ---

// For calls that must not happen while this thread, or in the global mode any thread, captures: refuses
// them and invalidates the captures.
CUresult check_capture_allows();
// The same for calls that wait for all work of a context, in any mode.
CUresult check_no_capture_in(Context &context);
// The same for asking or waiting for one stream: in any mode if it is the capturing one.
CUresult check_wait_for(Stream &stream);
CUresult check_legacy_allowed(Context &context, bool invalidate);
// For the few questions about a stream that its capture does not survive.
CUresult check_not_capturing(Stream &stream);
// Refuses what a broken capture refuses, down to copies of nothing.
CUresult check_capture_whole(const Stream &stream);
CUresult capture_work(Stream &stream, Work work);
CUresult capture_record(Stream &stream, Event &event);
CUresult capture_wait(Stream &stream, Event &event);

// --- events (event.cpp) ---

void retire_event(Event *event);
CUresult bad_event(const Event *event);  // what a handle that names no event is answered with

// --- events of several processes (event_sharing.cpp) ---

CUresult share_event(Event &event);
std::uint64_t shared_submit(SharedEventPage &shared);
void shared_complete(SharedEventPage &shared, std::uint64_t number);
bool shared_done(const SharedEventPage &shared);
void wait_for_shared(Lock &lock, std::shared_ptr<SharedEventPage> shared);

// --- memory (memory_lookup.cpp) ---

enum class PlaceKind { Unknown, Plain, Host, Registered, Managed, Virtual, Pool, Graph };

struct Place {  // what an address belongs to
    PlaceKind kind = PlaceKind::Unknown;
    Address base = 0;       // of the allocation, mapping or pool allocation
    std::size_t size = 0;
    Device *device = nullptr;
    Allocation *allocation = nullptr;
    Mapping *mapping = nullptr;
    Pool *pool = nullptr;
    bool freed = false;     // the free has been submitted and waits in a queue
    std::uint64_t id = 0;
};

// Sets, copies on a side that may be host memory, and copies on a side that is device memory.
enum class Use { Write, CopyRead, CopyWrite, DeviceRead, DeviceWrite };

Place place_of(Address address);
bool in_our_space(Address address);
bool our_space_in(Address address, std::size_t bytes);  // whether the range has any of it
// Whether work of `context` may use the bytes; pageable host memory is fine for copies only.
CUresult check_use(Address address, std::size_t bytes, Context &context, Use use, bool captured = false);
// Whether the bytes are still there, and accessible, when the work of `context` that uses them runs.
bool still_there(Address address, std::size_t bytes, const Context &context, bool write);
bool is_pageable(Address address);

// --- virtual memory (virtual_memory.cpp) ---

Mapping *mapping_at(Address address);
Reservation *reservation_at(Address address);
bool map_chunk(const Chunk &chunk, Address base);

// --- plain and host memory (plain_memory.cpp) ---

CUresult allocate_memory(MemoryKind kind, std::size_t bytes, Context &context, unsigned flags, Address &base);
void end_memory(std::map<Address, Allocation>::iterator allocation);
void end_memory_of(Context &context);
CUresult free_plain_in_order(Lock &lock, Stream &stream, Address base);

// --- pools (pool.cpp) ---

void synchronised();  // after a wait: pools return what is above their threshold
void destroy_pool(Pool &pool);

}  // namespace sim
