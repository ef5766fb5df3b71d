# SPDX-License-Identifier: Apache-2.0
"""The queue of releases that wait behind a stream, and the reaper thread that makes them.

The reaper is a thread of C code. It never takes the GIL and runs no Python; what it could not return it reports through
a pending call of the main thread. Jobs that wait for the same stream are a group, of which the first is asked. The
groups are asked in turn, so that a long one holds up no other, and a new job is asked before them: what it costs to
queue one does not grow with what is waiting. Nothing is done to a stream that is being captured.

A job owns what it holds: from the moment it is queued, no buffer does. What the driver refuses stays with the queue and
is tried again after a later release that succeeded, and where an allocation is short of memory; of a collection it is
only counted.
"""

import atexit
import warnings

from cuda.bindings cimport cydriver
from libc.errno cimport EAGAIN, ENOMEM
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport strncpy, strrchr
from libcpp.atomic cimport atomic, memory_order_relaxed

from cuda.core._context cimport context_is_gone
from cuda.core._driver cimport error_for, is_finalizing, is_hopeless
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._interrupts cimport has_come, raise_what_has_come
from cuda.core._memory._lost_contexts cimport describe_place, first_report_of, number_of, place_of
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_cond_broadcast,
    pthread_cond_init,
    pthread_cond_t,
    pthread_cond_timedwait,
    pthread_cond_wait,
    pthread_create,
    pthread_join,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    pthread_t,
    timespec,
)
from cuda.core._stream_handle cimport (
    STREAM_SET,
    StreamHandle,
    ask_whether_captured,
    drop_stream,
    is_of_capture,
    release_stream,
    retain_stream,
    stream_is_idle,
)

from cuda.core._errors import CUDAWarning

__all__ = ["drain"]

cdef extern from "<time.h>" nogil:
    int clock_gettime(int, timespec*)
    int CLOCK_REALTIME
    int CLOCK_MONOTONIC

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil

cdef extern from *:
    """
    #define cuda_core_type_name(object) (Py_TYPE(object)->tp_name)
    """
    const char* _type_name "cuda_core_type_name"(object) noexcept

cdef int _LIMIT = 1024  # how many jobs may be queued before an explicit close waits for older ones
cdef long long _ATTENTION = 10000000  # nanoseconds after which a wait looks whether signals have come

cdef pthread_mutex_t _mutex
cdef pthread_cond_t _changed
cdef pthread_t _thread
cdef bint _running = False
cdef atomic[int] _stopping
cdef bint _ended = False        # the reaper has left its loop
cdef int _in_driver = 0         # the reaper is giving something back at this moment
cdef Job* _jobs = NULL          # waiting, oldest first
cdef Job* _last = NULL
cdef Job* _stuck = NULL         # refused; kept until they are tried again
cdef Job* _lost = NULL          # of dead contexts; told of and forgotten
cdef Job* _ended_jobs = NULL    # made; Python keeps their streams alive and has to let them go
cdef long _job_count = 0
cdef Job* _given_up = NULL      # refused, and never tried again; kept so that they are counted
cdef atomic[long] _given_up_count
cdef atomic[long] _stuck_count  # changed under the mutex, looked at without it
cdef long _releases_seen = 0    # since the stuck ones were tried last
cdef long _patience = 1         # how many to let pass before the next try: what is refused for good must not cost much
cdef Job* _known = NULL         # every release that is waiting or refused, also those in the reaper's hands
cdef QueueObserver _observer = NULL
cdef atomic[int] _in_vain       # the last moment that was given to the reaper was not enough
cdef long _blocked_count = 0    # of the waiting ones, how many were found behind a capture or a failure to ask


cdef void _init_locks() noexcept nogil:
    pthread_mutex_init(&_mutex, NULL)
    pthread_cond_init(&_changed, NULL)


cdef void _before_fork() noexcept nogil:
    pthread_mutex_lock(&_mutex)


cdef void _after_fork_in_parent() noexcept nogil:
    pthread_mutex_unlock(&_mutex)


