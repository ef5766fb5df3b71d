# SPDX-License-Identifier: Apache-2.0
"""The queue of releases that wait behind a stream, and the reaper thread that makes them.

The reaper is a thread of C code. It never takes the GIL and runs no Python; what it could not return it reports through
a pending call of the main thread. It asks the streams of all jobs in turn, so that a long one holds up no other, and
does nothing to a stream that is being captured.

A job owns what it holds: from the moment it is queued, no buffer does.
"""

import atexit
import warnings

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._driver cimport error_for, is_finalizing, is_hopeless
from cuda.core._stream_handle cimport StreamHandle, release_stream, stream_is_capturing, stream_is_idle

from cuda.core._errors import CUDAWarning

__all__ = ["drain"]

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*)
    int pthread_cond_broadcast(pthread_cond_t*)
    ctypedef void (*ForkHandler)() noexcept nogil
    int pthread_atfork(ForkHandler prepare, ForkHandler parent, ForkHandler child)

cdef extern from "<time.h>" nogil:
    ctypedef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int CLOCK_REALTIME

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil
    int Py_MakePendingCalls() except -1

cdef int _LIMIT = 1024  # how many jobs may be queued before an explicit close waits for older ones

cdef pthread_mutex_t _mutex
cdef pthread_cond_t _changed
cdef pthread_t _thread
cdef bint _running = False
cdef bint _stopping = False
cdef bint _ended = False        # the reaper has left its loop
cdef int _in_driver = 0         # the reaper is giving something back at this moment
cdef Job* _jobs = NULL          # waiting, oldest first
cdef Job* _last = NULL
cdef Job* _stuck = NULL         # could not be returned; kept so that they are counted
cdef Job* _lost_job = NULL      # of dead contexts; told of and forgotten
cdef long _job_count = 0
cdef long _stuck_count = 0
cdef long _blocked_count = 0    # of the waiting ones, how many were found behind a capture or a failure to ask
cdef long _unreported = 0


cdef void _init_locks() noexcept nogil:
    pthread_mutex_init(&_mutex, NULL)
    pthread_cond_init(&_changed, NULL)


cdef void _before_fork() noexcept nogil:
    pthread_mutex_lock(&_mutex)


cdef void _after_fork_in_parent() noexcept nogil:
    pthread_mutex_unlock(&_mutex)


cdef void _after_fork_in_child() noexcept nogil:
    """The reaper is not in the child, and the jobs are the parent's: forget them."""
    global _running, _jobs, _last, _stuck, _lost_job, _job_count, _stuck_count, _unreported
    _init_locks()
    _running = False
    _jobs = NULL
    _last = NULL
    _stuck = NULL
    _lost_job = NULL
    _job_count = _stuck_count = _unreported = 0


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


# --- the reaper ---------------------------------------------------------------------------------------------------

cdef int _report_stuck(void* unused) noexcept:
    """Tell of what the reaper could not return. A pending call: the main thread makes it, with the GIL."""
    global _unreported, _lost_job
    cdef Job* job
    cdef Job* following
    cdef list texts = []
    cdef list lost = []
    if is_finalizing():
        return 0
    pthread_mutex_lock(&_mutex)
    job = _stuck
    while _lost_job != NULL:  # the memory of a dead context: told of once for each context, and not kept
        lost.append(<size_t>_lost_job.context)
        following = _lost_job.next
        _lost_job.discard(_lost_job.data, NULL)
        free(_lost_job)
        _lost_job = following
    while job != NULL and _unreported > 0:
        texts.append((job.serial, job.size, <size_t>job.pointer, <int>job.failure.result, job.failure.function))
        _unreported -= 1
        job = job.next
    _unreported = 0
    pthread_mutex_unlock(&_mutex)
    for context in lost:
        if first_report_of_context(context):
            warnings.warn(
                f"memory of the context at {context:#x} could not be returned by the queue: the context is gone, and "
                "everything in it is lost; further buffers of this context are not reported.",
                CUDAWarning,
                stacklevel=1,
            )
    for serial, size, pointer, result, function in texts:
        error = error_for(<cydriver.CUresult><int>result, function)
        warnings.warn(
            f"queued release of buffer #{serial}, {size} bytes at {pointer:#x}, failed: {error}. It stays allocated.",
            CUDAWarning,
            stacklevel=1,
        )
    return 0


