# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

from cuda.core._stream_handle cimport StreamHandle

cdef cydriver.CUresult context_of_stream(StreamHandle* handle, cydriver.CUcontext* context,
                                         const char** function) noexcept nogil
cdef cydriver.CUresult ask_for_context_of(StreamHandle* handle, cydriver.CUcontext* context,
                                          const char** function) noexcept nogil
cdef cydriver.CUresult wait_behind(cydriver.CUstream later, cydriver.CUcontext context, StreamHandle* earlier,
                                   bint captured, bint* gone, const char** function) noexcept nogil
cdef cydriver.CUresult join_first(StreamHandle* all_, bint* capturing, const char** function) noexcept nogil
cdef bint are_one_capture(StreamHandle** streams, int count) except -1
cdef cydriver.CUresult wait_in_order(StreamHandle* handle, bint* waited, bint* capturing,
                                     const char** function) noexcept nogil
cdef cydriver.CUresult wait_for_stream(StreamHandle* handle, bint* capturing, const char** function) noexcept nogil
cdef cydriver.CUresult wait_behind_stream(StreamHandle* later, StreamHandle* earlier, bint captured, bint* gone,
                                          const char** function) noexcept nogil
cdef cydriver.CUresult enter_context_of_stream(StreamHandle* handle, bint* pushed,
                                               const char** function) noexcept nogil
