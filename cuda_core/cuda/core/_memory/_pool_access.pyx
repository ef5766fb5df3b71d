# SPDX-License-Identifier: Apache-2.0
"""Which devices may use the memory of a pool: asked of the driver each time, and changed in one call.

The calls are made with the thread's capture mode exchanged for RELAXED, so that they disturb nobody's capture.
"""

from cuda.bindings cimport cydriver
from libc.stdlib cimport calloc, free

from cuda.core._context cimport device_count
from cuda.core._driver cimport check


cdef list devices_with_access(cydriver.CUmemoryPool pool, int owner):
    """Return the ordinals of the devices that may use the memory, without the device that it is of (-1: of none)."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUmemAccess_flags has = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    cdef cydriver.CUmemLocation place
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef int count = device_count(), ordinal
    cdef char* able
    cdef list found = []
    if count <= 1 and owner >= 0:
        return []  # there is no other
    able = <char*>calloc(count, 1)
    if able == NULL:
        raise MemoryError("no memory for access rights")
    place.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    with nogil:
        function = b"cuThreadExchangeStreamCaptureMode"
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolGetAccess"
            for ordinal in range(count):
                if ordinal == owner:
                    continue
                place.id = ordinal
                result = cydriver.cuMemPoolGetAccess(&has, pool, &place)
                if result != cydriver.CUresult.CUDA_SUCCESS:
                    break
                able[ordinal] = has != cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        check(result, function)
        for ordinal in range(count):
            if able[ordinal]:
                found.append(ordinal)
        return found
    finally:
        free(able)


cdef bint has_access(cydriver.CUmemoryPool pool, int ordinal) except -1:
    """Whether a device may read and write the memory."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUmemAccess_flags has = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    cdef cydriver.CUmemLocation place
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    place.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = ordinal
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolGetAccess"
            result = cydriver.cuMemPoolGetAccess(&has, pool, &place)
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    check(result, function)
    return has == cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


cdef int change_access(cydriver.CUmemoryPool pool, list granted, list withdrawn) except -1:
    """Give some devices access to read and write and take it from others, in one call; none where nothing differs."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUmemAccessDesc* rights
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    cdef size_t count = len(granted) + len(withdrawn), place
    if not count:
        return 0
    rights = <cydriver.CUmemAccessDesc*>calloc(count, sizeof(cydriver.CUmemAccessDesc))
    if rights == NULL:
        raise MemoryError("no memory for access rights")
    for place, ordinal in enumerate(granted + withdrawn):
        rights[place].location.type = cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        rights[place].location.id = ordinal
        if place < <size_t>len(granted):
            rights[place].flags = cydriver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolSetAccess"
            result = cydriver.cuMemPoolSetAccess(pool, rights, count)
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    free(rights)
    return check(result, function)


cdef int withdraw_all(cydriver.CUmemoryPool pool, int owner) except -1:
    """Take the access of every other device away from a pool that is new here.

    A driver may give out the handle of a destroyed pool again, with the rights that the old one had.
    """
    return change_access(pool, [], devices_with_access(pool, owner))