cdef int _release_owned(void* handle) noexcept:
    release_stream(<StreamHandle*>handle)
    return 0


cdef bint _has_owner(StreamHandle* handle) noexcept nogil:
    cdef int member
    if handle == NULL:
        return False
    for member in range(handle.member_count):
        if handle.members[member].owner != NULL:
            return True
    return handle.owner != NULL


cdef bint _try_job(Job* job, bint* blocked) noexcept nogil:
    """Make one release if its streams are done. True when the job has ended, well or not."""
    global _in_driver
    cdef bint idle = True, stopping
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = NULL
    blocked[0] = False
    if job.order != NULL:
        result = stream_is_capturing(job.order, blocked, &function)
        if blocked[0]:
            return False  # until the capture ends, which may be up to a thread that waits for memory
        if result == cydriver.CUresult.CUDA_SUCCESS:
            result = stream_is_idle(job.order, &idle, &function)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            # nothing runs there any more, so there is nothing to wait for
            job.context_is_dead = idle = is_hopeless(result)
            blocked[0] = not idle
    if not idle:
        return False
    job.failure.function = NULL
    pthread_mutex_lock(&_mutex)
    stopping = _stopping
    _in_driver = 1
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)
    if stopping:
        _in_driver = 0
        return False
    job.give_back(job.data, &job.failure)
    pthread_mutex_lock(&_mutex)
    _in_driver = 0
    pthread_mutex_unlock(&_mutex)
    return True


cdef void* _reap(void* unused) noexcept nogil:
    global _lost_job, _ended, _jobs, _last, _stuck, _job_count, _stuck_count, _unreported, _blocked_count
    cdef Job* job
    cdef Job* waiting
    cdef Job* after
    cdef Job* following
    cdef long pause = 50000
    cdef long blocked_now, ended
    cdef bint blocked = False
    pthread_mutex_lock(&_mutex)
    while not _stopping:
        if _jobs == NULL:
            pthread_cond_wait(&_changed, &_mutex)
            pause = 50000
            continue
        # Take the list, so that the streams are asked without the lock; new jobs gather behind.
        job = _jobs
        _jobs = NULL
        _last = NULL
        pthread_mutex_unlock(&_mutex)
        waiting = NULL
        after = NULL
        blocked_now = ended = 0
        while job != NULL and not _stopping:
            following = job.next
            job.next = NULL
            if _try_job(job, &blocked):
                ended += 1
                if not _has_owner(job.order):
                    release_stream(job.order)
                    job.order = NULL
                pthread_mutex_lock(&_mutex)
                _job_count -= 1
                if job.order != NULL:
                    # Python keeps this stream alive, so Python lets it go: a call of the main thread, with the GIL.
                    Py_AddPendingCall(_release_owned, <void*>job.order)
                    job.order = NULL
                if job.failure.function != NULL and (job.context_is_dead or is_hopeless(job.failure.result)):
                    job.next = _lost_job
                    _lost_job = job
                    Py_AddPendingCall(_report_stuck, NULL)
                elif job.failure.function != NULL:
                    job.next = _stuck
                    _stuck = job
                    _stuck_count += 1
                    _unreported += 1
                    Py_AddPendingCall(_report_stuck, NULL)
                else:
                    job.discard(job.data, NULL)
                    free(job)
                pthread_cond_broadcast(&_changed)
                pthread_mutex_unlock(&_mutex)
            else:
                blocked_now += blocked
                if waiting == NULL:
                    waiting = job
                else:
                    after.next = job
                after = job
            job = following
        pthread_mutex_lock(&_mutex)
        if job != NULL:  # stopped in the middle
            if waiting == NULL:
                waiting = job
            else:
                after.next = job
            after = job
            while after.next != NULL:
                after = after.next
        if waiting != NULL:
            after.next = _jobs
            if _last == NULL:
                _last = after
            _jobs = waiting
        _blocked_count = blocked_now
        if ended:
            pause = 50000
        elif _jobs != NULL and not _stopping:
            pthread_cond_broadcast(&_changed)
            _sleep(pause)
            pause = min(pause * 2, 2000000)
    _ended = True
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)
    return NULL


# --- the queue ----------------------------------------------------------------------------------------------------

