# SPDX-License-Identifier: Apache-2.0
"""The waist: the one place where a deleter is started. It asks the ownership word first.

Whatever ends an allocation (``close()``, leaving a ``with`` block, the collector, later the last loan) comes through
:func:`release`. The word decides whether the deleter runs; the deleter's outcome decides how the word goes on.
"""

import enum
import warnings

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t

from cuda.core._driver cimport check, is_finalizing, is_hopeless
from cuda.core._memory._allocation cimport (
    CLOSE_DONE,
    CLOSE_IN_PROGRESS,
    CLOSE_LENT,
    CLOSE_NOTHING,
    LAST_LOAN,
    NEVER_WAIT,
    QUEUE_IF_BUSY,
    REFUSED_UNTOUCHED,
    TOLD,
    WAIT,
    Keeper,
    Record,
    end_left_behind,
    pass_place,
    put_back_left,
    record_ended,
    state_of_record,
)
from cuda.core._memory._asking cimport (
    is_lost_by_asking,
    note_loss,
    note_outcome,
    take_outcome_before_interrupt,
    waiting_of_asked,
)
from cuda.core._memory._interrupts cimport is_interrupt, pass_on
from cuda.core._memory._lost_contexts cimport describe_place, first_report_of, number_of, place_of
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_RELEASE,
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_BEGIN_RELEASE,
    EVENT_COMMIT_RELEASE,
    EVENT_LOSE,
    FAILED_BIT,
    STATE_OWNED,
    STATE_RELEASED,
    STATE_TRANSFERRED,
    VERDICT_GO,
    VERDICT_IN_PROGRESS,
    VERDICT_LENT,
    VERDICT_NOTHING,
)
from cuda.core._memory._queue cimport has_stuck, retry_stuck
from cuda.core._stream_handle cimport (
    StreamHandle,
    captured_error,
    drop_stream,
    is_captured,
    stream_is_gone,
    stream_is_idle,
)
from cuda.core._stream_order cimport wait_in_order

from cuda.core._error_text import said
from cuda.core._errors import CUDAError, CUDAWarning

__all__ = ["CloseResult"]

cdef extern from *:
    """
    #include <atomic>

    /* Never 0, and half as long as what Python calls a thread by: every buffer has room for one. */
    static unsigned cuda_core_thread_number(void) {
        static std::atomic<unsigned> threads{0};
        static thread_local unsigned number = 0;
        while (!number) number = ++threads;
        return number;
    }
    """
    uint32_t _thread_number "cuda_core_thread_number"() noexcept nogil

cdef extern from *:
    """
    /* Whoever gives a record another stream looks before whether it is claimed. With a GIL, both are one step. */
    #if defined(Py_GIL_DISABLED)
    #define CUDA_CORE_CLAIMED_KEEPS_STREAM 0
    #else
    #define CUDA_CORE_CLAIMED_KEEPS_STREAM 1
    #endif
    """
    bint _CLAIMED_KEEPS_STREAM "CUDA_CORE_CLAIMED_KEEPS_STREAM"


class CloseResult(enum.Enum):
    """What a ``close()`` has done.

    Attributes
    ----------
    DONE
        The allocation was given back to the driver or to its resource, in stream order.
    QUEUED
        It will be given back behind a stream.
    LENT
        The buffer is closed; the memory goes back when the last loan on it ends.
    IN_PROGRESS
        Another thread is giving it back at this moment.
    NOTHING
        There was nothing to do: closed or transferred before, or called by the deleter of this very buffer.
    """

    DONE = 0
    QUEUED = 1
    LENT = 2
    IN_PROGRESS = 3
    NOTHING = 4


cdef int release(Record record, int event, StreamHandle* order, int waiting) except -1:
    """End an allocation as far as its word allows.

    Parameters
    ----------
    record
        What to release.
    event
        ``EVENT_BEGIN_RELEASE`` for an explicit close, ``EVENT_BEGIN_AUTOMATIC_RELEASE`` otherwise.
    order
        The stream that orders this release, or NULL for the record's own. It is used for this attempt only.
    waiting
        ``WAIT``, ``QUEUE_IF_BUSY`` or ``NEVER_WAIT``: what to do about work in flight.

    Returns
    -------
    int
        One of the ``CLOSE_`` numbers.
    """
    cdef Record heir = None
    cdef int verdict
    if record.range is not None and record.open_loans():
        # Loans on a range may have been taken through buffers that are gone. What the free needs then moves to a
        # record of its own, made beforehand: nothing may come between the transition and the heir's arrival.
        heir = Record.__new__(Record)
    if record.range is None:
        verdict = record.apply(event)
    else:
        # The heir must be there when the last loan looks for it, which may be the next moment, on another thread.
        with cython.critical_section(record.range):
            verdict = record.apply(event)
            if verdict == VERDICT_LENT:
                _leave_to_heir(record, heir)
    if verdict == VERDICT_GO:
        if state_of_record(record) == STATE_RELEASED:  # borrowed: the transition is all there is to do
            record.forget()
            return CLOSE_DONE
        return _run_deleter(record, order, waiting)
    if verdict == VERDICT_LENT:
        if record.range is not None:
            record.forget()
        return CLOSE_LENT
    if verdict == VERDICT_IN_PROGRESS:
        return CLOSE_NOTHING if record.claiming_thread() == _thread_number() else CLOSE_IN_PROGRESS
    if verdict == VERDICT_NOTHING:
        return CLOSE_NOTHING
    raise record.refusal(verdict, "closed")


