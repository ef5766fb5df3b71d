# SPDX-License-Identifier: Apache-2.0
"""What is live: an intrusive list of the allocations that must still be returned.

The links lie in the records, so entering and leaving need no memory and cannot fail. All functions are called with the
GIL, which is lock enough where there is one. For threads without it, the list is several, by the number of the record,
each with a lock of its own, so that they rarely meet. A lock is held for a few stores; only somebody who looks at
everything holds them for longer, all at once, so that nothing is seen twice or missed.
"""

from libc.stdint cimport uint64_t

from cuda.core._pthread cimport pthread_atfork

cdef extern from *:
    """
    #include <atomic>
    #include <sched.h>

    /* Each on a cache line of its own. */
    struct alignas(64) CudaCoreStripe {
        std::atomic<int> locked;
        long count;
        void *next, *before;    /* a Link: the list is a ring through this one */
    };
    static CudaCoreStripe cuda_core_stripes[8];

    #if !defined(Py_GIL_DISABLED)
    #define cuda_core_lock(stripe) ((void)(stripe))
    #define cuda_core_unlock(stripe) ((void)(stripe))
    #else
    /* The holder makes no call that waits, but may have lost its processor: then ours is better used by others. */
    static void cuda_core_lock(CudaCoreStripe *stripe) {
        for (int spins = 0; stripe->locked.exchange(1, std::memory_order_acquire); ) {
            while (stripe->locked.load(std::memory_order_relaxed)) {
                if (++spins > 100) sched_yield();
            }
        }
    }

    static void cuda_core_unlock(CudaCoreStripe *stripe) {
        stripe->locked.store(0, std::memory_order_release);
    }
    #endif

    #define cuda_core_put(place, value) __atomic_store_n((void**)(place), (void*)(value), __ATOMIC_RELEASE)
    """
    cdef cppclass Stripe "CudaCoreStripe":
        long count
        void* next
        void* before
    Stripe _stripes "cuda_core_stripes"[8]
    void _lock "cuda_core_lock"(Stripe*) noexcept nogil
    void _unlock "cuda_core_unlock"(Stripe*) noexcept nogil
    void _put "cuda_core_put"(Link**, Link*) noexcept nogil

cdef enum:
    STRIPES = 8


cdef Link* _ring(Stripe* stripe) noexcept nogil:
    return <Link*>&stripe.next


cdef void enter_live(Link* link, uint64_t number) noexcept:
    """Put a thing on the list. ``number`` stays the same until it leaves."""
    cdef Stripe* stripe = &_stripes[number % STRIPES]
    cdef Link* ring = _ring(stripe)
    _lock(stripe)
    _put(&link.next, ring)
    link.before = ring.before
    _put(&ring.before.next, link)
    ring.before = link
    stripe.count += 1
    _unlock(stripe)


cdef bint leave_live(Link* link, uint64_t number) noexcept:
    """Take a thing off the list. False where it was not there."""
    cdef Stripe* stripe
    cdef bint there
    if not is_live(link):
        return False
    stripe = &_stripes[number % STRIPES]
    _lock(stripe)
    there = link.next != NULL
    if there:
        _put(&link.before.next, link.next)
        link.next.before = link.before
        _put(&link.before, NULL)
        _put(&link.next, NULL)  # last: whoever sees this finds no way to another link, only a note
        stripe.count -= 1
    _unlock(stripe)
    return there


cdef uint64_t note_of(Link* link) noexcept nogil:
    """Return what was noted in a link that has left the list; 0 where nothing was, or it is there."""
    return <uint64_t>_look(&link.before) if _look(&link.next) == NULL else 0


cdef void put_note(Link* link, uint64_t note) noexcept nogil:
    """Note a number in a link that has left the list, and never comes back to it."""
    if _look(&link.next) == NULL:
        _put(&link.before, <Link*>note)


cdef void _lock_all() noexcept nogil:
    cdef int number
    for number in range(STRIPES):
        _lock(&_stripes[number])


cdef void _unlock_all() noexcept nogil:
    cdef int number
    for number in range(STRIPES):
        _unlock(&_stripes[number])


cdef long live_count() noexcept:
    """Return how many things are on the list."""
    cdef long count = 0
    cdef int number
    for number in range(STRIPES):
        _lock(&_stripes[number])
        count += _stripes[number].count
        _unlock(&_stripes[number])
    return count


cdef void visit_live(Visitor visit, void* data) noexcept:
    """Look at everything on the list as it is at one moment."""
    cdef Link* link
    cdef Link* ring
    cdef int number
    _lock_all()
    for number in range(STRIPES):
        ring = _ring(&_stripes[number])
        link = ring.next
        while link != ring:
            visit(link, data)
            link = link.next
    _unlock_all()


cdef void _begin() noexcept nogil:
    cdef Link* ring
    cdef int number
    for number in range(STRIPES):
        ring = _ring(&_stripes[number])
        ring.next = ring.before = ring


_begin()
# A child gets the list whole, with what was the parent's: that leaves it there as here. The GIL sees to that as well.
if pthread_atfork(_lock_all, _unlock_all, _unlock_all) != 0:
    raise MemoryError("no memory for fork handlers")
