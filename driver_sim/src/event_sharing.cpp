// SPDX-License-Identifier: Apache-2.0
// Events between processes. Such an event keeps its state in a page that both processes map; the handle
// names the descriptor of that page in the process that made the event.
#include "graph.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <string>

namespace sim {

struct SharedEvent {
    char mark[16];
    std::uint64_t identity;
    std::atomic<pid_t> recorder;  // the process that has recorded it last
    std::atomic<std::uint64_t> submitted, done;  // recordings, of all processes
};

namespace {

constexpr char mark[16] = "cuda-sim-event1";

struct Ticket {
    char mark[16];
    std::uint64_t identity;  // a descriptor can have become another file's
    pid_t process;
    int descriptor;
};
static_assert(sizeof(Ticket) <= sizeof(CUipcEventHandle));

SharedEvent *map_page(int descriptor) {
    void *p = mmap(nullptr, page_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return p == MAP_FAILED ? nullptr : static_cast<SharedEvent *>(p);
}

}  // namespace

SharedEventPage::~SharedEventPage() {
    munmap(page, page_size);
    close(descriptor);
}

CUresult share_event(Event &event) {
    int descriptor = memfd_create("cuda-driver-sim-event", MFD_CLOEXEC);
    std::uint64_t identity;
    SharedEvent *page = nullptr;
    if (descriptor >= 0 && ftruncate(descriptor, off_t(page_size)) == 0 &&
        getrandom(&identity, sizeof identity, 0) == ssize_t(sizeof identity))
        page = map_page(descriptor);
    if (!page) {
        if (descriptor >= 0)
            close(descriptor);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    std::memcpy(page->mark, mark, sizeof mark);
    page->identity = identity;
    event.shared = std::make_shared<SharedEventPage>();
    event.shared->page = page;
    event.shared->descriptor = descriptor;
    return CUDA_SUCCESS;
}

std::uint64_t shared_submit(SharedEventPage &shared) {
    shared.page->recorder.store(getpid());
    return shared.page->submitted.fetch_add(1) + 1;
}

void shared_complete(SharedEventPage &shared, std::uint64_t number) {
    std::uint64_t done = shared.page->done.load();
    while (done < number && !shared.page->done.compare_exchange_weak(done, number)) {
    }
}

// The work of a process ends with it. What it has recorded last would never be done.
static bool recorder_is_gone(const SharedEventPage &shared) {
    pid_t recorder = shared.page->recorder.load();
    if (recorder == 0 || recorder == getpid())
        return false;
    // One that has ended and has not been waited for by its parent still has a number, and no memory.
    char first;
    std::string path = "/proc/" + std::to_string(recorder) + "/cmdline";
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT;
    bool empty = read(file, &first, 1) == 0;
    close(file);
    return empty;
}

bool shared_done(const SharedEventPage &shared) {
    return shared.page->done.load() >= shared.page->submitted.load() || recorder_is_gone(shared);
}

// What another process has recorded is done there: all that can be done here is to look again.
void wait_for_shared(Lock &lock, std::shared_ptr<SharedEventPage> shared) {
    std::uint64_t wanted = shared->page->submitted.load();
    for (unsigned looks = 0; shared->page->done.load() < wanted; ++looks) {
        if (looks % 1000 == 0 && recorder_is_gone(*shared))
            return shared_complete(*shared, wanted);
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        lock.lock();
    }
}

DRIVER_CALL("cuIpcGetEventHandle", cuIpcGetEventHandle, 4010, (CUipcEventHandle * pHandle, CUevent event),
            (pHandle, event)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    auto *e = reinterpret_cast<Event *>(event);
    if (!d.events.count(e))
        return bad_event(e);
    if (!pHandle || !(e->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    Ticket ticket{};
    std::memcpy(ticket.mark, mark, sizeof mark);
    ticket.identity = e->shared->page->identity;
    ticket.process = getpid();
    ticket.descriptor = e->shared->descriptor;
    std::memset(pHandle, 0, sizeof *pHandle);
    std::memcpy(pHandle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

// Partly: the other process must be one whose descriptors `/proc` lets this one open.
DRIVER_CALL("cuIpcOpenEventHandle", cuIpcOpenEventHandle, 4010, (CUevent * phEvent, CUipcEventHandle handle),
            (phEvent, handle)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    Ticket ticket;
    std::memcpy(&ticket, &handle, sizeof ticket);
    if (!phEvent || std::memcmp(ticket.mark, mark, sizeof mark) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    std::string path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.descriptor);
    int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    struct stat file;
    bool can_be = fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_size == off_t(page_size);
    SharedEvent *page = can_be ? map_page(descriptor) : nullptr;
    if (!page || std::memcmp(page->mark, mark, sizeof mark) != 0 || page->identity != ticket.identity) {
        if (page)
            munmap(page, page_size);
        close(descriptor);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    auto *event = new Event;
    event->context = context;
    event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    event->shared = std::make_shared<SharedEventPage>();
    event->shared->page = page;
    event->shared->descriptor = descriptor;
    d.events.insert(event);
    *phEvent = reinterpret_cast<CUevent>(event);
    return CUDA_SUCCESS;
}

}  // namespace sim
