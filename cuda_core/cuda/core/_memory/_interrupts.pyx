# SPDX-License-Identifier: Apache-2.0
"""Exceptions that end the program or the thread, raised by an author's ``deallocate`` where no exception can pass.

``memoryview.release()``, a collection and C code that ends a loan have no way to raise. An author's failure is reported
there; but Ctrl-C and ``sys.exit()`` are not about the memory, and a program that goes on after them is wrong. They are
raised again at the next point where Python raises what comes from outside, which is right behind the call in progress.
"""

import threading

from cpython.ref cimport Py_DECREF, Py_INCREF

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) except -1, void*)
    int PyErr_CheckSignals() except -1
    int PyThreadState_SetAsyncExc(unsigned long thread, object kind)
    unsigned long PyThread_get_thread_ident() noexcept nogil


cdef bint is_interrupt(object error) noexcept:
    return isinstance(error, (KeyboardInterrupt, SystemExit))


cdef int _raise_again(void* error) except -1:
    cdef object owned = <object>error
    Py_DECREF(owned)
    raise owned


cdef void pass_on(object error) noexcept:
    """Raise an interrupt again, soon, on this thread; anything else is the business of whoever has reported it."""
    if not is_interrupt(error):
        return
    if PyThread_get_thread_ident() == threading.main_thread().ident:
        # The very exception: the exit status of the process may be in it.
        Py_INCREF(error)
        if Py_AddPendingCall(_raise_again, <void*>error) == 0:
            return
        Py_DECREF(error)
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type(error))


cdef int raise_what_has_come() except -1:
    """Run the handlers of signals that have come, and raise what they raise. For waits, which can be long.

    Python runs handlers on the main thread alone, between its instructions: while it waits in C it runs none.
    """
    return PyErr_CheckSignals()


cdef bint has_come() noexcept:
    """The same where nothing can be raised now: it is raised again right behind the call in progress.

    True where a wait should end for it.
    """
    try:
        raise_what_has_come()
    except BaseException as error:
        Py_INCREF(error)
        if Py_AddPendingCall(_raise_again, <void*>error) != 0:
            Py_DECREF(error)
            PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type(error))
        return True
    return False


cdef void raise_on_main_thread(object error) noexcept:
    """Raise an interrupt on the main thread, from a thread of this package, which has no caller that it could end."""
    if not is_interrupt(error):
        return
    Py_INCREF(error)
    if Py_AddPendingCall(_raise_again, <void*>error) != 0:
        Py_DECREF(error)
        PyThreadState_SetAsyncExc(threading.main_thread().ident, type(error))