cdef void _after_fork_in_child() noexcept nogil:
    """The reaper is not in the child, and the jobs are the parent's: forget them."""
    global _running, _jobs, _last, _stuck, _given_up, _lost, _ended_jobs, _job_count, _blocked_count, _in_driver
    global _known, _observer
    _init_locks()
    _known = NULL
    _observer = NULL
    _running = False
    _jobs = NULL
    _last = NULL
    _stuck = NULL
    _given_up = NULL
    _lost = NULL
    _ended_jobs = NULL
    _job_count = _blocked_count = _in_driver = 0
    _in_vain.store(0)
    _stuck_count.store(0)
    _given_up_count.store(0)


_init_locks()
if pthread_atfork(_before_fork, _after_fork_in_parent, _after_fork_in_child) != 0:
    raise MemoryError("no memory for fork handlers")


cdef void _sleep(long nanoseconds) noexcept nogil:
    """Wait for a change, at most this long. The mutex is held."""
    cdef timespec until
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_nsec += nanoseconds
    until.tv_sec += until.tv_nsec // 1000000000
    until.tv_nsec = until.tv_nsec % 1000000000
    pthread_cond_timedwait(&_changed, &_mutex, &until)


cdef long long _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000000000 + now.tv_nsec


# --- the reaper ---------------------------------------------------------------------------------------------------

cdef struct Refusal:
    uint64_t serial
    uintptr_t pointer
    size_t size
    Failure failure
    size_t place
    unsigned long long context_id
    bint once


cdef bint _next_refusal(Refusal* told) noexcept nogil:
    """Copy the facts of one stuck job that was not told of yet. False where there is none."""
    cdef Job* job
    pthread_mutex_lock(&_mutex)
    job = _stuck
    while job != NULL and job.told:
        job = job.next
    if job == NULL:
        job = _given_up
        while job != NULL and job.told:
            job = job.next
    if job != NULL:
        job.told = True
        _copy_facts(job, told)
    pthread_mutex_unlock(&_mutex)
    return job != NULL


cdef void _copy_facts(Job* job, Refusal* told) noexcept nogil:
    told.serial, told.pointer, told.size = job.serial, job.pointer, job.size
    told.failure, told.place, told.once = job.failure, job.place, job.once
    told.context_id = job.context_id


cdef Job* _pop(Job** jobs) noexcept nogil:
    cdef Job* job
    pthread_mutex_lock(&_mutex)
    job = jobs[0]
    if job != NULL:
        jobs[0] = job.next
    pthread_mutex_unlock(&_mutex)
    return job


cdef int _tell(Refusal* told, bint lost) noexcept:
    """Warn of one. Where warnings are errors this one is printed, and the others have their turn all the same."""
    error = error_for(told.failure.result, told.failure.function)
    text = f"queued release of buffer #{told.serial}, {told.size} bytes at {<size_t>told.pointer:#x}, failed: {error}."
    if lost:
        where = describe_place(told.place)
        text += f" It is lost, like everything of {where}; further buffers of {where} are not reported."
    else:
        text += " It stays allocated." if told.once else " It stays allocated until a later attempt succeeds."
    warnings.warn(text, CUDAWarning, stacklevel=1)
    return 0


cdef int _settle(void* unused) noexcept:
    """Do what the reaper has left to Python: tell of what it could not return, let streams go that Python keeps alive.

    A pending call: the main thread makes it. No lock is held while anything is told or let go, since both may come back
    into this library.
    """
    cdef Refusal told
    cdef Job* job
    if is_finalizing():
        return 0
    while True:
        job = _pop(&_ended_jobs)
        if job == NULL:
            break
        drop_stream(job.order)
        free(job)
    while True:
        job = _pop(&_lost)
        if job == NULL:
            break
        _copy_facts(job, &told)
        discard_job(job)
        if first_report_of(told.place, told.context_id):
            _tell(&told, True)
    while _next_refusal(&told):
        _tell(&told, False)
    return 0


cdef bint _has_owner(StreamHandle* handle) noexcept nogil:
    cdef int member
    if handle == NULL:
        return False
    for member in range(handle.member_count):
        if handle.members[member].owner != NULL:
            return True
    return handle.owner != NULL


