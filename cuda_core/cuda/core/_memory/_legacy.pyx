# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory by the driver's older calls."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._memory._plain_resource cimport PlainResource, return_plain

__all__ = ["LegacyPinnedMemoryResource"]


cdef class LegacyPinnedMemoryResource(PlainResource):
    """Allocates page-locked host memory, which host and devices can use.

    Notes
    -----
    Safe from any thread. Allocating needs a current context. A close has freed the memory when it returns.

    Examples
    --------
    >>> with LegacyPinnedMemoryResource().allocate(4096) as buffer:
    ...     memoryview(buffer)[:5] = b"hello"
    """

    _page_locked = True  # asked by copies

    def __cinit__(self):
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is LegacyPinnedMemoryResource:
            self.deleter = return_plain

    cdef cydriver.CUresult raw_allocate(self, size_t size, uintptr_t* address, const char** function) noexcept nogil:
        cdef void* pointer = NULL
        cdef cydriver.CUresult result
        function[0] = b"cuMemAllocHost"
        result = cydriver.cuMemAllocHost(&pointer, size)
        address[0] = <uintptr_t>pointer
        return result

    @property
    def device_id(self) -> int:
        """Raises RuntimeError: the memory belongs to no device."""
        raise RuntimeError("a pinned memory resource is not bound to any GPU")

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: True."""
        return True
