# SPDX-License-Identifier: Apache-2.0
"""What all resources on a memory pool of the driver share: the pool, allocating, and returning in stream order."""

import uuid

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport strcmp

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._shared_containers cimport dict_item
from cuda.core._driver cimport check, direct, ensure_driver, error_for
from cuda.core._memory._allocation cimport CLOSE_DONE, LAST_LOAN, NEVER_WAIT, WAIT, Keeper, Record, open_records_of
from cuda.core._memory._arguments cimport size_argument, small_integer
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._indexed_resource cimport HELD_BY_NOBODY, Holding, IndexedResource
from cuda.core._memory._memory_resource cimport MemoryResource, ask_python
from cuda.core._memory._ownership cimport CLAIM_MASK, FAILED_BIT, LOANS_MASK, STATE_OWNED, TAKER_LOANS
from cuda.core._memory._pending_frees cimport PendingFrees
from cuda.core._memory._pool_handle cimport (
    PoolReference,
    current_pool,
    destroy_pool,
    frees_of,
    make_pool,
    pool_is_idle,
)
from cuda.core._memory._pool_release cimport ensure_freed, free_in_order, may_be_queued, queue_free
from cuda.core._memory._queue cimport drain_for_memory, wait_a_moment
from cuda.core._memory._transfer cimport Allocation
from cuda.core._stream cimport Stream, Stream_accept, bind_stream
from cuda.core._stream_handle cimport (
    STREAM_FOREIGN,
    StreamHandle,
    ask_whether_captured,
    enter_stream,
    leave_stream,
    stream_as_seen_here,
    stream_is_capturing,
)

# Imported here and not where it is used: a finalizer at exit may read a handle when nothing can be imported.
from cuda.bindings import driver
from cuda.core._error_text import for_allocation
from cuda.core._memory._pool_attributes import _MemPoolAttributes

__all__ = []

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)


# --- the driver's calls -------------------------------------------------------------------------------------------


cdef cydriver.CUresult _allocate(
    cydriver.CUmemoryPool pool, size_t size, StreamHandle* order, uintptr_t* address, const char** function
) noexcept nogil:
    """Allocate on one stream. A capturing one is answered with STREAM_CAPTURE_UNSUPPORTED, without effect."""
    cdef cydriver.CUresult result
    hold_captures_off()
    result = _allocate_uncaptured(pool, size, order, address, function)
    let_captures_begin()
    return result


cdef cydriver.CUresult _allocate_uncaptured(
    cydriver.CUmemoryPool pool, size_t size, StreamHandle* order, uintptr_t* address, const char** function
) noexcept nogil:
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUstream stream = order.stream
    cdef cydriver.CUresult result
    cdef bint pushed = False, capturing = False
    if order.kind > STREAM_FOREIGN:
        result = stream_is_capturing(order, &capturing, function)
        if result == cydriver.CUresult.CUDA_SUCCESS and not capturing:
            result = enter_stream(order, &pushed, function)
            stream = stream_as_seen_here(order)
    else:
        function[0] = b"cuStreamIsCapturing"
        result = direct.stream_is_capturing(stream, &status)
        capturing = status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    if capturing:
        return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    # The call counts among those that a capture anywhere in the process forbids.
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = direct.exchange_capture_mode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuMemAllocFromPoolAsync"
        result = direct.allocate_from_pool(<cydriver.CUdeviceptr*>address, size, pool, stream)
        direct.exchange_capture_mode(&mode)
    leave_stream(pushed)
    return result


# --- the deleter --------------------------------------------------------------------------------------------------