cdef bint _belongs_to(StreamHandle* order, cydriver.CUcontext context) noexcept nogil:
    """Whether a stream, and of a set each, is one of this context."""
    cdef int member
    if order.kind != STREAM_SET:
        return order.context == context
    for member in range(order.member_count):
        if order.members[member].context != context:
            return False
    return True


cdef bint _try_job(Job* job, bint* blocked) noexcept nogil:
    """Make one release if its streams are done. True when the job has ended, well or not."""
    global _in_driver
    cdef bint idle = True, stopping
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = NULL
    cdef Readiness readiness
    blocked[0] = False
    job.failure.function = NULL
    if job.context != NULL and context_is_gone(job.context, job.context_id):
        job.lost = True
        job.failure.result, job.failure.function = cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED, b"cuCtxGetId"
        return True
    if job.may_be_done != NULL:
        readiness = job.may_be_done(job.data)
        idle = readiness == READY
        blocked[0] = readiness == BLOCKED
    elif job.order != NULL:
        result = ask_whether_captured(job.order, blocked, &function)
        if blocked[0]:
            return False  # until the capture ends, which may be up to a thread that waits for memory
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = stream_is_idle(job.order, &idle, &function)
        if is_hopeless(result):
            idle = True  # nothing runs there any more, so there is nothing to wait for
            if job.context != NULL and _belongs_to(job.order, job.context):
                job.lost = True
                job.failure.result, job.failure.function = result, function
                return True
        elif result != cydriver.CUresult.CUDA_SUCCESS:
            blocked[0] = True
            idle = False
    if not idle:
        return False
    pthread_mutex_lock(&_mutex)
    stopping = _stopping.load() != 0
    _in_driver = not stopping
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)
    if stopping:
        return False
    if job.may_be_done != NULL:
        job.give_back(job.data, &job.failure)  # and nothing is left of the data
    elif job.give_back(job.data, &job.failure):
        job.discard(job.data, NULL)  # here, and not under the mutex: it may destroy a pool
    elif is_of_capture(job.failure.result):
        job.failure.function = NULL
        blocked[0] = True  # by a capture that has begun since it was asked
    else:
        # Memory of a context that is gone is an address that the driver does not know.
        job.lost = is_hopeless(job.failure.result) or (
            job.context != NULL and context_is_gone(job.context, job.context_id)
        )
    pthread_mutex_lock(&_mutex)
    _in_driver = 0
    pthread_mutex_unlock(&_mutex)
    return not blocked[0]


cdef bint _waits_for_the_same(Job* one, Job* other) noexcept nogil:
    """Whether two jobs may always be made at the same time: they ask the same stream, and the same context."""
    return (
        one.may_be_done == NULL
        and other.may_be_done == NULL
        and one.order == other.order
        and one.context == other.context
        and one.context_id == other.context_id
    )


# What was asked and must wait, by what it waits for. In the hands of the reaper alone.
cdef struct Groups:
    Job* first
    Job* last
    long count


cdef void _add_group(Groups* groups, Job* first) noexcept nogil:
    first.next_group = NULL
    if groups.first == NULL:
        groups.first = first
    else:
        groups.last.next_group = first
    groups.last = first
    groups.count += 1


cdef void _unlink_group(Groups* groups, Job* before, Job* first) noexcept nogil:
    """Take a group out. ``before`` is the group before it, NULL for none."""
    if before == NULL:
        groups.first = first.next_group
    else:
        before.next_group = first.next_group
    if groups.last == first:
        groups.last = before
    groups.count -= 1


cdef Job* _take_group_for(Groups* groups, Job* job) noexcept nogil:
    """Put a job that was not asked yet behind those that wait for the same, and take that group out."""
    cdef Job* before = NULL
    cdef Job* first = groups.first
    job.next = NULL
    while first != NULL and not _waits_for_the_same(first, job):
        before, first = first, first.next_group
    if first == NULL:
        job.last_in_group = job
        job.in_group, job.blocked_in_group = 1, 0
        return job
    _unlink_group(groups, before, first)
    first.last_in_group.next = job
    first.last_in_group = job
    first.in_group += 1
    return first


