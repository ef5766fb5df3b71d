# SPDX-License-Identifier: Apache-2.0
# Types of the compiled machine in _ownership.py, and its C interface. Needs no cuda.h.
cimport cython
from libc.stdint cimport int8_t, uint8_t, uint32_t, uint64_t
from libcpp.atomic cimport atomic

cdef enum:
    STATE_RELEASED = 0
    STATE_OWNED = 1
    STATE_BORROWED = 2
    STATE_TRANSFERRED = 3

    TAKER_GROWN = 1
    TAKER_DETACHED = 2
    TAKER_MOVED = 3
    TAKER_LOANS = 4

    EVENT_BEGIN_RELEASE = 2
    EVENT_BEGIN_AUTOMATIC_RELEASE = 3
    EVENT_COMMIT_RELEASE = 4
    EVENT_ABORT_RELEASE = 5
    EVENT_COMMIT_TRANSFER = 7
    EVENT_ABORT_TRANSFER = 8
    EVENT_LEND = 9
    EVENT_END_LOAN = 10
    EVENT_LOSE = 11
    EVENT_USE = 12
    EVENT_BEGIN_GROW = 14

    VERDICT_GO = 0
    VERDICT_LENT = 1
    VERDICT_LAST_LOAN = 2
    VERDICT_NOTHING = 3
    VERDICT_IN_PROGRESS = 4
    VERDICT_CLOSED = 5
    VERDICT_CLAIMED = 6
    VERDICT_NOT_OWNER = 7
    VERDICT_HAS_LOANS = 8
    VERDICT_NO_LOAN = 9
    VERDICT_NOT_CLAIMED = 10
    VERDICT_TOO_MANY = 11

    EVENT_CODES = 24
    SITUATIONS = 256

cdef extern from *:
    """
    #define CUDA_CORE_STATE_MASK 0x3ull
    #define CUDA_CORE_CLAIM_MASK 0xcull
    #define CUDA_CORE_CLAIMED_TO_RELEASE 0x4ull
    #define CUDA_CORE_FAILED_BIT 0x10ull
    #define CUDA_CORE_LOST_BIT 0x20ull
    #define CUDA_CORE_TAKER_MASK 0x1c0ull
    #define CUDA_CORE_LOAN_UNIT 0x10000ull
    #define CUDA_CORE_LOANS_MASK 0xffffff0000ull
    #define CUDA_CORE_EPOCH_MASK 0xffffff0000000000ull
    """
    const uint64_t STATE_MASK "CUDA_CORE_STATE_MASK"
    const uint64_t CLAIM_MASK "CUDA_CORE_CLAIM_MASK"
    const uint64_t CLAIMED_TO_RELEASE "CUDA_CORE_CLAIMED_TO_RELEASE"  # of the mask, for a release and no transfer
    const uint64_t FAILED_BIT "CUDA_CORE_FAILED_BIT"
    const uint64_t LOST_BIT "CUDA_CORE_LOST_BIT"
    const uint64_t TAKER_MASK "CUDA_CORE_TAKER_MASK"
    const uint64_t LOAN_UNIT "CUDA_CORE_LOAN_UNIT"
    const uint64_t LOANS_MASK "CUDA_CORE_LOANS_MASK"
    const uint64_t EPOCH_MASK "CUDA_CORE_EPOCH_MASK"

cdef uint8_t VERDICTS[6144]
cdef uint64_t KEEP[6144]
cdef uint64_t SET[6144]
cdef int8_t LOAN_CHANGE[6144]

@cython.locals(loans=uint64_t, held=bint)
cdef int situation_of(uint64_t bits) noexcept nogil

@cython.locals(old=uint64_t, new=uint64_t, entry=int, verdict=int)
cdef int step(atomic[uint64_t]* word, uint32_t epoch, int event) noexcept nogil

@cython.locals(old=uint64_t, new=uint64_t, verdict=int)
cdef int commit_shared_transfer(atomic[uint64_t]* word, uint32_t epoch) noexcept nogil

cdef inline int state_of(uint64_t bits, uint32_t epoch) noexcept nogil:
    """Return the state that a holder of this epoch reads in a word."""
    return <int>(bits & STATE_MASK) if <uint32_t>(bits >> 40) == epoch else STATE_TRANSFERRED

cdef inline uint64_t fresh(int state, uint32_t epoch) noexcept nogil:
    """Return a word in a first state, unclaimed and without loans."""
    return <uint64_t>state | <uint64_t>epoch << 40
