# SPDX-License-Identifier: Apache-2.0
"""What ``_cython_interface.pxd`` declares for the compiled modules of others.

Nothing in this package imports it. Its functions name objects and integers only, so that whoever calls them needs to
know neither the layout of a record nor a header of CUDA.
"""

from libc.stdint cimport uintptr_t

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._buffer cimport Buffer
from cuda.core._memory._loans cimport end_loan, lend
from cuda.core._memory._ownership cimport STATE_BORROWED, STATE_OWNED

from cuda.core._error_text import shown


cdef Record _record_of(object buffer):
    if not isinstance(buffer, Buffer):
        raise TypeError(f"buffer must be a Buffer, got {type(buffer).__name__}: {shown(buffer)}")
    return buffer


cdef bint _is_open(Record record):
    cdef int state = record.state()
    return state == STATE_OWNED or state == STATE_BORROWED


cdef int buffer_state(object buffer) except -1:
    return _record_of(buffer).state()


cdef int check_buffer_open(object buffer) except -1:
    return _record_of(buffer).ensure_usable()


cdef uintptr_t buffer_pointer(object buffer) except? 0:
    cdef Record record = _record_of(buffer)
    return record.pointer if _is_open(record) else 0


cdef size_t buffer_size(object buffer) except? 0:
    cdef Record record = _record_of(buffer)
    return record.size if _is_open(record) else 0


cdef int lend_buffer(object buffer, uintptr_t* pointer, size_t* size) except -1:
    cdef Record record = _record_of(buffer)
    lend(record, "lent")
    # Behind the beginning of the loan: from here on address and size stay what they are.
    if pointer != NULL:
        pointer[0] = record.pointer
    if size != NULL:
        size[0] = record.size
    return 0


cdef int end_buffer_loan(object buffer) except -1:
    cdef Record record = _record_of(buffer)
    if record.open_loans() == 0:
        raise RuntimeError(f"no loan on the buffer is open ({record.describe()})")
    end_loan(record)
    return 0


cdef int release_buffer(object buffer, object stream, bint wait) except -1:
    _record_of(buffer)
    return buffer.close(stream, wait=wait).value


cdef object detach_buffer(object buffer):
    _record_of(buffer)
    return buffer.detach()


cdef object adopt_allocation(object allocation, object mr):
    return Buffer.adopt(allocation, mr)
