# SPDX-License-Identifier: Apache-2.0
"""Plain device memory: what a device without memory pools falls back to."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._context cimport primary_context
from cuda.core._memory._allocation cimport Record
from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._plain_resource cimport PlainResource, return_plain


cdef class _SynchronousMemoryResource(PlainResource):
    """Allocates plain device memory, in the primary context of its device.

    Parameters
    ----------
    device_id : Device or int
        The device.

    Notes
    -----
    Safe from any thread; the thread's current context stays what it is. The driver's free waits for the device.
    """

    def __cinit__(self):
        self._ordinal = -1
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is _SynchronousMemoryResource:
            self.deleter = return_plain

    def __init__(self, device_id: Device | int) -> None:
        self._ordinal = device_argument(device_id)

    cdef int ordinal(self) noexcept:
        return self._ordinal

    cdef cydriver.CUcontext context_of_memory(self, Record record, unsigned long long* id) noexcept:
        cdef cydriver.CUcontext context = PlainResource.context_of_memory(self, record, id)
        if self._context == NULL or context == self._context:
            return context
        id[0] = 0
        return self._context

    cdef cydriver.CUcontext context_to_allocate_in(self) except? NULL:
        return self._context

    cdef int prepare(self) except -1:
        if self._ordinal < 0:
            raise RuntimeError(f"{type(self).__name__}.__init__ was not called")
        if self._context == NULL:
            self._context = primary_context(self._ordinal)
        return 0

    cdef cydriver.CUresult raw_allocate(self, size_t size, uintptr_t* address, const char** function) noexcept nogil:
        cdef cydriver.CUdeviceptr pointer = 0
        cdef cydriver.CUcontext popped = NULL
        cdef cydriver.CUresult result
        function[0] = b"cuCtxPushCurrent"
        result = cydriver.cuCtxPushCurrent(self._context)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            return result
        function[0] = b"cuMemAlloc"
        result = cydriver.cuMemAlloc(&pointer, size)
        cydriver.cuCtxPopCurrent(&popped)
        address[0] = pointer
        return result

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated."""
        return self._ordinal

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""
        return False
