# SPDX-License-Identifier: Apache-2.0
"""Functions of the host as nodes of a graph.

The driver calls them on a thread of its own, in every launch. The graph keeps the function, with a user object as it
keeps memory; a thread of the package lets go of it, since the driver's may not run Python when a graph is destroyed.
"""

import ctypes
import operator

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._capture_lock cimport let_captures_begin
from cuda.core._driver cimport check, is_finalizing
from cuda.core._memory._graph_loans cimport GraphLoan, hold_in_capture, keep_for_graph, take_back
from cuda.core._memory._interrupts cimport is_interrupt, raise_on_main_thread
from cuda.core._stream_handle cimport StreamHandle, enter_stream, leave_stream, stream_as_seen_here

from cuda.core._error_text import shown

cdef object _PROTOTYPE = "ctypes.CFUNCTYPE(None, ctypes.c_void_p)"


cdef class HostCall:
    """What is called, and with what."""


cdef void _call(HostCall call) noexcept:
    """Call a Python function. What it raises is told by ``sys.unraisablehook``; what ends the program ends it."""
    try:
        call.function()
    except BaseException as error:
        if not is_interrupt(error):
            raise  # where nothing can be raised it is printed
        raise_on_main_thread(error)


cdef void _call_python(void* data) noexcept nogil:
    """The host function that the driver calls for a Python one."""
    if is_finalizing():
        return
    with gil:
        _call(<HostCall>data)


cdef HostCall checked_callback(object function, object user_data):
    """Take a callback apart.

    Raises
    ------
    TypeError
        If it cannot be called, or is a function of C with another prototype, or its data is neither number nor bytes.
    ValueError
        If a Python function is given data.
    OverflowError
        If the data is a number that is no address.
    """
    cdef HostCall self = HostCall.__new__(HostCall)
    self.function = function
    if not isinstance(function, ctypes._CFuncPtr):
        if not callable(function):
            raise TypeError(f"callback must be callable, got {type(function).__name__}: {shown(function)}")
        if user_data is not None:
            raise ValueError(
                f"user_data is only supported with ctypes function pointers, got {type(user_data).__name__} for "
                f"{shown(function)}; use a closure or functools.partial"
            )
        return self
    if function.restype is not None or tuple(function.argtypes or ()) != (ctypes.c_void_p,):
        raise TypeError(f"a ctypes callback must have the prototype {_PROTOTYPE}, got {shown(function)} with restype "
                        f"{shown(function.restype)} and argtypes {shown(function.argtypes)}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise ValueError("a ctypes callback must not be a null pointer")
    self.entry = <void*><uintptr_t>address
    if user_data is None:
        return self
    if isinstance(user_data, int) and not isinstance(user_data, bool):
        number = operator.index(user_data)
        if not 0 <= number < 2**64:
            raise OverflowError(f"user_data must lie between 0 and 2**64 - 1, got {number}")
        self.argument = <void*><uintptr_t>number
        return self
    try:
        self.copied = bytes(memoryview(user_data))
    except TypeError:
        raise TypeError(
            f"user_data must be an integer or bytes-like, got {type(user_data).__name__}: {shown(user_data)}"
        ) from None
    self.argument = <void*><const char*>(<bytes>self.copied)
    return self


cdef int capture_callback(StreamHandle* order, HostCall call) except -1:
    """Put a call behind what is captured on a stream.

    Raises
    ------
    CUDAError
        If the driver refuses. The graph keeps nothing then.
    """
    cdef GraphLoan loan
    cdef cydriver.CUhostFn entry = <cydriver.CUhostFn>_call_python
    cdef void* argument = <void*>call
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    cdef bint pushed = False
    if call.entry != NULL:
        entry, argument = <cydriver.CUhostFn>call.entry, call.argument
    keep_for_graph(order, call, &loan)
    with nogil:
        result = enter_stream(order, &pushed, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuStreamGetCaptureInfo"
            if hold_in_capture(order, &loan, &result):
                function = b"cuLaunchHostFunc"
                result = cydriver.cuLaunchHostFunc(stream_as_seen_here(order), entry, argument)
                let_captures_begin()
            elif result == cydriver.CUresult.CUDA_SUCCESS:  # over: nothing would keep a call that is made at once
                result = cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            leave_stream(pushed)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        take_back(order, &loan)
    return check(result, function)