cdef void _settle_job(Job* job) noexcept nogil:
    """Put a job where it belongs that was made or refused. If it stood for a group, another one does from now on."""
    global _job_count, _blocked_count, _lost, _ended_jobs
    if not _has_owner(job.order):
        release_stream(job.order)
        job.order = NULL
    pthread_mutex_lock(&_mutex)
    _job_count -= 1
    _blocked_count -= job.blocked_in_group
    _in_vain.store(0)
    if job.failure.function == NULL:
        _forget_job(job, CHANGE_RETURNED)
        if job.order == NULL:
            free(job)
        else:
            job.next = _ended_jobs
            _ended_jobs = job
            Py_AddPendingCall(_settle, NULL)
    elif job.lost:
        _forget_job(job, CHANGE_JOB_LOST)
        job.next = _lost
        _lost = job
        Py_AddPendingCall(_settle, NULL)
    else:
        _add_stuck(job)
        Py_AddPendingCall(_settle, NULL)
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)


cdef bint _try_group(Groups* groups, Job* first) noexcept nogil:
    """Make the releases of a group that was taken out, as long as they can be made. True if there was any.

    What is left of it is put behind the others.
    """
    global _blocked_count
    cdef bint blocked = False, any_ = False
    cdef Job* heir
    cdef long counted
    while first != NULL:
        if _stopping.load() or not _try_job(first, &blocked):
            counted = first.in_group if blocked else 0
            pthread_mutex_lock(&_mutex)
            _blocked_count += counted - first.blocked_in_group
            pthread_cond_broadcast(&_changed)
            pthread_mutex_unlock(&_mutex)
            first.blocked_in_group = counted
            _add_group(groups, first)
            break
        any_ = True
        heir = first.next
        if heir != NULL:
            heir.last_in_group, heir.in_group, heir.blocked_in_group = first.last_in_group, first.in_group - 1, 0
        _settle_job(first)
        first = heir
    return any_


cdef bint _something_is_new() noexcept nogil:
    cdef bint new
    pthread_mutex_lock(&_mutex)
    new = _jobs != NULL or _stopping.load()
    pthread_mutex_unlock(&_mutex)
    return new


cdef long _ask_groups(Groups* groups, long left, bint* ended) noexcept nogil:
    """Ask for so many groups, the one first that was asked longest ago. Return how many are left when something is new.

    However many there are, whoever waits for a new one does not wait for them.
    """
    cdef Job* first
    left = min(left, groups.count)
    while left:
        left -= 1
        first = groups.first
        _unlink_group(groups, NULL, first)
        if _try_group(groups, first):
            ended[0] = True
        if left and _something_is_new():
            break
    return left


cdef void* _reap(void* unused) noexcept nogil:
    global _ended, _jobs, _last
    cdef Groups groups
    cdef Job* job
    cdef Job* following
    cdef long pause = 50000
    cdef long long due = 0     # when the groups are asked again
    cdef long left = 0         # of the groups that are being asked; what is new comes between
    cdef bint ended
    groups.first = groups.last = NULL
    groups.count = 0
    pthread_mutex_lock(&_mutex)
    while not _stopping.load():
        if _jobs == NULL and groups.first == NULL:
            pthread_cond_wait(&_changed, &_mutex)
            pause, due, left = 50000, 0, 0
            continue
        # Take the list, so that the streams are asked without the lock; new jobs gather behind.
        job = _jobs
        _jobs = NULL
        _last = NULL
        pthread_mutex_unlock(&_mutex)
        ended = False
        while job != NULL and not _stopping.load():
            following = job.next
            if _try_group(&groups, _take_group_for(&groups, job)):
                ended = True
            job = following
        # Each is asked once between two pauses, or new ones that come without a pause would have all of them asked
        # without one.
        if ended or (left == 0 and _now() >= due):
            left = groups.count
        if left:
            left = _ask_groups(&groups, left, &ended)
            if ended:
                pause, due = 50000, 0
            elif left == 0:
                due = _now() + pause
                pause = min(pause * 2, 2000000 + 20000 * groups.count)  # many are asked less often: each is some calls
        pthread_mutex_lock(&_mutex)
        if groups.first != NULL and _jobs == NULL and not ended and left == 0 and not _stopping.load():
            pthread_cond_broadcast(&_changed)
            _sleep(min(max(due - _now(), 1000), 2000000))
    _ended = True
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)
    return NULL


