# SPDX-License-Identifier: Apache-2.0
# What the C modules use of POSIX threads: locks that need no Python, and what happens to them at a fork.

cdef extern from "<time.h>" nogil:
    ctypedef struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_rwlock_t:
        pass
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_rwlock_rdlock(pthread_rwlock_t*)
    int pthread_rwlock_wrlock(pthread_rwlock_t*)
    int pthread_rwlock_tryrdlock(pthread_rwlock_t*)
    int pthread_rwlock_trywrlock(pthread_rwlock_t*)
    int pthread_rwlock_unlock(pthread_rwlock_t*)
    ctypedef void (*ForkHandler)() noexcept nogil
    int pthread_atfork(ForkHandler prepare, ForkHandler parent, ForkHandler child)
