# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef class IPCEventDescriptor:
    cdef cydriver.CUipcEventHandle handle
    cdef bint blocking

cdef IPCEventDescriptor name_event(const cydriver.CUipcEventHandle* handle, bint blocking)
