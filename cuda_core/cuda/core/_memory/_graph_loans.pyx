# SPDX-License-Identifier: Apache-2.0
"""Loans that a graph holds: an operation that is captured leaves an address in the graph, which may run at any time.

The graph gets a user object for each such operation. The driver destroys it when the graph and everything made from the
graph are gone, and calls us on a thread of its own, where neither the driver nor Python may be called. The call only
puts the loan on a list; a Python thread ends it.
"""

import atexit
import threading
import time

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from cuda.core._capture_lock cimport captures_begun, hold_captures_off, let_captures_begin
from cuda.core._driver cimport check, error_for
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._graph_place cimport GraphPlace, note_lent
from cuda.core._memory._interrupts cimport raise_on_main_thread
from cuda.core._memory._loans cimport Loan, new_graph_loan
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_cond_broadcast,
    pthread_cond_init,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from cuda.core._stream_handle cimport StreamHandle
from cuda.core._undestroyed cimport end_user_object

cdef struct Lent:
    Lent* next
    PyObject* one      # each is a reference, to a Loan mostly; NULL for none
    PyObject* other

# Seconds. The driver tells of a graph's end some time after it: a program that ends waits so long for the last of them.
cdef double _PATIENCE = 0.1

cdef atomic[long] _held   # by graphs, or on the list
cdef pthread_mutex_t _mutex
cdef pthread_cond_t _changed
cdef Lent* _left = NULL      # the graph is gone, the loans are still open
cdef bint _stopping = False
cdef object _thread = None


cdef void _init_locks() noexcept nogil:
    pthread_mutex_init(&_mutex, NULL)
    pthread_cond_init(&_changed, NULL)


cdef void _before_fork() noexcept nogil:
    pthread_mutex_lock(&_mutex)


cdef void _after_fork_in_parent() noexcept nogil:
    pthread_mutex_unlock(&_mutex)


cdef void _after_fork_in_child() noexcept nogil:
    """The thread is not in the child, and what graphs held was the parent's."""
    global _left
    _init_locks()
    _left = NULL
    _held.store(0)


_init_locks()
if pthread_atfork(_before_fork, _after_fork_in_parent, _after_fork_in_child) != 0:
    raise MemoryError("no memory for fork handlers")


cdef void _graph_is_gone(void* data) noexcept nogil:
    """The destructor of a user object, called by the driver."""
    global _left
    cdef Lent* lent = <Lent*>data
    pthread_mutex_lock(&_mutex)
    lent.next = _left
    _left = lent
    pthread_cond_broadcast(&_changed)
    pthread_mutex_unlock(&_mutex)


cdef void _end(PyObject* lent) noexcept:
    cdef object kept
    if lent == NULL:
        return
    kept = <object>lent
    Py_DECREF(kept)  # the name keeps it
    try:
        if type(kept) is Loan:
            (<Loan>kept).end_or_raise(True)
    except BaseException as error:  # of an author's deallocate, to end the program: it is the main thread's to end
        raise_on_main_thread(error)


cdef void _end_all(Lent* lent) noexcept:
    cdef Lent* following
    while lent != NULL:
        following = lent.next
        _end(lent.one)
        _end(lent.other)
        free(lent)
        _held.fetch_sub(1)
        lent = following


def _end_what_is_left():
    """The thread: wait without the GIL, end loans with it."""
    global _left
    cdef Lent* lent
    cdef bint stopping = False
    while not stopping:
        with nogil:
            pthread_mutex_lock(&_mutex)
            while _left == NULL and not _stopping:
                pthread_cond_wait(&_changed, &_mutex)
            lent = _left
            _left = NULL
            stopping = _stopping
            pthread_mutex_unlock(&_mutex)
        _end_all(lent)


def _stop():
    """At exit: end the thread while Python runs. What a graph lets go of later stays to the end of the process."""
    global _stopping
    thread = _thread
    if thread is None or not thread.is_alive():
        return
    deadline = time.monotonic() + _PATIENCE
    while _held.load() > 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    with nogil:
        pthread_mutex_lock(&_mutex)
        _stopping = True
        pthread_cond_broadcast(&_changed)
        pthread_mutex_unlock(&_mutex)
    thread.join(1)


