# SPDX-License-Identifier: Apache-2.0
from cpython.ref cimport Py_INCREF, PyObject

# Drops a reference, which passes to this function.
cdef void let_go(PyObject* thing) noexcept

# Returns a reference of its own, to be dropped by let_go() once the place that it was in is empty.
cdef inline PyObject* keep(object thing) noexcept:
    Py_INCREF(thing)
    return <PyObject*>thing