# --- the queue ----------------------------------------------------------------------------------------------------

cdef Job* new_job(JobFunction give_back, JobFunction discard, void* data, Record record,
                  StreamHandle* order) except NULL:
    """Make a job for what a record owns, behind a stream. It is told of by the record's facts."""
    cdef Job* job = <Job*>calloc(1, sizeof(Job))
    cdef const char* name
    cdef const char* dot
    if job == NULL:
        raise MemoryError("no memory for a queued release")
    job.give_back = give_back
    job.discard = discard
    job.data = data
    job.order = retain_stream(order)
    job.serial, job.pointer, job.size = record.serial, record.pointer, record.size
    job.place = place_of(record)
    job.context_id = number_of(record, job.place)
    if record.resource is not None:
        name = _type_name(record.resource)  # not asked of Python: a release needs no memory of its
        dot = strrchr(name, 46)
        strncpy(job.resource, name if dot == NULL else dot + 1, sizeof(job.resource) - 1)
    return job


cdef void discard_job(Job* job) noexcept nogil:
    """Forget a job that is not queued, with what it holds."""
    release_stream(job.order)
    job.discard(job.data, NULL)
    free(job)


cdef int _start_reaper() noexcept nogil:
    """Start the reaper if it is not running; return why it could not be started. The mutex is held.

    At exit no other is started: what is queued then is abandoned, and nobody waits for it.
    """
    global _running
    cdef int failed = 0
    if not _running and not _stopping.load():
        failed = pthread_create(&_thread, NULL, _reap, NULL)
        _running = failed == 0
    return failed


cdef void observe_queue(QueueObserver observer) noexcept nogil:
    """Have an observer told of queued releases, by their serial numbers; it may only write down. NULL: nobody."""
    global _observer
    pthread_mutex_lock(&_mutex)
    _observer = observer
    pthread_mutex_unlock(&_mutex)


cdef void _know_job(Job* job, QueueChange change) noexcept nogil:
    """Count a release among those that the queue answers for, and tell of it. The mutex is held."""
    global _known
    if not job.serial:
        return  # not the release of a buffer
    if not job.known:
        job.known = True
        job.known_before = NULL
        job.known_next = _known
        if _known != NULL:
            _known.known_before = job
        _known = job
    if _observer != NULL:
        _observer(job.serial, change)


cdef void _forget_job(Job* job, QueueChange change) noexcept nogil:
    """The opposite: it has ended. The mutex is held."""
    global _known
    if not job.known:
        return
    job.known = False
    if job.known_before != NULL:
        job.known_before.known_next = job.known_next
    else:
        _known = job.known_next
    if job.known_next != NULL:
        job.known_next.known_before = job.known_before
    if _observer != NULL:
        _observer(job.serial, change)


cdef void _append(Job* job) noexcept nogil:
    """Put a job behind the waiting ones. The mutex is held."""
    global _jobs, _last, _job_count
    job.standing = WAITING
    _know_job(job, CHANGE_QUEUED)
    job.next = NULL
    if _last == NULL:
        _jobs = job
    else:
        _last.next = job
    _last = job
    _job_count += 1


cdef void _add_stuck(Job* job) noexcept nogil:
    """Keep a job that was refused. The mutex is held."""
    global _stuck, _given_up, _patience
    job.standing = GIVEN_UP if job.once else REFUSED
    _know_job(job, CHANGE_REFUSED)
    if job.once:
        job.next = _given_up
        _given_up = job
        _given_up_count.fetch_add(1)
        return
    if not job.tried:
        job.tried = True
        _patience = 1
    job.next = _stuck
    _stuck = job
    _stuck_count.fetch_add(1)