atexit.register(_stop)


cdef int _ensure_thread() except -1:
    """Start the thread with the first captured operation, and once more in the child of a fork."""
    global _thread
    if _thread is None or not _thread.is_alive():
        thread = threading.Thread(target=_end_what_is_left, name="cuda.core graph loans", daemon=True)
        thread.start()
        _thread = thread
    return 0


cdef bint _is_of_capture(Record record, uint64_t capture) noexcept:
    """Whether memory is allocated by the graph of a capture, seen through a view or not. The graph has it anyway."""
    cdef object owner = record.held_owner()
    while True:
        if type(owner) is Loan:
            owner = (<Loan>owner).held_record()
        elif isinstance(owner, Record):
            owner = (<Record>owner).held_owner()
        else:
            break
    return isinstance(owner, GraphPlace) and (<GraphPlace>owner).of.graph.id == capture


cdef int take_back(StreamHandle* order, GraphLoan* loan) except -1:
    cdef cydriver.CUresult asked
    if loan.object == NULL:  # the graph's own memory only
        return 0
    with nogil:
        hold_captures_off()
        # Refused, or where the capture is over, the graph keeps the loan until it goes.
        if _captures_still(order, loan, &asked):
            cydriver.cuGraphReleaseUserObject(loan.graph, loan.object, 1)
        let_captures_begin()
    return 0


cdef PyObject* _open_loan(Record record, uint64_t capture) except NULL:
    cdef Loan loan = new_graph_loan(record, "captured")
    try:
        if loan.of_graph:
            note_lent(capture, loan.record.range)
    except BaseException:
        loan.end()
        raise
    Py_INCREF(loan)
    return <PyObject*>loan


cdef cydriver.CUresult _ask_for_graph(StreamHandle* order, cydriver.CUstreamCaptureStatus* status,
                                      cydriver.cuuint64_t* capture, cydriver.CUgraph* graph) noexcept nogil:
    return cydriver.cuStreamGetCaptureInfo(order.stream, status, capture, graph, NULL, NULL, NULL)


cdef bint _captures_still(StreamHandle* order, GraphLoan* loan, cydriver.CUresult* result) noexcept nogil:
    """Whether a stream is in the capture that was noted. With captures held off: else the graph may be gone by then.

    ``result`` is what the driver has answered. Where it refuses to tell, that is no.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.cuuint64_t capture = 0
    cdef cydriver.CUgraph graph = NULL
    result[0] = _ask_for_graph(order, &status, &capture, &graph)
    return (
        result[0] == cydriver.CUresult.CUDA_SUCCESS
        and status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        and capture == loan.capture
    )


cdef bint _give(StreamHandle* order, Lent* lent, GraphLoan* loan) except -1:
    """Let a graph hold what is lent. If it is refused, or the capture is over by now (False), all of it ends."""
    cdef cydriver.CUresult result, asked
    cdef bint captures = False
    with nogil:
        result = cydriver.cuUserObjectCreate(
            &loan.object, lent, _graph_is_gone, 1, cydriver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        )
    if result != cydriver.CUresult.CUDA_SUCCESS:
        loan.object = NULL
        _end_all(lent)
        check(result, b"cuUserObjectCreate")
    with nogil:
        hold_captures_off()
        captures = _captures_still(order, loan, &asked)
        if captures:
            # The reference goes over to the graph.
            result = cydriver.cuGraphRetainUserObject(
                loan.graph, loan.object, 1, cydriver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
            )
        let_captures_begin()
        if not captures or result != cydriver.CUresult.CUDA_SUCCESS:
            end_user_object(loan.object)  # which ends the loans
            loan.object = NULL
    check(asked, b"cuStreamGetCaptureInfo")
    check(result, b"cuGraphRetainUserObject")
    return captures


cdef int keep_for_graph(StreamHandle* order, object kept, GraphLoan* loan) except -1:
    """Keep an object as long as the graph that is being captured on a stream, and everything made from it.

    Raises
    ------
    CUDAError
        If the driver refuses, or the stream is not being captured. Nothing is kept then.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUresult result
    cdef Lent* lent
    with nogil:
        hold_captures_off()
        result = _ask_for_graph(order, &status, &loan.capture, &loan.graph)
        let_captures_begin()
    check(result, b"cuStreamGetCaptureInfo")
    if status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, b"cuStreamGetCaptureInfo")
    _ensure_thread()
    lent = <Lent*>calloc(1, sizeof(Lent))
    if lent == NULL:
        raise MemoryError("no memory for what a graph keeps")
    _held.fetch_add(1)
    Py_INCREF(kept)
    lent.one = <PyObject*>kept
    if not _give(order, lent, loan):
        raise error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, b"cuStreamGetCaptureInfo")
    return 0


