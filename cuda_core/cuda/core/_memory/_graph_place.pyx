# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph whose memory somebody here has, or that is built here; and which allocation a buffer is.

It is counted, and outlives the driver's graph: a buffer may be closed after it.
"""

from weakref import WeakValueDictionary

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from libcpp.atomic cimport atomic

from cuda.core._driver cimport is_finalizing
from cuda.core._fork cimport fork_generation
from cuda.core._memory._allocation cimport Keeper
from cuda.core._pthread cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cuda.core._stream_handle cimport release_stream

cdef extern from *:
    long __atomic_add_fetch(long*, long, int) noexcept nogil
    void __atomic_store_n(int*, int, int) noexcept nogil
    enum:
        __ATOMIC_ACQ_REL
        __ATOMIC_RELEASE

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil

cdef atomic[long] _live
cdef atomic[size_t] _to_end  # a list of graphs that nobody holds any more

# By the number of the capture.
cdef object _known = WeakValueDictionary()


cdef void let_go_of(Gone* gone) noexcept nogil:
    if gone != NULL and __atomic_add_fetch(&gone.count, -1, __ATOMIC_ACQ_REL) == 0:
        free(gone)


cdef void graph_is_gone(void* data) noexcept nogil:
    """The destructor of a user object, called by the driver on a thread on which it may not be called."""
    cdef Gone* gone = <Gone*>data
    __atomic_store_n(&gone.gone, 1, __ATOMIC_RELEASE)
    let_go_of(gone)


cpdef long live_graphs() noexcept:
    """Return the number of graphs of which something is known: built here, or with memory that somebody here has."""
    return _live.load()


cdef CapturedGraph* retain_graph(CapturedGraph* graph) noexcept nogil:
    __atomic_add_fetch(&graph.count, 1, __ATOMIC_ACQ_REL)
    return graph


cdef void release_graph(CapturedGraph* graph) noexcept nogil:
    if graph != NULL and __atomic_add_fetch(&graph.count, -1, __ATOMIC_ACQ_REL) == 0:
        _end(graph)


cdef void release_graph_on_reaper(CapturedGraph* graph) noexcept nogil:
    """The same for a thread that may never take the GIL. A stream that Python keeps alive is let go of elsewhere."""
    cdef size_t following
    if __atomic_add_fetch(&graph.count, -1, __ATOMIC_ACQ_REL) != 0:
        return
    if graph.launched_on == NULL or graph.launched_on.owner == NULL:
        _end(graph)
        return
    following = _to_end.load()
    graph.next = <CapturedGraph*>following
    while not _to_end.compare_exchange_weak(following, <size_t>graph):
        graph.next = <CapturedGraph*>following
    Py_AddPendingCall(_end_all, NULL)


cdef int _end_all(void* unused) noexcept:
    """A pending call: the main thread makes it, with the GIL."""
    cdef CapturedGraph* graph
    cdef CapturedGraph* following
    if is_finalizing():
        return 0
    graph = <CapturedGraph*>_to_end.exchange(0)
    with nogil:
        while graph != NULL:
            following = graph.next
            _end(graph)
            graph = following
    return 0


cdef void _end(CapturedGraph* graph) noexcept nogil:
    cdef GraphAllocation* allocation
    while graph.allocations != NULL:
        allocation = graph.allocations
        graph.allocations = allocation.next
        free(allocation)
    if graph.generation == fork_generation():  # in a child the stream is the parent's
        release_stream(graph.launched_on)
    let_go_of(graph.gone)
    pthread_mutex_destroy(&graph.mutex)
    free(graph.continued)
    free(graph)
    _live.fetch_sub(1)


cdef class GraphReference:
    """What Python objects hold of a graph: one count of what is known of it."""

    def __dealloc__(self):
        cdef CapturedGraph* graph = self.graph
        self.graph = NULL
        with nogil:
            release_graph(graph)


cdef class GraphPlace(Keeper):
    """What a buffer holds in the place of an owner: which allocation of which graph it is."""


cdef GraphReference reference_of_capture(uint64_t id):
    """Return what is known of the graph of a capture, from now on if nothing was."""
    cdef GraphReference self = _known.get(id)
    cdef CapturedGraph* graph
    if self is not None:
        return self
    graph = <CapturedGraph*>calloc(1, sizeof(CapturedGraph))
    if graph == NULL:
        raise MemoryError("no memory for a graph")
    _live.fetch_add(1)
    graph.count = 1
    graph.id = id
    graph.generation = fork_generation()
    pthread_mutex_init(&graph.mutex, NULL)
    self = GraphReference.__new__(GraphReference)
    self.graph = graph
    return _known.setdefault(id, self)  # another thread may have come first


cdef int note_lent(uint64_t id, object range_) except -1:
    """Note that the graph of a capture has addresses of a range. Of graphs that nobody here launches nothing is noted.
    """
    cdef GraphReference reference = _known.get(id)
    if reference is None:
        return 0
    with cython.critical_section(reference):
        if reference.lent is None:
            reference.lent = set()
    reference.lent.add(range_)
    return 0


cdef int continue_on(CapturedGraph* graph, cydriver.CUstream stream) except -1:
    """Note a stream on which work may follow after a free node: what comes later will join the capture."""
    cdef cydriver.CUstream* longer
    cdef bint enough = False
    with nogil:
        pthread_mutex_lock(&graph.mutex)
        longer = <cydriver.CUstream*>realloc(
            graph.continued, (graph.continued_count + 1) * sizeof(cydriver.CUstream)
        )
        if longer != NULL:
            enough = True
            graph.continued = longer
            longer[graph.continued_count] = stream
            graph.continued_count += 1
        pthread_mutex_unlock(&graph.mutex)
    if not enough:
        raise MemoryError("no memory for the streams of a graph")
    return 0


cdef void stop_on(CapturedGraph* graph, cydriver.CUstream stream) noexcept nogil:
    """Note that another stream goes on from what is on this one."""
    cdef int index
    pthread_mutex_lock(&graph.mutex)
    for index in range(graph.continued_count):
        if graph.continued[index] == stream:
            graph.continued_count -= 1
            graph.continued[index] = graph.continued[graph.continued_count]
            break
    pthread_mutex_unlock(&graph.mutex)


cdef bint continues(CapturedGraph* graph, cydriver.CUstream stream) noexcept nogil:
    cdef int index
    cdef bint found = False
    pthread_mutex_lock(&graph.mutex)
    for index in range(graph.continued_count):
        found = found or graph.continued[index] == stream
    pthread_mutex_unlock(&graph.mutex)
    return found


cdef void part_ends(CapturedGraph* graph) noexcept nogil:
    """Count a part less; with the last one the graph is gone. Called with the mutex."""
    graph.parts -= 1
    if graph.parts == 0:
        graph.ended = True