cdef int enqueue(Job* job) except -1:
    """Queue a job and start the reaper if it is not running. The job then belongs to the queue."""
    cdef int failed
    with nogil:
        pthread_mutex_lock(&_mutex)
        failed = _start_reaper()
        if not failed:
            _append(job)
            pthread_cond_broadcast(&_changed)
        pthread_mutex_unlock(&_mutex)
    if failed:
        raise OSError(failed, "the thread that makes queued releases could not be started")
    return 0


cdef int append_question(JobQuestion may_be_done, JobFunction do, void* data) noexcept nogil:
    """Queue what is not the release of a buffer: ``do`` is called, once, when ``may_be_done`` says so.

    Returns 0, or why it could not be queued. What cannot be done is the function's own business.
    """
    cdef Job* job = <Job*>calloc(1, sizeof(Job))
    cdef int failed = ENOMEM
    if job == NULL:
        return failed
    job.may_be_done, job.give_back, job.data = may_be_done, do, data
    pthread_mutex_lock(&_mutex)
    failed = EAGAIN if _stopping.load() else _start_reaper()
    if not failed:
        _append(job)
        pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)
    if failed:
        free(job)
    return failed


cdef void keep_refused(Job* job) noexcept nogil:
    """Take over a job that was refused already, and told of by the caller. It is tried again with the others."""
    job.told = True
    pthread_mutex_lock(&_mutex)
    _add_stuck(job)
    pthread_mutex_unlock(&_mutex)


cdef bint has_stuck() noexcept nogil:
    """Whether anything was refused. Costs a look at a number, so that every release can ask."""
    return _stuck_count.load(memory_order_relaxed) != 0


cdef void retry_stuck(bint at_once) noexcept nogil:
    """Let the reaper try once more what was refused. Nothing waits for it.

    Called after releases that succeeded: the first of them is a sign that the driver gives memory back again. Where it
    still does not, twice as many pass before the next attempt.
    """
    global _stuck, _releases_seen, _patience
    cdef Job* job
    pthread_mutex_lock(&_mutex)
    _releases_seen += 1
    if (at_once or _releases_seen >= _patience) and not _stopping.load() and _start_reaper() == 0:
        _releases_seen = 0
        _patience = min(2 * _patience, 1024)
        while _stuck != NULL:
            job = _stuck
            _stuck = job.next
            _stuck_count.fetch_sub(1)
            _append(job)
        pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)


cdef bint _wait_while_more_than(long jobs, long long until) noexcept nogil:
    """Wait until no more jobs are queued than these, or all of them are blocked; at most until then. True if so."""
    cdef bint more
    pthread_mutex_lock(&_mutex)
    while True:
        more = _job_count > jobs and _running and _blocked_count < _job_count
        if not more or _now() >= until:
            break
        _sleep(1000000)
    pthread_mutex_unlock(&_mutex)
    return not more


cdef int wait_for_room() except -1:
    """Wait, without the GIL, until fewer jobs are queued than the bound.

    What the handlers of signals raise comes out. The caller has not begun anything yet.
    """
    cdef bint there_is
    while True:
        with nogil:
            there_is = _wait_while_more_than(_LIMIT - 1, _now() + _ATTENTION)
        if there_is:
            return 0
        raise_what_has_come()


cdef void wait_a_moment() noexcept:
    """Give the reaper a few milliseconds to empty the queue. It is a courtesy and has a bound, whatever runs.

    Where it was in vain, no other is given before something was returned: many buffers that are dropped behind work in
    flight do not each wait for it.
    """
    if _in_vain.load():
        return
    with nogil:
        if not _wait_while_more_than(0, _now() + 20000000):
            _in_vain.store(1)


cdef bint drain_for_memory() noexcept nogil:
    """Wait until every queued release is made that can be. True if there was any.

    What waits behind a capture is not waited for: its stream may be captured by this very thread. What was refused
    before is tried once more. What a handler of a signal raises ends the wait, and is raised behind the allocation.
    """
    cdef bint any_ = False, interrupted = False
    if has_stuck():
        retry_stuck(True)
    while not interrupted and not _wait_while_more_than(0, 0):
        any_ = True
        if not _wait_while_more_than(0, _now() + _ATTENTION):
            with gil:
                interrupted = has_come()
    return any_