cdef void _leave_to_heir(Record record, Record heir) noexcept:
    """Make a record for loans on a range what answers for the free."""
    if heir is None:  # the loan began after the look
        heir = Record.__new__(Record)
    heir.copy_recipe(record)
    heir.serial, heir.entry = record.serial, record.entry
    heir.range, heir.word, heir.epoch = record.range, record.word, record.epoch
    pass_place(record, heir)
    record.range.heir = heir


cdef int _note_refusal(Record record, object error) noexcept:
    """Note whether all that has failed so far is a close that a capture has refused. Before the word says failed."""
    cdef bint untouched = (
        _says_nothing_happened(error)
        and (record.reported == REFUSED_UNTOUCHED or not record.word.load() & FAILED_BIT)
    )
    if record.reported != TOLD:
        record.reported = REFUSED_UNTOUCHED if untouched else 0
    return 0


cdef int _run_deleter(Record record, StreamHandle* order, int waiting) except -1:
    """Run the deleter of a record that is claimed for release, and commit or abort. The caller holds ``order``."""
    cdef int outcome
    cdef object interrupt = None
    cdef StreamHandle* held = NULL
    # A collection, or the end of a last loan, may come in the middle of a release, and is no part of it.
    cdef bint by_itself = waiting >= NEVER_WAIT
    waiting = waiting_of_asked(waiting)
    if order == NULL:
        if _CLAIMED_KEEPS_STREAM:
            order = record.stream
        else:
            order = held = record.hold_stream()
    record.set_claiming_thread(_thread_number())
    # Before the free: behind it the address may be another's, who may have left it.
    cdef bint was_left = end_left_behind(record.pointer)
    cdef size_t pointer = record.pointer
    try:
        outcome = record.deleter(record, order, waiting)
    except BaseException as error:  # also KeyboardInterrupt: the word must tell how far the deleter has come
        outcome = take_outcome_before_interrupt()
        if outcome < 0:
            drop_stream(held)
            _abort(record, error, was_left)
            raise
        interrupt = error
    drop_stream(held)
    record.set_claiming_thread(0)
    record.apply(EVENT_COMMIT_RELEASE)
    record_ended(record)
    record.forget()
    if not by_itself:
        note_outcome(outcome, pointer)
    if outcome == CLOSE_DONE and has_stuck():  # the driver gives back at the moment: what it refused is tried again
        retry_stuck(False)
    if interrupt is not None:
        raise interrupt
    return outcome


cdef int _abort(Record record, object error, bint was_left) except -1:
    """End a release whose deleter has failed."""
    record.set_claiming_thread(0)
    if was_left:
        put_back_left(record.pointer)
    if _is_lost(error):
        # A deleter may know better: where it closed another buffer, it is that one's context.
        if getattr(error, "lost_place", None) is None:
            error.lost_place = place_of(record)
            error.lost_number = number_of(record, error.lost_place)
        note_loss(record.pointer)
        record.apply(EVENT_LOSE)
        record_ended(record)
        if isinstance(record.owner, Keeper):
            (<Keeper>record.owner).let_out()  # it is not returned, and what it came from must not end before it
        record.forget()
    else:
        _note_refusal(record, error)
        record.apply(EVENT_ABORT_RELEASE)
    return 0


cdef int finish_loans(Record record, bint may_raise) except -1:
    """Return what loans held, after the last one ended. The word is claimed for that.

    A failure is reported: whoever ends a loan is not whoever owned the memory. What interrupts the program comes out,
    at once where the caller can raise.
    """
    cdef Record holder = record
    if is_finalizing():
        # As for a collection: an author's deallocate would find its module empty, and an owner could run Python.
        return CLOSE_NOTHING
    if record.range is not None:
        with cython.critical_section(record.range):
            holder, record.range.heir = record.range.heir, None
    if holder.deleter == NULL:  # borrowed: the owner goes with the last loan
        holder.apply(EVENT_COMMIT_RELEASE)
        holder.forget()
        return CLOSE_DONE
    try:
        return _run_deleter(holder, NULL, LAST_LOAN)
    except BaseException as error:
        if may_raise and is_interrupt(error):
            raise
        if not _is_done_before(holder, error):
            _report_failed(holder, error, "could not be returned after its last loan")
        pass_on(error)
    return CLOSE_NOTHING