cdef int return_to_pool(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter: one driver call, in the order of the streams. It never waits."""
    cdef _MemPool resource = <_MemPool>record.resource
    cdef uintptr_t address = record.pointer
    cdef const char* function = NULL
    cdef cydriver.CUresult result
    if not record.size:
        return CLOSE_DONE
    if resource._index.load():
        return resource._return_indexed(record, order, waiting)
    cdef PendingFrees* frees = frees_of(record.owner)
    with nogil:
        result = free_in_order(address, order, frees, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        return CLOSE_DONE
    try:
        return _settle(record, order, waiting, result, function)
    except BaseException:  # the record still owns it
        if resource._index.load():  # an index was built meanwhile, without what was being freed
            resource.remember(record)
        raise


cdef bint _is_import(Record record) noexcept:
    owner = record.held_owner()
    return isinstance(owner, Keeper) and (<Keeper>owner).imported is not None


cdef bint _is_context_gone_here(cydriver.CUresult result, const char* function) noexcept nogil:
    """Whether a free was refused because the context that is current on this thread is gone.

    The memory of a pool is not that context's. A thread without a current context, as the queue's is, can free it.
    """
    return result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED and strcmp(function, b"cuMemFree") == 0


cdef int _settle(
    Record record, StreamHandle* order, int waiting, cydriver.CUresult result, const char* function
) except -1:
    """Leave a refused free of a collection or of a last loan to the queue where that can make it, or raise."""
    cdef int outcome
    if _is_context_gone_here(result, function):
        outcome = queue_free(record, order, waiting == NEVER_WAIT)
        wait_a_moment()
        return outcome
    if waiting >= NEVER_WAIT and may_be_queued(order, result, function, waiting == LAST_LOAN):
        return queue_free(record, order, waiting == NEVER_WAIT)
    ensure_freed(result, function)
    return CLOSE_DONE


# --- the resource -------------------------------------------------------------------------------------------------


# No gc_clear: a buffer that is collected together with its resource still needs the index and the pool.
@cython.no_gc_clear
cdef class _MemPool(IndexedResource):
    """Base of the resources that allocate from a memory pool, in the order of streams."""

    def __cinit__(self):
        self._ordinal = -1

    # -- the pool --------------------------------------------------------------------------------------------------

    cdef int _ensure_not_made(self) except -1:
        """Refuse a second call of the constructor: buffers say by their resource of which device they are."""
        if self._pool != NULL or self._closed:
            raise RuntimeError(f"this {type(self).__name__} was made already, and buffers may depend on what it is")
        return 0

    cdef int take_current_pool(self, cydriver.CUmemLocation* location, cydriver.CUmemAllocationType kind) except -1:
        """Allocate from the pool that the driver uses by itself. It is never owned here."""
        cdef cydriver.CUmemoryPool pool = NULL
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        self._ensure_not_made()
        ensure_driver()
        with nogil:
            result = current_pool(location, kind, &pool, &function)
        check(result, function)
        self._pool = pool
        self._reference, self._closed = None, False
        self._choose_deleter()
        return 0

    cdef int take_own_pool(self, cydriver.CUmemPoolProps* properties) except -1:
        """Make a pool and own it."""
        self._ensure_not_made()
        self._reference = make_pool(properties)
        self._pool = self._reference.handle.pool
        self._closed = False
        self._shareable = properties.handleTypes != cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        self._uuid = uuid.uuid4() if self._shareable else None
        self._choose_deleter()
        return 0

    cdef int _choose_deleter(self) except -1:
        # A subclass may have its own deallocate, and that is asked; it is found by the index.
        if self.deleter == ask_python and self._index.load() == INDEX_MISSING:
            self._index.store(INDEX_WHOLE)
        return 0

    cdef int ensure_open(self) except -1:
        """Raise RuntimeError unless there is a pool to allocate from."""
        cdef bint closed
        with cython.critical_section(self):
            if self._pool != NULL:
                return 0
            closed = self._closed
        if closed:
            raise RuntimeError(f"{type(self).__name__} has been closed")
        raise RuntimeError(f"{type(self).__name__}.__init__ was not called")

    def close(self) -> None:
        """Give the pool up. Closing twice is harmless.

        Open buffers stay valid. A pool that this resource made is destroyed with the last of them, or now if there is
        none; the pool of a device stays. Nothing can be allocated any more, but :meth:`deallocate` goes on working.

        Raises
        ------
        CUDAError
            If the driver refuses to destroy the pool. The resource stays open, and can be closed again.

        Examples
        --------
        >>> pool = DeviceMemoryResource(device, {"max_size": 64 << 20})
        >>> pool.close()
        >>> pool.is_closed
        True
        """
        cdef cydriver.CUmemoryPool pool
        cdef PoolReference reference
        with cython.critical_section(self):
            pool, reference = self._pool, self._reference
            self._pool = NULL
            self._reference, self._closed = None, True
        if pool == NULL:
            return
        # One reference is the local name. Others are of buffers, and of allocations that are being made.
        if reference is None or Py_REFCNT(reference) > 1 or reference.handle.count > 1:
            return
        if not pool_is_idle(reference):
            return  # the last reference goes here, and the queue destroys the pool when its frees have run
        try:
            destroy_pool(reference)
        except BaseException:
            with cython.critical_section(self):
                self._pool = pool
                self._reference, self._closed = reference, False
            raise

    cdef PoolReference held_pool(self, cydriver.CUmemoryPool* pool):
        """Return the pool, NULL once closed, and what keeps it meanwhile: None where it stays anyway.

        Both as they are together, since another thread may close the resource at any moment.
        """
        with cython.critical_section(self):
            pool[0] = self._pool
            return self._reference

    @property
    def is_closed(self) -> bool:
        """bool: whether the resource has given its pool up."""
        return not self._has_pool()

    cdef bint _has_pool(self) noexcept:
        with cython.critical_section(self):
            return self._pool != NULL

    @property
    def handle(self) -> driver.CUmemoryPool:
        """CUmemoryPool: the pool as a ``cuda.bindings.driver`` object; a null one once the resource is closed."""
        cdef cydriver.CUmemoryPool pool
        self.held_pool(&pool)
        return driver.CUmemoryPool(<size_t>pool)

    @property
    def is_handle_owned(self) -> bool:
        """bool: whether this resource made its pool. False once it is closed."""
        cdef cydriver.CUmemoryPool pool
        return self.held_pool(&pool) is not None

    @property
    def is_ipc_enabled(self) -> bool:
        """bool: whether the pool was made to be shared with other processes. False once the resource is closed."""
        return self._shareable and self._has_pool()

    @property
    def is_mapped(self) -> bool:
        """bool: whether the pool is of another process. Only those that can be shared ever are."""
        return False

    @property
    def uuid(self) -> UUID | None:
        """uuid.UUID or None: what other processes know a shareable pool by; None for others, and once closed."""
        return self._uuid if self._has_pool() else None

    @property
    def attributes(self) -> _MemPoolAttributes:
        """object: the pool's attributes: how many bytes it holds, and how it reuses memory.

        Raises
        ------
        RuntimeError
            If the resource is closed, now or when an attribute is read.
        """
        self.ensure_open()
        return _MemPoolAttributes._of(self)

    def _hold_pool(self):
        """Return the pool's address, and what keeps the pool while the caller uses it."""
        cdef cydriver.CUmemoryPool pool
        cdef PoolReference reference = self.held_pool(&pool)
        if pool == NULL:
            self.ensure_open()
        ensure_driver()  # which refuses in a forked child
        return <size_t>pool, reference

    # -- allocating ------------------------------------------------------------------------------------------------

    def allocate(self, size: int, *, stream: Stream | GraphBuilder) -> Buffer:
        """Allocate a buffer in the order of a stream. The call waits for nothing.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : Stream
            The memory can be used by work that is put into this stream from now on, and by what is ordered behind that.
            It is recorded: the release is ordered behind its work.

        Returns
        -------
        Buffer
            The new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is None or no stream; if the pool is of
            another process. No driver call is made.
        RuntimeError
            If the resource or the stream is closed, or the stream is being captured; the capture goes on.
        CUDAError
            If the driver refuses. Out of memory is answered once the queue of releases is empty.

        Notes
        -----
        Safe from any thread, with or without a current context.

        Examples
        --------
        >>> buffer = mr.allocate(1024, stream=stream)
        >>> buffer.close()  # in the order of the stream
        <CloseResult.DONE: 0>
        """
        cdef StreamHandle* order
        cdef Buffer buffer
        cdef PoolReference reference
        cdef uintptr_t address = 0
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef cydriver.CUmemoryPool pool
        cdef long long number
        cdef size_t wanted
        number = small_integer(size)
        wanted = <size_t>number if number >= 0 else size_argument(size, "size")
        order = bind_stream(<Stream>stream if type(stream) is Stream else Stream_accept(stream))
        buffer = new_buffer(0, wanted, self, self._ordinal, order)
        reference = self.held_pool(&pool)
        if pool == NULL or self._mapped:
            self.ensure_open()
            raise TypeError(f"{type(self).__name__} is of another process: buffers are imported here, not allocated")
        if wanted:
            buffer.owner = reference  # the pool stays while this call is under way
            with nogil:
                result = _allocate(pool, wanted, order, &address, &function)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                self._settle_allocation(pool, wanted, order, &address, result, function)
            buffer.pointer = address
        buffer.begin(STATE_OWNED, None, 0)
        if self._index.load():
            self.note(buffer)
        return buffer

    cdef int _settle_allocation(
        self,
        cydriver.CUmemoryPool pool,
        size_t size,
        StreamHandle* order,
        uintptr_t* address,
        cydriver.CUresult result,
        const char* function,
    ) except -1:
        """Try once more where the queue has given memory back, or raise."""
        if result == cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            with nogil:
                if drain_for_memory():
                    result = _allocate(pool, size, order, address, &function)
        if result != cydriver.CUresult.CUDA_SUCCESS and result != cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            self._refuse_capture(order, result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            raise for_allocation(error_for(result, function), self, size)
        return 0

    cdef int _refuse_capture(self, StreamHandle* order, bint capturing) except -1:
        cdef const char* asked = NULL
        if not capturing:  # known before; one begun meanwhile, elsewhere, may be behind any refusal
            with nogil:
                ask_whether_captured(order, &capturing, &asked)
        if capturing:
            raise RuntimeError(
                f"{type(self).__name__} cannot allocate on a stream that is being captured: memory of a graph comes "
                "from a GraphMemoryResource"
            )
        return 0

    # -- returning -------------------------------------------------------------------------------------------------

    cdef int _free_behind(self, Record record, StreamHandle* order, int waiting) except -1:
        cdef const char* function = NULL
        cdef uintptr_t address = record.pointer
        cdef cydriver.CUresult result
        cdef PendingFrees* frees = frees_of(record.owner)
        with nogil:
            result = free_in_order(address, order, frees, &function)
        return _settle(record, order, waiting, result, function)

    cdef int _return_indexed(self, Record record, StreamHandle* order, int waiting) except -1:
        cdef Holding holding = self.begin_free(record)
        cdef int outcome
        try:
            outcome = self._free_behind(record, order, waiting)
        except BaseException:  # the record still owns it
            self.end_free(holding, False)
            if holding is None:
                self.remember(record)  # it was left out while it was being freed
            raise
        self.end_free(holding, True)
        return outcome

    def deallocate(  # type: ignore[override]  # the base makes the stream optional; this one needs it
        self, ptr: DevicePointerType, size: int, *, stream: Stream | GraphBuilder
    ) -> None:
        """Free an allocation by its address, in the order of a stream. Buffers do this by themselves.

        Parameters
        ----------
        ptr : int
            Where the allocation begins.
        size : int
            Its size in bytes. Of an allocation that was detached from this resource, the size must match.
        stream : Stream
            The free is ordered behind the work of this stream. The call waits for nothing.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong; ``stream`` must be given.
        OwnershipError
            If an open buffer owns the address; close the buffer instead. If another call is releasing it.
        CUDAError
            If the driver refuses, or the stream is being captured. The same call can be made again.

        Notes
        -----
        Works after :meth:`close`, too. An ``Allocation`` that is freed this way counts as handed over. An address that
        this resource does not know is freed as told.

        Examples
        --------
        >>> allocation = mr.allocate(1024, stream=stream).detach()
        >>> mr.deallocate(allocation.handle, 1024, stream=stream)
        """
        Stream_accept(stream)
        self.ensure_index()
        IndexedResource.deallocate(self, ptr, size, stream=stream)

    cdef int _free(self, uintptr_t address, StreamHandle* order, object keeper) except -1:
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef PendingFrees* frees = frees_of(keeper)
        with nogil:
            result = free_in_order(address, order, frees, &function)
        return ensure_freed(result, function)

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        cdef Holding holding
        cdef int outcome
        if not record.size:
            return CLOSE_DONE
        holding = self.begin_free(record)
        if self.is_freed(record, holding):
            return CLOSE_DONE
        try:
            outcome = self._free_behind(record, order, waiting)
        except BaseException:  # the record still owns it
            self.end_free(holding, False)
            raise
        self.note_free(record, holding)
        return outcome

    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1:
        cdef bint nobodys = holding.holder() == HELD_BY_NOBODY
        cdef int outcome = CLOSE_DONE
        if waiting == WAIT:
            self._free(<uintptr_t><size_t>holding.key, order, holding.keeper)
        else:
            outcome = self._free_behind(self.part(holding), order, waiting)
        if nobodys and type(holding.keeper) is PoolReference:
            (<PoolReference>holding.keeper).come_back()
        return outcome

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        cdef cydriver.CUmemoryPool pool
        return self._free(address, order, self.held_pool(&pool))

    # -- who owns an address ---------------------------------------------------------------------------------------

    cdef int ensure_index(self) except -1:
        """Build the index of owners by address, of all that is open. From now on it is kept up to date.

        It is read only when it is whole. Of several threads that need it at once, each builds it, and leaves what
        another has entered already.
        """
        cdef list records
        cdef int missing = INDEX_MISSING
        if self._index.load() == INDEX_WHOLE:
            return 0
        # Before the list is looked at: what is allocated meanwhile is on it, or finds the index and enters itself.
        self._index.compare_exchange_strong(missing, INDEX_BEGUN)
        records = open_records_of(self)
        for record in records:
            # What is claimed is being freed at this moment. Making entries may run finalizers: by now it may be closed.
            # An import is known by the name that it came by.
            if (
                (<Record>record).held_resource() is self
                and (<Record>record).entry is None
                and not (<Record>record).word.load() & CLAIM_MASK
                and not _is_import(record)
            ):
                self._remember_open(record)
        self._index.store(INDEX_WHOLE)
        return 0

    cdef int _remember_open(self, Record record) except -1:
        """Enter a record that was found on the list. By now another thread may have ended it, or have its memory."""
        cdef Holding holding
        cdef uint64_t bits
        if not record.size:
            return 0
        holding = self.new_entry(record, record.pointer, record.size)
        with cython.critical_section(self):  # who ends it or takes its memory changes its word first, then comes here
            bits = record.word.load()
            if (
                (record.state() == STATE_OWNED or record.taker() == TAKER_LOANS and bits & (LOANS_MASK | FAILED_BIT))
                and not bits & CLAIM_MASK
                and dict_item(self._holdings, holding.key) is None
            ):
                self._holdings[holding.key] = holding
                record.entry = holding
        return 0

    cdef int note(self, Record record) except -1:
        """Let a new owner be found: by the index where there is one, else it is on the list of what is live."""
        return self.remember(record) if self._index.load() else 0

    cdef int own(self, Record buffer) except -1:
        cdef Holding before
        cdef cydriver.CUmemoryPool pool
        cdef PoolReference keeper = self.held_pool(&pool)
        cdef bint nobodys
        self.ensure_index()
        before = dict_item(self._holdings, <size_t>buffer.pointer)
        nobodys = before is not None and type(before.keeper) is PoolReference and before.holder() == HELD_BY_NOBODY
        IndexedResource.own(self, buffer)
        if nobodys:  # it was given out by this resource, and comes back
            keeper = before.keeper
            keeper.come_back()
        buffer.owner = keeper
        return 0

    cdef int ensure_adoptable(self, Record source) except -1:
        if self._index.load() != INDEX_WHOLE and source.held_resource() is self:
            return 0  # it is the one that is known here
        self.ensure_index()
        return IndexedResource.ensure_adoptable(self, source)

    cdef object prepare_entry(self, Record source, Record target):
        cdef object prepared
        if isinstance(target, Allocation):
            # Its size is checked when it comes back, also after it was handed over and no record is left.
            self.ensure_index()
        if not self._index.load():
            return None
        prepared = IndexedResource.prepare_entry(self, source, target)
        if isinstance(target, Allocation) and isinstance(prepared, Holding):
            (<Holding>prepared).keeper = source.held_owner()
        return prepared

    cdef void enter_owner(self, Record source, Record target, MemoryResource before, object prepared) noexcept:
        cdef _MemPool other
        if prepared is not None and self._index.load():
            other = before
            IndexedResource.enter_owner(self, source, target, before if other._index.load() else self, prepared)
            return
        try:
            self.note(target)
        except MemoryError:  # it cannot be found by its address, and frees itself all the same
            pass
