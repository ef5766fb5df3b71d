# SPDX-License-Identifier: Apache-2.0
"""The end of long chains: slices of slices, views of views, buffers that own one another.

Where each of a hundred thousand objects holds the next one, dropping the first ends them all, each inside the end of
the one before, until the C stack is used up. Python's own containers bound that depth; an extension class with a
finalizer has to do it by itself. So references that can be part of a chain are dropped here: beyond a certain depth
they wait for the outermost of the drops under way on the thread.
"""

from cpython.ref cimport PyObject
from libc.stdlib cimport free, malloc

cdef struct Waiting:
    PyObject* thing
    Waiting* next

cdef extern from *:
    """
    static thread_local int cuda_core_drops = 0;
    static thread_local void *cuda_core_waiting = nullptr;
    """
    int _depth "cuda_core_drops"      # drops under way on this thread
    void* _waiting "cuda_core_waiting"  # a list of Waiting: what the outermost of them will drop

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*) noexcept
    void Py_DECREF(PyObject*) noexcept

cdef enum:
    DEEPEST = 16


cdef void let_go(PyObject* thing) noexcept:
    global _depth, _waiting
    cdef Waiting* one
    if Py_REFCNT(thing) > 1:  # somebody else holds it, as others of one pool hold the pool: it does not end here
        Py_DECREF(thing)
        return
    if _depth >= DEEPEST:
        one = <Waiting*>malloc(sizeof(Waiting))
        if one != NULL:  # else it goes deeper
            one.thing, one.next = thing, <Waiting*>_waiting
            _waiting = one
            return
    _depth += 1
    Py_DECREF(thing)
    if _depth == 1:
        while _waiting != NULL:
            one = <Waiting*>_waiting
            _waiting = one.next
            thing = one.thing
            free(one)
            Py_DECREF(thing)
    _depth -= 1
