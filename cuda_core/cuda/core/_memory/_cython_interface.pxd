# SPDX-License-Identifier: Apache-2.0
"""Buffers for compiled modules: state, address, loans, release, hand-over.

``cimport`` this file and no other of ``cuda.core._memory``: it needs no header, neither of CUDA nor of the bindings,
and works in C and in C++. Where a function of the installed package has another signature than the one that a module
was compiled with, importing the module is a TypeError.

All functions need the GIL. Where one takes ``buffer``, anything else than a ``cuda.core.Buffer`` is a TypeError.
"""

from libc.stdint cimport uintptr_t

# Who must return the memory; the values of cuda.core.Ownership.
cdef enum BufferState:
    BUFFER_RELEASED = 0
    BUFFER_OWNED = 1
    BUFFER_BORROWED = 2
    BUFFER_TRANSFERRED = 3

# What a release has done; the values of cuda.core.CloseResult.
cdef enum BufferClosed:
    CLOSED_DONE = 0
    CLOSED_QUEUED = 1
    CLOSED_LENT = 2
    CLOSED_IN_PROGRESS = 3
    CLOSED_NOTHING = 4

# -- looking -----------------------------------------------------------------------------------------------------

# One of BufferState. An answer about this moment: another thread may change it.
cdef int buffer_state(object buffer) except -1

# Raises OwnershipError where the buffer is closed, transferred, or being released or moved by another call.
cdef int check_buffer_open(object buffer) except -1

# The address, and the size in bytes; 0 once the buffer is closed or transferred. For a call that keeps neither. Who
# uses the address without the GIL, or after returning, takes it from lend_buffer.
cdef uintptr_t buffer_pointer(object buffer) except? 0
cdef size_t buffer_size(object buffer) except? 0

# -- loans -------------------------------------------------------------------------------------------------------

# Begins a loan: until it is ended the memory stays where it is, whatever becomes of the buffer. Writes the address
# and the size where the pointers are not NULL. Raises OwnershipError, as check_buffer_open does, and has begun
# nothing then.
cdef int lend_buffer(object buffer, uintptr_t* pointer, size_t* size) except -1

# Ends a loan that lend_buffer began on this very object, which the caller has kept alive. The last loan on a closed
# buffer returns the memory; what the driver then refuses is reported as a CUDAWarning, not raised. RuntimeError
# where no loan is open: nothing has happened then.
cdef int end_buffer_loan(object buffer) except -1

# -- giving up ---------------------------------------------------------------------------------------------------

# What buffer.close(stream, wait=wait) does: one of BufferClosed. stream may be None for the recorded one.
cdef int release_buffer(object buffer, object stream, bint wait) except -1

# What buffer.detach() does: returns the Allocation. BufferError where loans are open.
cdef object detach_buffer(object buffer)

# What Buffer.adopt(allocation, mr) does: returns a new buffer, OWNED. mr may be None for the resource that made it.
cdef object adopt_allocation(object allocation, object mr)
