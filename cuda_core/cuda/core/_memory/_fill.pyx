# SPDX-License-Identifier: Apache-2.0
"""Fill a buffer with a repeated pattern of 1, 2 or 4 bytes, in the order of a stream."""

import operator

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cuda.bindings cimport cydriver
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from cuda.core._capture_lock cimport let_captures_begin
from cuda.core._driver cimport check, ensure_driver
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._graph_loans cimport GraphLoan, hold_as_asked, lend_to_graph, take_back
from cuda.core._memory._loans cimport end_loan, lend
from cuda.core._stream cimport Stream
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown


cdef size_t _pattern(object value, uint32_t* pattern) except 0:
    """Read the pattern; return how many bytes it has."""
    cdef Py_buffer view
    cdef Py_ssize_t width
    if isinstance(value, int):
        number = operator.index(value)  # of a subclass, whatever its comparisons say
        if not 0 <= number < 256:
            raise OverflowError(f"value must be in range [0, 256) for an integer, got {shown(number)}")
        pattern[0] = number
        return 1
    try:
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    except TypeError as error:
        raise TypeError(
            f"value must be an integer or an object of 1, 2 or 4 bytes with the buffer protocol, got "
            f"{type(value).__name__}: {shown(value)} ({error})"
        ) from None
    try:
        width = view.len
        if width not in (1, 2, 4):
            raise ValueError(f"value must be 1, 2, or 4 bytes, got {width}")
        memcpy(pattern, view.buf, width)  # the host and the device are little-endian: the first bytes are the low ones
    finally:
        PyBuffer_Release(&view)
    return width


cdef cydriver.CUresult _fill(size_t pointer, size_t size, uint32_t pattern, size_t width, StreamHandle* order,
                             const char** function) noexcept nogil:
    if width == 1:
        function[0] = b"cuMemsetD8Async"
        return cydriver.cuMemsetD8Async(pointer, <uint8_t>pattern, size, order.stream)
    if width == 2:
        function[0] = b"cuMemsetD16Async"
        return cydriver.cuMemsetD16Async(pointer, <uint16_t>pattern, size // 2, order.stream)
    function[0] = b"cuMemsetD32Async"
    return cydriver.cuMemsetD32Async(pointer, pattern, size // 4, order.stream)


cdef int fill(Record record, object value, Stream stream) except -1:
    """Fill all of a record's memory, lent for the length of the call, or to the graph that captures it.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If ``value`` is no pattern, or its bytes do not fit into the size or the address.
    OwnershipError
        If the buffer is closed, or being released or moved by another call.
    CUDAError
        If the driver refuses, as it does for memory of the host that it does not know.
    """
    cdef uint32_t pattern = 0
    cdef size_t width = 0
    cdef StreamHandle* order
    cdef GraphLoan loan
    cdef bint captured, so
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = NULL
    order = stream._hold()  # the value's own code may close the stream
    try:
        width = _pattern(value, &pattern)
        lend(record, "filled")
        try:
            if record.size % width:
                raise ValueError(f"buffer size ({record.size}) must be divisible by {width}")
            if record.pointer % width:
                raise ValueError(f"the address must be a multiple of {width}, got {<size_t>record.pointer:#x}")
            if record.size == 0:
                return 0
            ensure_driver()
            while True:
                captured = lend_to_graph(order, record, None, &loan)
                with nogil:
                    so = hold_as_asked(&loan)
                    if so:
                        result = _fill(record.pointer, record.size, pattern, width, order, &function)
                        let_captures_begin()
                if so:
                    break
            if captured and result != cydriver.CUresult.CUDA_SUCCESS:
                take_back(order, &loan)
            check(result, function)
        finally:
            end_loan(record)
    finally:
        drop_stream(order)
    return 0
