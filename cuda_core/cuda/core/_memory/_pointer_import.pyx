# SPDX-License-Identifier: Apache-2.0
"""What records hold of pointers of other processes: a share of an address, which their deleter gives up."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cuda.core._driver cimport check, ensure_driver, error_for
from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, Record
from cuda.core._memory._import_table cimport (
    ImportedPointer,
    abandon_counted,
    give_up_counted,
    import_counted,
    shares_of,
)
from cuda.core._memory._pool_handle cimport PoolHandle, PoolReference, release_pool, retain_pool
from cuda.core._memory._pool_release cimport ensure_freed, may_be_queued
from cuda.core._memory._queue cimport Job, discard_job, enqueue, new_job
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._stream_handle cimport StreamHandle

from cuda.core._errors import OwnershipError


cdef class ImportReference(PoolReference):
    """A share of an imported address, and the pool that it is imported into. It stands in the place of an owner."""

    cdef bint is_alone(self) noexcept:
        cdef ImportedPointer* entry = self.pointer
        cdef bint alone
        if entry == NULL:
            return True
        with nogil:
            alone = shares_of(entry) == 1
        return alone

    def __dealloc__(self):
        abandon(self)


cdef void abandon(ImportReference reference) noexcept:
    """Let a share go without a free, if it was not given up."""
    cdef ImportedPointer* entry = reference.pointer
    reference.pointer = NULL
    if entry != NULL and reference.is_of_this_process():
        with nogil:
            abandon_counted(entry)


cdef ImportReference import_pointer(PoolReference pool, bytes payload):
    """Import a pointer into a pool that was imported, and take a share of it.

    Raises
    ------
    ValueError
        If the driver does not know the payload.
    OwnershipError
        If somebody else has imported it here, which the driver refuses for memory of the host.
    CUDAError
        If it refuses for another reason. Nothing is left in both cases.
    """
    cdef ImportReference self = ImportReference.__new__(ImportReference)
    cdef ImportedPointer* fresh = <ImportedPointer*>calloc(1, sizeof(ImportedPointer))
    cdef ImportedPointer* entry = fresh
    cdef cydriver.CUmemPoolPtrExportData data
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if fresh == NULL:
        raise MemoryError("no memory for an import")
    memcpy(&data, <const char*>payload, sizeof(data))
    self.handle = retain_pool(pool.handle)
    ensure_driver()
    with nogil:
        result = import_counted(pool.handle, &data, &entry, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        self.pointer = entry
    if self.pointer != fresh:
        free(fresh)
    if result == cydriver.CUresult.CUDA_ERROR_INVALID_VALUE:
        raise ValueError("the descriptor names no buffer of this memory pool") from error_for(result, function)
    if result == cydriver.CUresult.CUDA_ERROR_ALREADY_MAPPED:
        raise OwnershipError(
            "the descriptor's memory has an owner already, which was not imported by its descriptor"
        ) from error_for(result, function)
    check(result, function)
    return self


cdef int give_up(Record record, ImportReference reference, StreamHandle* order) except -1:
    """Give a record's share up in the order of streams; freeing where it is the last. On failure it stays."""
    cdef ImportedPointer* entry = reference.pointer
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if entry == NULL:
        return 0
    with nogil:
        result = give_up_counted(entry, order, &reference.handle.frees, &function)
    ensure_freed(result, function)
    reference.pointer = NULL
    return 0


cdef int return_import(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of imported buffers. It never waits."""
    cdef ImportReference reference = record.owner
    cdef ImportedPointer* entry = reference.pointer
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if entry == NULL:
        return CLOSE_DONE
    with nogil:
        result = give_up_counted(entry, order, &reference.handle.frees, &function)
    if waiting >= NEVER_WAIT and may_be_queued(order, result, function, waiting == LAST_LOAN):
        return _queue_share(record, reference, order, waiting == NEVER_WAIT)
    ensure_freed(result, function)
    reference.pointer = NULL
    return CLOSE_DONE


cdef tuple imported_range(uintptr_t address):
    """Return what the driver says of an address: whether it is memory of the host, its device, and its extent.

    No more can be asked: drivers believe the place that a payload names, and take it for the start of the allocation.
    """
    cdef cydriver.CUpointer_attribute names[3]
    cdef void* values[3]
    cdef unsigned int memory_type = 0
    cdef int ordinal = -1
    cdef size_t extent = 0
    cdef cydriver.CUresult result
    names[0] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    names[1] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    names[2] = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE
    values[0], values[1], values[2] = &memory_type, &ordinal, &extent
    with nogil:
        result = cydriver.cuPointerGetAttributes(3, names, values, address)
    check(result, b"cuPointerGetAttributes")
    return memory_type == cydriver.CUmemorytype.CU_MEMORYTYPE_HOST, ordinal, extent


# --- in the queue -------------------------------------------------------------------------------------------------

cdef struct QueuedShare:
    ImportedPointer* entry  # NULL once it was given up
    StreamHandle* order     # the job's
    PoolHandle* pool


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    cdef QueuedShare* what = <QueuedShare*>data
    cdef const char* function = NULL
    cdef cydriver.CUresult result = give_up_counted(what.entry, what.order, &what.pool.frees, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        what.entry = NULL
        return True
    failure.result = result
    failure.function = function
    return False


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    cdef QueuedShare* what = <QueuedShare*>data
    if what.entry != NULL:
        abandon_counted(what.entry)
    release_pool(what.pool)
    free(data)
    return True


cdef int _queue_share(Record record, ImportReference reference, StreamHandle* order, bint once) except -1:
    """Leave the end of a share to the queue. With ``once`` it is not tried again after a refusal."""
    cdef QueuedShare* what = <QueuedShare*>calloc(1, sizeof(QueuedShare))
    cdef Job* job
    if what == NULL:
        raise MemoryError("no memory for a queued release")
    what.order = order
    what.pool = retain_pool(reference.handle)
    try:
        job = new_job(_give_back, _discard, what, record, order)
    except BaseException:
        _discard(what, NULL)
        raise
    job.once = once
    what.entry = reference.pointer
    try:
        enqueue(job)
    except BaseException:  # nothing was queued, and the record still has the share
        what.entry = NULL
        discard_job(job)
        raise
    reference.pointer = NULL
    return CLOSE_QUEUED
