# SPDX-License-Identifier: Apache-2.0
"""The waist: the one place where a deleter is started. It asks the ownership word first.

Whatever ends an allocation (``close()``, leaving a ``with`` block, the collector, later the last loan) comes through
:func:`release`. The word decides whether the deleter runs; the deleter's outcome decides how the word goes on.
"""

import enum
import warnings

from cuda.bindings cimport cydriver

from cuda.core._driver cimport check, error_for, is_finalizing
from cuda.core._memory._allocation cimport Record, record_ended
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_RELEASE,
    EVENT_BEGIN_AUTOMATIC_RELEASE,
    EVENT_COMMIT_RELEASE,
    STATE_OWNED,
    STATE_RELEASED,
    STATE_TRANSFERRED,
    VERDICT_GO,
    VERDICT_IN_PROGRESS,
    VERDICT_LENT,
    VERDICT_NOTHING,
)
from cuda.core._stream cimport (
    StreamHandle,
    release_stream,
    retain_stream,
    stream_is_capturing,
    wait_for_stream,
)

from cuda.core._errors import CUDAWarning

__all__ = ["CloseResult"]

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil


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


cdef int release(Record record, int event, StreamHandle* order) except -1:
    """End an allocation as far as its word allows.

    Parameters
    ----------
    record
        What to release.
    event
        ``EVENT_BEGIN_RELEASE`` for an explicit close, ``EVENT_BEGIN_AUTOMATIC_RELEASE`` otherwise.
    order
        The stream that orders this release, or NULL for the record's own. It is used for this attempt only.

    Returns
    -------
    int
        One of the ``CLOSE_`` numbers.
    """
    cdef bint owned = record.state() == STATE_OWNED
    cdef int verdict = record.apply(event)
    if verdict == VERDICT_GO:
        if record.state() == STATE_RELEASED:  # borrowed: the transition is all there is to do
            record.forget()
            return CLOSE_DONE
        # The deleter waits without the GIL, and another thread may replace the record's stream meanwhile.
        order = retain_stream(record.stream if order == NULL else order)
        record.set_claiming_thread(PyThread_get_thread_ident())
        try:
            record.deleter(record, order)
        except:  # noqa: E722  also for KeyboardInterrupt: the deleter has not finished, and the word must tell
            record.set_claiming_thread(0)
            record.apply(EVENT_ABORT_RELEASE)
            raise
        finally:
            release_stream(order)
        record.set_claiming_thread(0)
        record.apply(EVENT_COMMIT_RELEASE)
        if owned:
            record_ended()
        record.forget()
        return CLOSE_DONE
    if verdict == VERDICT_LENT:
        return CLOSE_LENT
    if verdict == VERDICT_IN_PROGRESS:
        return CLOSE_NOTHING if record.claiming_thread() == PyThread_get_thread_ident() else CLOSE_IN_PROGRESS
    if verdict == VERDICT_NOTHING:
        return CLOSE_NOTHING
    raise record.refusal(verdict, "closed")


cdef int release_from_collection(Record record) noexcept:
    """Release what nobody can name any more. A failure is reported once and not tried again."""
    cdef int state = record.state()
    if state == STATE_RELEASED or state == STATE_TRANSFERRED:
        return 0
    if is_finalizing():
        # No Python may run, no stream is waited for: the process is about to give everything back by ending.
        return 0
    try:
        if (
            release(record, EVENT_BEGIN_AUTOMATIC_RELEASE, NULL) == CLOSE_NOTHING
            and record.state() == STATE_OWNED
            and not record.reported
        ):
            record.reported = True
            report(f"{record.describe()} was dropped after a close that failed. It stays allocated.")
    except BaseException as error:
        record.reported = True
        report(
            f"{record.describe()} was dropped and could not be returned: {type(error).__name__}: {error}. "
            "It stays allocated."
        )
    return 0


cdef void report(str text) noexcept:
    """Tell of a release that failed where no exception can. The text names the allocation, so no two are equal.

    Where warnings are errors, the one raised here is printed through ``sys.unraisablehook``: whoever is told must
    not lose what it is about to return.
    """
    warnings.warn(text, CUDAWarning, stacklevel=1)


# --- waiting for the stream that orders a release -------------------------------------------------------------------


cdef int ensure_not_capturing(StreamHandle* order) except -1:
    """Refuse, before anything has happened, to wait for a stream that is being captured.

    Waiting would invalidate the capture, which belongs to somebody else.
    """
    cdef bint capturing = False
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if order == NULL:
        return 0
    with nogil:
        result = stream_is_capturing(order, &capturing, &function)
    check(result, function)
    if capturing:
        error = error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, b"cuStreamIsCapturing")
        error.args = (
            f"{error.args[0]}: the stream that orders this release is being captured; "
            "release the buffer after the capture has ended, or close it with another stream",
        )
        raise error
    return 0


cdef int wait_for_order(StreamHandle* order) except -1:
    """Wait, without the GIL, for the work that may still use the memory. Without a stream there is none to wait for."""
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    if order == NULL:
        return 0
    ensure_not_capturing(order)
    with nogil:
        result = wait_for_stream(order, &function)
    check(result, function)
    return 0
