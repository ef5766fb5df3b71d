# SPDX-License-Identifier: Apache-2.0
"""What keeps a capture from beginning or ending between the question whether a stream is captured and its use.

One that begins would be broken, or take the use into its graph. One that ends beside the use has crashed a real
driver, which does not synchronise the graph of a capture. Nor are two uses safe beside each other that are put into
one graph or ask for it, so while a capture goes on one thread at a time holds the lock. Only captures that this
package begins can be kept waiting. The lock prefers who waits to begin one, or many threads that free memory could
keep that thread out for ever.

A launch holds it alone as well. Where the graph keeps a user object, as those of this package do, and another thread
asks the stream for its work meanwhile, a real driver answers the launch with UNKNOWN now and then, though it runs.
"""

from libcpp.atomic cimport atomic

from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    pthread_rwlock_rdlock,
    pthread_rwlock_t,
    pthread_rwlock_tryrdlock,
    pthread_rwlock_trywrlock,
    pthread_rwlock_unlock,
    pthread_rwlock_wrlock,
)

cdef extern from *:
    """
    #include <pthread.h>

    static int cuda_core_init_capture_lock(pthread_rwlock_t* lock) {
        pthread_rwlockattr_t attributes;
        int failed = pthread_rwlockattr_init(&attributes);
        if (failed) return failed;
    #ifdef __GLIBC__
        pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    #endif
        failed = pthread_rwlock_init(lock, &attributes);
        pthread_rwlockattr_destroy(&attributes);
        return failed;
    }
    """
    int _init_lock "cuda_core_init_capture_lock"(pthread_rwlock_t*) noexcept nogil

cdef enum:
    # So often the lock is tried: most calls are over sooner than a thread that sleeps is awake. While captures go on
    # every thread wants it alone, and many that try keep each other from their work.
    _TURNS = 1000
    _TURNS_BESIDE_CAPTURES = 100

cdef pthread_rwlock_t _lock
cdef pthread_mutex_t _launching  # taken before the lock
cdef atomic[long] _begun  # so many captures so far
cdef atomic[long] _going_on


cdef void _take_alone(int turns) noexcept nogil:
    cdef int _turn
    for _turn in range(turns):
        if pthread_rwlock_trywrlock(&_lock) == 0:
            return
    pthread_rwlock_wrlock(&_lock)


cdef void _take_together() noexcept nogil:
    cdef int _turn
    for _turn in range(_TURNS):
        if pthread_rwlock_tryrdlock(&_lock) == 0:
            return
    pthread_rwlock_rdlock(&_lock)


cdef void hold_captures_off() noexcept nogil:
    if _going_on.load() == 0:
        _take_together()
        if _going_on.load() == 0:  # and none can begin before this thread lets go
            return
        pthread_rwlock_unlock(&_lock)
    _take_alone(_TURNS_BESIDE_CAPTURES)


cdef void let_captures_begin() noexcept nogil:
    pthread_rwlock_unlock(&_lock)


cdef void hold_streams_off() noexcept nogil:
    # One at a time: the lock prefers who wants it alone, and threads that do nothing but launch would keep all others
    # out for ever.
    pthread_mutex_lock(&_launching)
    _take_alone(_TURNS)


cdef void let_streams_be_used() noexcept nogil:
    pthread_rwlock_unlock(&_lock)  # first, so that whoever waits to use a stream comes in before the next launch
    pthread_mutex_unlock(&_launching)


cdef void enter_capture() noexcept nogil:
    pthread_rwlock_wrlock(&_lock)


cdef void leave_capture(bint begun) noexcept nogil:
    if begun:
        _begun.fetch_add(1)
        _going_on.fetch_add(1)
    pthread_rwlock_unlock(&_lock)


cdef void capture_has_ended() noexcept nogil:
    _going_on.fetch_sub(1)


cpdef long captures_begun() noexcept nogil:
    """Return how many captures this package has begun."""
    return _begun.load()


cdef void _in_child() noexcept nogil:
    """A thread of the parent may have held it at the fork; and the captures are the parent's."""
    _init_lock(&_lock)
    pthread_mutex_init(&_launching, NULL)
    _going_on.store(0)


if _init_lock(&_lock) != 0 or pthread_mutex_init(&_launching, NULL) != 0 or pthread_atfork(NULL, NULL, _in_child) != 0:
    raise MemoryError("no memory for the lock that captures begin under")
