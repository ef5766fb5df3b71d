# SPDX-License-Identifier: Apache-2.0
"""What operations on several buffers at once share: their arguments, and loans on all of them."""

from collections.abc import Sequence

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._loans cimport end_loan, lend

from cuda.core._error_text import shown


cdef list buffers_argument(object buffers, str caller, str single):
    """Return a sequence of buffers as a list.

    Parameters
    ----------
    buffers
        What the caller was given.
    caller
        The name of the function, for the error.
    single
        What to call for one buffer, for the error.

    Raises
    ------
    TypeError
        If it is a single buffer, no sequence, or has something else than buffers in it.
    ValueError
        If it is empty.
    """
    cdef list result
    if isinstance(buffers, Buffer):
        raise TypeError(f"{caller}: pass a sequence of Buffers; for a single buffer use {single}")
    if not isinstance(buffers, Sequence):
        raise TypeError(
            f"{caller}: buffers must be a sequence of Buffer, got {type(buffers).__name__}: {shown(buffers)}"
        )
    result = list(buffers)
    if not result:
        raise ValueError(f"{caller}: empty buffers sequence")
    for buffer in result:
        if not isinstance(buffer, Buffer):
            raise TypeError(f"{caller}: expected Buffer, got {type(buffer).__name__}: {shown(buffer)}")
    return result


cdef class Loans:
    def __cinit__(self):
        self.records = []

    cdef int add(self, list buffers, str what) except -1:
        """Lend each. If one is refused, :meth:`end` ends those before it."""
        cdef Record record
        for record in buffers:
            self.records.append(record)  # first: an append that fails after the loan would leave it open for ever
            try:
                lend(record, what)
            except BaseException:
                self.records.pop()
                raise
        return 0

    cdef int end(self) noexcept:
        cdef Record record
        for record in self.records:  # nothing here may need memory: a loan that does not end keeps its buffer
            end_loan(record)
        self.records.clear()
        return 0
