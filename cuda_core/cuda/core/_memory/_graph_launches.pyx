# SPDX-License-Identifier: Apache-2.0
"""Where executable graphs were launched that use virtual memory, so that pausing it can wait for them.

A graph is launched on any stream, and the buffers that it uses do not record that: a close need not know, as the graph
has a loan. A pause goes past such loans. So each launch looks, with the mutex of its graph, whether a range is paused
or about to be, and leaves its stream; a pause marks the range first, then takes the same mutex to read the stream.
Whoever comes second sees the other.
"""

cimport cython
from cpython.ref cimport PyObject
from libcpp.vector cimport vector
from weakref import WeakValueDictionary

from cuda.core._fork cimport fork_generation
from cuda.core._memory._graph_place cimport CapturedGraph, release_graph, retain_graph
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream_handle cimport StreamHandle, drop_stream, retain_stream

# Of all executables that were launched with virtual memory, by id.
cdef object _known = WeakValueDictionary()


cdef Launches launches_of(CapturedGraph* graph):
    """Return a record for the launches of one executable of a graph."""
    cdef Launches self = Launches.__new__(Launches)
    self.graph = retain_graph(graph)
    self.lent = frozenset()
    return self


cdef class Launches:
    """The launches of one executable. The driver runs them one after the other, so the last one ends last."""

    def __dealloc__(self):
        cdef CapturedGraph* graph = self.graph
        cdef StreamHandle* last = self.last
        self.graph = NULL
        self.last = NULL
        if graph == NULL:
            return
        if graph.generation == fork_generation():  # in a child the stream is the parent's
            drop_stream(last)
        with nogil:
            release_graph(graph)

    cdef tuple begin(self, object lent):
        """Note what a launch is about to use, and return the ranges."""
        cdef VirtualRange range_
        cdef frozenset before, after
        cdef set kept
        cdef bint noted = False
        if not lent:
            return ()
        while not noted:
            before = self.held_lent()
            if before.issuperset(lent):
                break
            kept = set(lent)
            for range_ in before:
                if not range_.is_empty():  # an earlier launch may be in flight
                    kept.add(range_)
            after = frozenset(kept)
            with cython.critical_section(self):
                noted = self.lent is before  # else another thread launches it, too, and has noted something
                if noted:
                    self.lent = after
            _known[id(self)] = self
        return tuple(lent)

    cdef frozenset held_lent(self):
        with cython.critical_section(self):
            return self.lent

    cdef StreamHandle* hold_last(self) noexcept:
        """Return a reference to the stream of the last launch, or NULL."""
        cdef StreamHandle* last
        with nogil:
            pthread_mutex_lock(&self.graph.mutex)
            last = retain_stream(self.last)
            pthread_mutex_unlock(&self.graph.mutex)
        return last


cdef PyObject* first_paused(vector[PyObject*]* ranges) noexcept nogil:
    """Return the first range that is paused or about to be, or NULL. With the mutex of the graph."""
    cdef size_t i
    for i in range(ranges.size()):
        if (<VirtualRange>ranges[0][i]).paused.load():
            return ranges[0][i]
    return NULL


cdef list launches_with(object range_):
    """Return the launches that may use a range."""
    cdef Launches each
    cdef list found = []
    for reference in _known.valuerefs():
        each = reference()
        if each is not None and range_ in each.held_lent():
            found.append(each)
    return found