cdef Job* new_job(JobFunction give_back, JobFunction discard, void* data) except NULL:
    cdef Job* job = <Job*>calloc(1, sizeof(Job))
    if job == NULL:
        raise MemoryError("no memory for a queued release")
    job.give_back = give_back
    job.discard = discard
    job.data = data
    return job


cdef void discard_job(Job* job) noexcept nogil:
    """Forget a job that was never queued, with what it holds."""
    release_stream(job.order)
    job.discard(job.data, NULL)
    free(job)


cdef int enqueue(Job* job) except -1:
    """Queue a job and start the reaper if it is not running. The job's stream reference passes to the queue."""
    global _running, _jobs, _last, _job_count
    cdef int failed = 0
    job.context = <size_t>job.order.context if job.order != NULL else 0
    with nogil:
        pthread_mutex_lock(&_mutex)
        if not _running:
            failed = pthread_create(&_thread, NULL, _reap, NULL)
            _running = failed == 0
        if not failed:
            job.next = NULL
            if _last == NULL:
                _jobs = job
            else:
                _last.next = job
            _last = job
            _job_count += 1
            pthread_cond_broadcast(&_changed)
        pthread_mutex_unlock(&_mutex)
    if failed:
        raise OSError(failed, "the thread that makes queued releases could not be started")
    return 0


cdef int wait_for_room() except -1:
    """Wait, without the GIL, until fewer jobs are queued than the bound."""
    with nogil:
        pthread_mutex_lock(&_mutex)
        while _job_count >= _LIMIT and _running and _blocked_count < _job_count:
            _sleep(1000000)
        pthread_mutex_unlock(&_mutex)
    return 0


cdef void wait_a_moment() noexcept:
    """Give the reaper a few milliseconds to empty the queue. It is a courtesy and has a bound, whatever runs."""
    cdef int rounds = 0
    with nogil:
        pthread_mutex_lock(&_mutex)
        while _job_count and _running and _blocked_count < _job_count and rounds < 20:
            _sleep(1000000)
            rounds += 1
        pthread_mutex_unlock(&_mutex)


cdef bint drain_for_memory() noexcept nogil:
    """Wait until every queued release is made that can be. True if there was any.

    What waits behind a capture is not waited for: its stream may be captured by this very thread.
    """
    cdef bint any_ = False
    pthread_mutex_lock(&_mutex)
    while _job_count and _running and _blocked_count < _job_count:
        any_ = True
        _sleep(1000000)
    pthread_mutex_unlock(&_mutex)
    return any_


cdef set _reported_contexts = set()


cdef bint first_report_of_context(size_t context) except -1:
    """Whether a lost context has not been told of yet. One report tells as much as a thousand."""
    if context in _reported_contexts:
        return False
    _reported_contexts.add(context)
    return True


cpdef dict queue_counts():
    """Return how many releases are queued, and how many could not be made."""
    return {"queued": _job_count, "stuck": _stuck_count}


def drain(timeout=None):
    """Wait until every queued release is made.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait at most. By default as long as it takes; a release behind a capture takes until its end.

    Returns
    -------
    bool
        Whether the queue is empty.
    """
    cdef long left = -1 if timeout is None else max(0, int(timeout * 1000))
    with nogil:
        pthread_mutex_lock(&_mutex)
        while _job_count and _running and left != 0:
            _sleep(1000000)
            if left > 0:
                left -= 1
        pthread_mutex_unlock(&_mutex)
    Py_MakePendingCalls()  # what the reaper has left to Python: reports, and streams that Python keeps alive
    return _job_count == 0


def _abandon():
    """At exit: stop the reaper and leave what is queued to the end of the process."""
    global _stopping, _running
    cdef timespec until
    cdef bint ended
    if not _running:
        return
    with nogil:
        pthread_mutex_lock(&_mutex)
        _stopping = True
        pthread_cond_broadcast(&_changed)
        clock_gettime(CLOCK_REALTIME, &until)
        until.tv_sec += 1
        while _running and _in_driver == 0 and not _ended:
            if pthread_cond_timedwait(&_changed, &_mutex, &until) != 0:
                break
        ended = _ended
        pthread_mutex_unlock(&_mutex)
        if ended:
            pthread_join(_thread, NULL)
    # Else it is inside a free that waits for the device. It is left there: the process ends under it.
    _running = False


atexit.register(_abandon)