cdef int release_from_collection(Record record) noexcept:
    """Release what nobody can name any more. A failure is reported once and not tried again."""
    cdef int state = state_of_record(record)
    cdef int event = EVENT_BEGIN_AUTOMATIC_RELEASE
    if state == STATE_RELEASED or state == STATE_TRANSFERRED:
        return 0
    if is_finalizing():
        # No Python may run, no stream is waited for: the process is about to give everything back by ending.
        return 0
    record.collected = True
    if record.reported == REFUSED_UNTOUCHED:
        event = EVENT_BEGIN_RELEASE  # which does not mind that one was refused
    try:
        if state == STATE_OWNED and record.deleter != NULL and _is_kept(record):
            if record.reported != TOLD:
                record.reported = TOLD
                report(
                    f"{record.describe()} was dropped without a close, and a collection must not free it. "
                    "It stays allocated."
                )
            return 0
        if (
            release(record, event, NULL, NEVER_WAIT) == CLOSE_NOTHING
            and record.state() == STATE_OWNED
            and record.reported != TOLD
        ):
            record.reported = TOLD
            report(f"{record.describe()} was dropped after a close that failed. It stays allocated.")
    except BaseException as error:
        if not _is_done_before(record, error):
            _report_failed(record, error, "was dropped and could not be returned")
        pass_on(error)
    return 0


cdef bint _is_done_before(Record record, object error) noexcept:
    """Whether an interrupt has come out of a release that was made: then what the free needed was let go."""
    return is_interrupt(error) and record.resource is None


cdef bint _is_kept(Record record) except -1:
    """Whether the buffer or its resource says that a collection must not free it."""
    return record.kept_by_collector or not getattr(record.resource, "release_on_collection", True)


cdef bint _is_lost(object error) noexcept:
    """Whether a failure means that the memory is out of reach for good: no later attempt can do better."""
    try:
        return (
            isinstance(error, CUDAError)
            # An author's own class may not let itself be marked. It says nothing of the memory, then.
            and not getattr(error, "lost_elsewhere", type(error) is not CUDAError)
            and (is_hopeless(<cydriver.CUresult><int>error.result) or getattr(error, "lost_place", None) is not None)
        )
    except Exception:  # an author's own kind of error: whoever has claimed the release must come to its end
        return False


cdef bint _says_nothing_happened(object error) noexcept:
    try:
        return bool(getattr(error, "nothing_happened", False))
    except Exception:
        return False


cdef int _report_failed(Record record, object error, str what) except -1:
    record.reported = TOLD
    if _is_lost(error):
        # Every buffer of a dead context fails in the same way.
        place = getattr(error, "lost_place", None) or 0
        if first_report_of(place, getattr(error, "lost_number", 0)):
            where = describe_place(place)
            report(
                f"{record.describe()} {what}: {said(error)}. It is lost, like everything of {where}; further buffers "
                f"of {where} are not reported."
            )
        return 0
    report(f"{record.describe()} {what}: {type(error).__name__}: {said(error)}. It stays allocated.")
    return 0


cdef void report(str text) noexcept:
    """Tell of a release that failed where no exception can. The text names the allocation, so no two are equal.

    Where warnings are errors, the one raised here is printed through ``sys.unraisablehook``: whoever is told must
    not lose what it is about to return.
    """
    warnings.warn(text, CUDAWarning, stacklevel=1)


# --- waiting for the stream that orders a release -------------------------------------------------------------------


cdef int ensure_not_capturing(StreamHandle* order) except -1:
    """Refuse, before anything has happened, to wait for a stream that is being captured."""
    if order != NULL and is_captured(order):
        raise capture_in_the_way()
    return 0


cdef object capture_in_the_way():
    """Return the error of a release that met a capture, which may be over by now. Nothing has happened."""
    error = captured_error(
        "the stream that orders this release is being captured; release the buffer after the capture has ended, or "
        "close it with another stream"
    )
    error.nothing_happened = True
    return error


cdef void comes_out_of(Record record, object error) noexcept:
    """Take back what an error says where it comes out of an author's code: it may be about another buffer there.

    Something may have happened before it. And a context that is gone has taken the memory of ``record`` only where that
    very address was lost: a ``deallocate`` may free more than one thing.
    """
    try:
        if getattr(error, "nothing_happened", False):
            error.nothing_happened = False
        if isinstance(error, CUDAError):
            error.lost_elsewhere = not is_lost_by_asking(record)
    except Exception:  # it cannot be read or marked, so that it is taken to say neither
        return


cdef bint wait_for_order(StreamHandle* order) except -1:
    """Wait, without the GIL, for the work that may still use the memory. Without a stream there is none to wait for.

    True if there was any: then the world may be another one by now.
    """
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef bint capturing, waited = False
    if order == NULL:
        return False
    with nogil:
        result = wait_in_order(order, &waited, &capturing, &function)
    if capturing:
        raise capture_in_the_way()
    if not stream_is_gone(order, result):
        check(result, function)
    return waited


cdef bint must_queue(StreamHandle* order, int waiting) except -1:
    """Whether a release behind this stream would have to wait. A dead context has nothing left to wait for."""
    cdef bint idle = True
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if waiting == WAIT or order == NULL:
        return False
    if waiting == QUEUE_IF_BUSY:
        ensure_not_capturing(order)
    with nogil:
        result = stream_is_idle(order, &idle, &function)
    if is_hopeless(result):
        return False
    if waiting >= NEVER_WAIT and result != cydriver.CUresult.CUDA_SUCCESS:
        return True  # the queue asks again, and loses nothing meanwhile
    check(result, function)
    return not idle
