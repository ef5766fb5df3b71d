# SPDX-License-Identifier: Apache-2.0
cdef list buffers_argument(object buffers, str caller, str single)

# Loans on any number of buffers, ended together.
cdef class Loans:
    cdef list records
    cdef int add(self, list buffers, str what) except -1
    cdef int end(self) noexcept