cpdef dict queue_counts():
    """Return how many releases are queued, and how many could not be made."""
    cdef long jobs
    with nogil:
        pthread_mutex_lock(&_mutex)
        jobs = _job_count
        pthread_mutex_unlock(&_mutex)
    return {"queued": jobs, "stuck": _stuck_count.load() + _given_up_count.load()}


cdef struct _Copy:
    uint64_t serial
    uintptr_t pointer
    size_t size
    size_t place
    JobStanding standing
    char resource[48]


cdef long _copy_known(_Copy* copies, long room) noexcept nogil:
    """Copy what is known of each release, as far as there is room; return how many there are."""
    cdef long count = 0
    cdef Job* job
    pthread_mutex_lock(&_mutex)
    job = _known
    while job != NULL:
        if count < room:
            copies[count].serial, copies[count].pointer, copies[count].size = job.serial, job.pointer, job.size
            copies[count].place, copies[count].standing = job.place, job.standing
            strncpy(copies[count].resource, job.resource, sizeof(job.resource))
        count += 1
        job = job.known_next
    pthread_mutex_unlock(&_mutex)
    return count


def queued_releases() -> list[tuple[Any, ...]]:
    """Return what the queue answers for, the oldest first.

    Returns
    -------
    list of tuple
        Of each release the serial number of its buffer, the address, the size in bytes, a text that tells where the
        memory lies, the name of the resource's type, and its standing: 0 waiting, 1 refused by the driver and to be
        tried again, 2 refused and given up.
    """
    cdef long room = 0
    cdef long count = 1
    cdef long index
    cdef _Copy* copies = NULL
    cdef list found = []
    while count > room:
        free(copies)
        room = count + 16
        copies = <_Copy*>malloc(room * sizeof(_Copy))
        if copies == NULL:
            raise MemoryError("no memory for a list of queued releases")
        with nogil:
            count = _copy_known(copies, room)
    try:
        for index in range(count):
            found.append((
                copies[index].serial,
                <size_t>copies[index].pointer,
                copies[index].size,
                describe_place(copies[index].place) if copies[index].place else "",
                (<bytes>copies[index].resource).decode(errors="replace"),
                <int>copies[index].standing,
            ))
        return sorted(found)
    finally:
        free(copies)


def drain(timeout: float | None = None) -> bool:
    """Wait until every queued release is made.

    What the handler of a signal raises, such as KeyboardInterrupt, ends the wait. The releases stay queued.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait at most. By default as long as it takes; a release behind a capture takes until its end.

    Returns
    -------
    bool
        Whether the queue is empty.
    """
    cdef long long until = -1 if timeout is None else _now() + <long long>(min(max(0, timeout), 1e9) * 1e9)
    cdef long long attention
    cdef bint empty = False, over = False
    while not over:
        with nogil:
            attention = _now() + _ATTENTION
            pthread_mutex_lock(&_mutex)
            while True:
                empty = _job_count == 0
                over = empty or not _running or 0 <= until <= _now()
                if over or _now() >= attention:
                    break
                _sleep(1000000)
            pthread_mutex_unlock(&_mutex)
        if not over:
            raise_what_has_come()
    _settle(NULL)
    return empty


def _abandon():
    """At exit: stop the reaper and leave what is queued to the end of the process."""
    global _running
    cdef timespec until
    cdef bint ended, running
    with nogil:
        pthread_mutex_lock(&_mutex)
        _stopping.store(1)
        pthread_cond_broadcast(&_changed)
        clock_gettime(CLOCK_REALTIME, &until)
        until.tv_sec += 1
        while _running and _in_driver == 0 and not _ended:
            if pthread_cond_timedwait(&_changed, &_mutex, &until) != 0:
                break
        ended = _ended
        running, _running = _running, False
        pthread_mutex_unlock(&_mutex)
        if running and ended:
            pthread_join(_thread, NULL)
    # Else it is inside a free that waits for the device. It is left there: the process ends under it.


atexit.register(_abandon)
