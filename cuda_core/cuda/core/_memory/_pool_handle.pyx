# SPDX-License-Identifier: Apache-2.0
"""The counted C handle of a memory pool, which resources and buffers hold.

A pool must outlive the resource that made it: its buffers stay valid when the resource is closed. So each of them holds
the handle, and the driver's pool is destroyed when the last holder has let go and all frees have run, in places where
no Python may run too. Only pools that were made here have a handle; those of a device belong to everybody.

The calls on pools count among those that a capture forbids. They are made with the thread's capture mode exchanged for
RELAXED, so that they disturb nobody's capture.
"""

import warnings

from cuda.bindings cimport cydriver
from libc.stdint cimport uint16_t, uintptr_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from cuda.core._driver cimport check, ensure_driver, error_for, is_finalizing, is_hopeless
from cuda.core._fork cimport fork_generation
from cuda.core._memory._allocation cimport Keeper
from cuda.core._memory._pending_frees cimport PendingFrees, all_is_known, forget_frees, frees_have_run
from cuda.core._memory._queue cimport BLOCKED, NOT_YET, READY, Readiness, append_question
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._pthread cimport (
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

from cuda.core._errors import CUDAWarning

cdef extern from *:
    long __atomic_add_fetch(long*, long, int) noexcept nogil
    long __atomic_load_n(long*, int) noexcept nogil
    bint __atomic_compare_exchange_n(long*, long*, long, bint, int, int) noexcept nogil
    enum:
        __ATOMIC_ACQ_REL
        __ATOMIC_ACQUIRE

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil

cdef atomic[long] _live

# The handles of pools that the driver refused to destroy. They are tried again with the next pool that is made or given
# up. The mutex guards the list only; no call is made under it.
cdef pthread_mutex_t _mutex
cdef PoolHandle* _left = NULL
cdef PoolHandle* _opened = NULL  # the handles of imported pools
cdef uint16_t _left_generation = fork_generation()
cdef int _last_refusal = 0

pthread_mutex_init(&_mutex, NULL)


cpdef long live_pools() noexcept:
    """Return the number of pools that this package has made and not destroyed."""
    return _live.load()


cdef cydriver.CUresult _destroy(PoolHandle* handle, const char** function) noexcept nogil:
    """Destroy a pool, or give one up that was imported, as often as the driver has given it."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuMemPoolDestroy"
    result = cydriver.cuMemPoolDestroy(handle.pool)
    while result == cydriver.CUresult.CUDA_SUCCESS and handle.opened > 1:
        handle.opened -= 1
        result = cydriver.cuMemPoolDestroy(handle.pool)
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef bint _is_empty(cydriver.CUmemoryPool pool) noexcept nogil:
    """Whether a pool has no memory. Then no free is pending either, whoever made it: a pool returns what was freed when
    somebody has waited for it.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.cuuint64_t reserved = 1
    if cydriver.cuThreadExchangeStreamCaptureMode(&mode) != cydriver.CUresult.CUDA_SUCCESS:
        return False
    if (
        cydriver.cuMemPoolTrimTo(pool, 0) != cydriver.CUresult.CUDA_SUCCESS
        or cydriver.cuMemPoolGetAttribute(
            pool, cydriver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved
        ) != cydriver.CUresult.CUDA_SUCCESS
    ):
        reserved = 1
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return reserved == 0


cdef bint _is_idle(PoolHandle* handle, bint* blocked) noexcept nogil:
    """Whether nothing of a pool is in use and no free is pending. For the last holder.

    A pool that was imported answers no question. It need not: the driver refuses to destroy it while it is used.
    """
    if not frees_have_run(&handle.frees, blocked):
        return False
    return handle.opened or all_is_known(&handle.frees) or _is_empty(handle.pool)


cdef bint _is_used_elsewhere(PoolHandle* handle, cydriver.CUresult result) noexcept nogil:
    """Whether an imported pool was refused to be given up since it was imported once more, and that has buffers."""
    return handle.opened and result == cydriver.CUresult.CUDA_ERROR_INVALID_VALUE


cdef PoolHandle* _share_opened(PoolHandle* fresh) noexcept nogil:
    """Return the handle to use for a pool that was just imported: the one that is there for it already, if any.

    The driver gives one pool however often it is imported, and counts. It has to be given up as often, and all at the
    end: what is pending in it is known to one handle then.
    """
    cdef PoolHandle* one
    cdef long count
    pthread_mutex_lock(&_mutex)
    one = _opened
    while one != NULL:
        if one.pool == fresh.pool and one.generation == fresh.generation:
            count = __atomic_load_n(&one.count, __ATOMIC_ACQUIRE)
            while count > 0 and not __atomic_compare_exchange_n(
                &one.count, &count, count + 1, False, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE
            ):
                pass
            if count > 0:
                one.opened += 1
                break
        one = one.next_opened
    if one == NULL:
        _link_opened(fresh)
    pthread_mutex_unlock(&_mutex)
    return one if one != NULL else fresh


cdef void _link_opened(PoolHandle* fresh) noexcept nogil:
    """Let imports find a handle. The mutex is held."""
    global _opened
    fresh.next_opened = _opened
    _opened = fresh


cdef void _unlink(PoolHandle* handle) noexcept nogil:
    """Take a handle off the list, if it is there. The mutex is held."""
    cdef PoolHandle** link = &_opened
    while link[0] != NULL and link[0] != handle:
        link = &link[0].next_opened
    if link[0] == handle:
        link[0] = handle.next_opened


cdef void _unlink_opened(PoolHandle* handle) noexcept nogil:
    """Before a handle is freed."""
    if handle.opened:
        pthread_mutex_lock(&_mutex)
        _unlink(handle)
        pthread_mutex_unlock(&_mutex)


cdef bint _leave_opened(PoolHandle* handle) noexcept nogil:
    """Let no import find a handle that is about to end. False if one has found it."""
    cdef bint alone
    pthread_mutex_lock(&_mutex)
    alone = __atomic_load_n(&handle.count, __ATOMIC_ACQUIRE) == 1
    if alone:
        _unlink(handle)
    pthread_mutex_unlock(&_mutex)
    return alone


cdef void _link_again(PoolHandle* handle) noexcept nogil:
    pthread_mutex_lock(&_mutex)
    _link_opened(handle)
    pthread_mutex_unlock(&_mutex)


cdef int _report_left(void* unused) noexcept:
    """Tell of a pool that could not be destroyed. A pending call: the main thread makes it, with the GIL."""
    if is_finalizing() or not _last_refusal:
        return 0
    error = error_for(<cydriver.CUresult>_last_refusal, b"cuMemPoolDestroy")
    warnings.warn(
        f"a memory pool could not be destroyed: {error}. It is tried again with the next one that is made or given up.",
        CUDAWarning,
        stacklevel=1,
    )
    return 0


cdef void _keep(PoolHandle* handle) noexcept nogil:
    """Keep a pool for another try."""
    global _left
    pthread_mutex_lock(&_mutex)
    handle.next = _left
    _left = handle
    pthread_mutex_unlock(&_mutex)


cdef void _end(PoolHandle* handle, bint told) noexcept nogil:
    """Destroy the pool of a handle that nobody holds any more, now or when its frees have run, or keep it."""
    global _last_refusal
    cdef const char* function = NULL
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef bint blocked = False
    # In the child of a fork the pool is the parent's.
    if handle.pool != NULL and handle.generation == fork_generation():
        if handle.opened and is_finalizing():
            # Imports that the program has left open are not freed any more, and the driver would refuse.
            return
        if not _is_idle(handle, &blocked):
            # What foreign code has is returned at some time or never. That is looked at with the next pool.
            if (
                told
                or not all_is_known(&handle.frees)
                or append_question(_may_be_destroyed, _destroy_later, handle) != 0
            ):
                _keep(handle)
            return
        result = _destroy(handle, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS or is_hopeless(result):
        if handle.pool != NULL:
            _live.fetch_sub(1)
        forget_frees(&handle.frees)
        _unlink_opened(handle)
        free(handle.rights)
        free(handle)
        return
    _keep(handle)
    if _is_used_elsewhere(handle, result):
        return
    _last_refusal = result
    if not told:
        Py_AddPendingCall(_report_left, NULL)


cdef Readiness _may_be_destroyed(void* handle) noexcept nogil:
    cdef bint blocked = False
    if _is_idle(<PoolHandle*>handle, &blocked):
        return READY
    return BLOCKED if blocked else NOT_YET


cdef bint _destroy_later(void* handle, Failure* failure) noexcept nogil:
    cdef bint imported = (<PoolHandle*>handle).opened > 0
    _end(<PoolHandle*>handle, False)
    if imported:
        _try_left()  # another import of the same pool may have waited for this one
    return True


cdef void _try_left() noexcept nogil:
    """Destroy what could not be destroyed before."""
    global _left, _left_generation
    cdef PoolHandle* handle
    cdef PoolHandle* following
    if _left_generation != fork_generation():
        # The list is the parent's, and its mutex may have been held when this child was made: also with an empty list.
        _left_generation = fork_generation()
        pthread_mutex_init(&_mutex, NULL)
        _left = NULL
    if _left == NULL:
        return
    pthread_mutex_lock(&_mutex)
    handle = _left
    _left = NULL
    pthread_mutex_unlock(&_mutex)
    while handle != NULL:
        following = handle.next
        _end(handle, True)
        handle = following


cdef PoolHandle* retain_pool(PoolHandle* handle) noexcept nogil:
    if handle != NULL:
        __atomic_add_fetch(&handle.count, 1, __ATOMIC_ACQ_REL)
    return handle


cdef void release_pool(PoolHandle* handle) noexcept nogil:
    cdef bint imported
    if handle == NULL or __atomic_add_fetch(&handle.count, -1, __ATOMIC_ACQ_REL) != 0:
        return
    imported = handle.opened > 0
    _try_left()
    _end(handle, False)
    if imported:
        _try_left()  # another import of the same pool may have waited for this one


cdef PendingFrees* frees_of(object owner) noexcept:
    """Return where to note a free of what this keeps: NULL where it keeps no pool of ours."""
    return &(<PoolReference>owner).handle.frees if type(owner) is PoolReference else NULL


cdef bint pool_is_idle(PoolReference reference) noexcept:
    """Whether a pool that nobody else holds can be destroyed at once. In the child of a fork nothing is to be done."""
    cdef bint idle, blocked = False
    if not reference.is_of_this_process():
        return True
    with nogil:
        idle = _is_idle(reference.handle, &blocked)
    return idle


cdef class PoolReference(Keeper):
    """What Python objects hold of a pool: one count of its handle. A buffer has it in the place of an owner."""

    cdef bint is_of_this_process(self) noexcept:
        """Whether the pool can be used here; in the child of a fork it is the parent's."""
        return self.handle != NULL and self.handle.generation == fork_generation()

    cdef void let_out(self) noexcept:
        __atomic_add_fetch(&self.handle.frees.outside, 1, __ATOMIC_ACQ_REL)

    cdef void come_back(self) noexcept:
        """Memory that foreign code had is being returned through its resource after all."""
        __atomic_add_fetch(&self.handle.frees.outside, -1, __ATOMIC_ACQ_REL)

    def __dealloc__(self):
        cdef PoolHandle* handle = self.handle
        self.handle = NULL
        if handle != NULL:
            with nogil:
                release_pool(handle)


cdef PoolReference make_pool(cydriver.CUmemPoolProps* properties):
    """Make a pool of its own.

    Raises
    ------
    CUDAError
        If the driver refuses. Nothing is left then.
    """
    return _new_pool(properties, -1)


cdef PoolReference import_pool(int descriptor):
    """Open the pool of another process, to import pointers into. The file descriptor stays the caller's.

    Raises
    ------
    CUDAError
        If the driver refuses. Nothing is left then.
    """
    return _new_pool(NULL, descriptor)


cdef PoolReference _new_pool(cydriver.CUmemPoolProps* properties, int descriptor):
    """Make a pool with these properties, or open the one behind a descriptor where there are none."""
    cdef PoolReference self = PoolReference.__new__(PoolReference)
    cdef PoolHandle* handle = <PoolHandle*>calloc(1, sizeof(PoolHandle))
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    if handle == NULL:
        raise MemoryError("no memory for a pool handle")
    handle.count = 1
    handle.opened = 1 if properties == NULL else 0
    handle.generation = fork_generation()
    self.handle = handle
    ensure_driver()
    with nogil:
        _try_left()
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            if properties != NULL:
                function = b"cuMemPoolCreate"
                result = cydriver.cuMemPoolCreate(&handle.pool, properties)
            else:
                function = b"cuMemPoolImportFromShareableHandle"
                result = cydriver.cuMemPoolImportFromShareableHandle(
                    &handle.pool,
                    <void*><size_t>descriptor,
                    cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    0,
                )
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        handle.pool = NULL
    check(result, function)
    if handle.opened:
        with nogil:
            self.handle = _share_opened(handle)
        if self.handle != handle:
            free(handle)
            return self
    _live.fetch_add(1)
    return self


cdef int destroy_pool(PoolReference reference) except -1:
    """Destroy the pool of a reference that nobody else holds.

    Raises
    ------
    CUDAError
        If the driver refuses. The pool is as it was.
    """
    cdef PoolHandle* handle = reference.handle
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* function = NULL
    if handle.pool == NULL:
        return 0
    if handle.generation == fork_generation():
        if handle.opened and not _leave_opened(handle):
            return 0  # it was imported once more meanwhile
        with nogil:
            _try_left()
            result = _destroy(handle, &function)
            if handle.opened and result != cydriver.CUresult.CUDA_SUCCESS:
                _link_again(handle)
        if _is_used_elsewhere(handle, result):
            return 0  # what ends the reference keeps it for another try
        check(result, function)
        if handle.opened:
            with nogil:
                _try_left()
    handle.pool = NULL
    _live.fetch_sub(1)
    return 0


cdef cydriver.CUresult current_pool(cydriver.CUmemLocation* location, cydriver.CUmemAllocationType kind,
                                    cydriver.CUmemoryPool* pool, const char** function) noexcept nogil:
    """Ask for the pool that the driver uses for a kind of memory at a place. It belongs to the whole process."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    if (
        kind == cydriver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        and location.type == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    ):
        function[0] = b"cuDeviceGetMemPool"
        result = cydriver.cuDeviceGetMemPool(pool, location.id)
    else:
        function[0] = b"cuMemGetMemPool"
        result = cydriver.cuMemGetMemPool(pool, location, kind)
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef int export_pool(cydriver.CUmemoryPool pool) except -1:
    """Return a new file descriptor by which another process can open a pool. It is the caller's to close."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef int descriptor = -1
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    ensure_driver()
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolExportToShareableHandle"
            result = cydriver.cuMemPoolExportToShareableHandle(
                &descriptor, pool, cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0
            )
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    check(result, function)
    return descriptor


cdef int export_pointer(uintptr_t address, cydriver.CUmemPoolPtrExportData* data) except -1:
    """Write down what another process needs to import an address, beside the pool."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    cdef const char* function = b"cuThreadExchangeStreamCaptureMode"
    ensure_driver()
    with nogil:
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuMemPoolExportPointer"
            result = cydriver.cuMemPoolExportPointer(data, address)
            cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return check(result, function)