cdef bint lend_to_graph(StreamHandle* order, Record one, Record other, GraphLoan* loan) except -1:
    """Begin loans that last as long as the graph that is being captured on a stream.

    Parameters
    ----------
    order
        The stream on which an operation is about to be put.
    one, other
        What the operation uses. ``other`` may be None.
    loan
        Where to note what was lent.

    Returns
    -------
    bool
        Whether the stream is being captured. If not, nothing was lent; nor was what this very graph allocates.

    Raises
    ------
    CUDAError
        If the driver refuses. Nothing was lent then, and the capture is as it was.
    OwnershipError
        If a buffer is closed, or being released or moved by another call.
    """
    cdef bint captured = False
    while not _try_to_lend(order, one, other, loan, &captured):
        pass  # the capture ended meanwhile, and the stream may be in another one
    return captured


cdef bint _try_to_lend(StreamHandle* order, Record one, Record other, GraphLoan* loan, bint* captured) except -1:
    """The same for the capture of this moment. False, and nothing lent, if it ended before the graph had it all."""
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUresult result
    cdef Lent* lent
    cdef bint own_one, own_other
    captured[0] = False
    loan.object = NULL
    loan.begun = captures_begun()
    with nogil:
        hold_captures_off()
        result = cydriver.cuStreamIsCapturing(order.stream, &status)
        if (
            result == cydriver.CUresult.CUDA_SUCCESS
            and status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        ):
            captured[0] = True
            result = _ask_for_graph(order, &status, &loan.capture, &loan.graph)
        let_captures_begin()
    # The legacy stream refuses to be asked while a stream is captured that it would wait for. So would the operation;
    # but that would invalidate the capture.
    check(result, b"cuStreamGetCaptureInfo" if captured[0] else b"cuStreamIsCapturing")
    if not captured[0]:
        return True
    if status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:  # one of others', over by now
        return False
    # A loan of the graph on its own memory would keep a close from making the node that frees it.
    own_one = _is_of_capture(one, loan.capture)
    own_other = other is None or other is one or _is_of_capture(other, loan.capture)
    if own_one and own_other:
        return True
    _ensure_thread()
    lent = <Lent*>calloc(1, sizeof(Lent))
    if lent == NULL:
        raise MemoryError("no memory for the loan of a graph")
    _held.fetch_add(1)
    try:
        if not own_one:
            lent.one = _open_loan(one, loan.capture)
        if not own_other:
            lent.other = _open_loan(other, loan.capture)
    except BaseException:
        _end_all(lent)
        raise
    return _give(order, lent, loan)


cdef bint hold_as_asked(GraphLoan* loan) noexcept nogil:
    hold_captures_off()
    if captures_begun() == loan.begun:
        return True
    let_captures_begin()
    return False


cdef bint hold_in_capture(StreamHandle* order, GraphLoan* loan, cydriver.CUresult* result) noexcept nogil:
    hold_captures_off()
    if _captures_still(order, loan, result):
        return True
    let_captures_begin()
    return False


cdef int lend_late(StreamHandle* order, Record one, Record other, GraphLoan* loan) except -1:
    """Lend what an operation uses that was put into a stream as an uncaptured one, if a capture has begun meanwhile.

    Whether the operation came before the begin or is in the graph is not known, so the graph keeps the memory in both
    cases. It is called before the caller's own loans end.

    Raises
    ------
    CUDAError
        If the driver refuses.
    """
    while captures_begun() != loan.begun:
        if lend_to_graph(order, one, other, loan):
            break
    return 0
