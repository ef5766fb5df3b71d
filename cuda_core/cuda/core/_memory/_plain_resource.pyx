# SPDX-License-Identifier: Apache-2.0
"""What resources share that make one driver call for an allocation and one for its free, neither in stream order."""

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from cuda.core._context cimport ask_for_context, ask_for_id, context_is_gone, current_context
from cuda.core._driver cimport check, ensure_driver, error_for, is_hopeless
from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, NEVER_WAIT, Record
from cuda.core._memory._arguments cimport size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._lost_contexts cimport place_of, place_of_context
from cuda.core._memory._ownership cimport STATE_OWNED
from cuda.core._memory._queue cimport Job, discard_job, drain_for_memory, enqueue, new_job, wait_a_moment
from cuda.core._memory._release cimport must_queue, wait_for_order
from cuda.core._memory._virtual_parts cimport Failure
from cuda.core._stream cimport Stream_accept, bind_default_stream, bind_stream
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import for_allocation
from cuda.core._errors import CUDAError

cdef struct QueuedFree:
    uintptr_t address
    bint host


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    cdef QueuedFree* what = <QueuedFree*>data
    cdef const char* function = NULL
    cdef cydriver.CUresult result = free_plain(what.address, what.host, &function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        return True
    failure.result = result
    failure.function = function
    return False


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    free(data)
    return True


cdef cydriver.CUresult free_plain(uintptr_t address, bint host, const char** function) noexcept nogil:
    """Free plain or pinned memory without breaking a capture of this thread.

    These calls wait for the device, and so count among those that a capture forbids, unless the thread says otherwise.
    """
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    if host:
        function[0] = b"cuMemFreeHost"
        result = cydriver.cuMemFreeHost(<void*>address)
    else:
        function[0] = b"cuMemFree"
        result = cydriver.cuMemFree(address)
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef cydriver.CUresult _allocate_plain(
    PlainResource resource, size_t size, uintptr_t* address, const char** function
) noexcept nogil:
    """Allocate without breaking a capture of this thread, or of the process: these calls are forbidden by both."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUresult result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    result = resource.raw_allocate(size, address, function)
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef int return_plain(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter: after the ordering stream, one driver call."""
    cdef PlainResource resource = record.resource
    return resource.free_record(record, order, waiting)


cdef class PlainResource(IndexedResource):
    """Base of the resources whose allocations are one driver call each."""

    cdef cydriver.CUresult raw_allocate(self, size_t size, uintptr_t* address, const char** function) noexcept nogil:
        return cydriver.CUresult.CUDA_ERROR_NOT_SUPPORTED

    cdef int ordinal(self) noexcept:
        return -1

    cdef int prepare(self) except -1:
        return 0

    def allocate(self, size: int, *, stream: Stream | GraphBuilder | None = None) -> Buffer:
        """Allocate a buffer. The call is synchronous; the memory is usable at once.

        Parameters
        ----------
        size : int
            Bytes wanted. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context.

        Returns
        -------
        Buffer
            The new buffer, OWNED.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is no stream. No driver call is made.
        CUDAError
            If the driver refuses.

        Examples
        --------
        >>> with LegacyPinnedMemoryResource().allocate(4096) as buffer:
        ...     buffer.is_host_accessible
        True
        """
        cdef size_t wanted = size_argument(size, "size")
        cdef uintptr_t address = 0
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef StreamHandle* order = NULL
        cdef cydriver.CUcontext context
        cdef unsigned long long id = 0
        cdef Holding holding
        cdef Buffer buffer
        if stream is not None:
            order = bind_stream(Stream_accept(stream))
        elif wanted:
            ensure_driver()
            order = bind_default_stream()
        buffer = new_buffer(0, wanted, self, self.ordinal(), order)
        if wanted:
            self.prepare()
            context = self.context_to_allocate_in()
            with nogil:
                result = ask_for_id(context, &id)
            check(result, b"cuCtxGetId")
            with nogil:
                result = _allocate_plain(self, wanted, &address, &function)
                if result == cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY and drain_for_memory():
                    result = _allocate_plain(self, wanted, &address, &function)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                raise for_allocation(error_for(result, function), self, wanted)
            buffer.pointer = address
        buffer.begin(STATE_OWNED, None, 0)
        self.remember(buffer)
        if wanted:
            holding = buffer.entry
            holding.context, holding.context_id = <size_t>context, id
        return buffer

    cdef cydriver.CUcontext context_to_allocate_in(self) except? NULL:
        return current_context()

    cdef cydriver.CUcontext context_of_memory(self, Record record, unsigned long long* id) noexcept:
        """Return the context that takes this memory along, NULL where nobody knows; and its number, 0 if not known."""
        cdef Holding holding = record.entry
        id[0] = 0
        if holding is not None and holding.context:
            id[0] = holding.context_id
            return <cydriver.CUcontext>holding.context
        cdef StreamHandle* order = record.hold_stream()  # another thread may replace it
        cdef cydriver.CUcontext context = order.context if order != NULL else NULL
        drop_stream(order)
        return context

    cdef int own(self, Record buffer) except -1:
        """Take memory that was made elsewhere, and write down which context takes it along.

        Asked while the context is there: later it is late. What the driver does not know stays unknown, and the
        resource's context or the stream's is taken for it.
        """
        cdef Holding holding
        cdef cydriver.CUcontext context = NULL
        cdef unsigned long long id = 0
        cdef cydriver.CUpointer_attribute name = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
        cdef void* value = &context
        cdef cydriver.CUresult result
        if buffer.size:
            ensure_driver()
            with nogil:  # the plural form answers NULL for an address that is not the driver's
                result = cydriver.cuPointerGetAttributes(1, &name, &value, buffer.pointer)
            check(result, b"cuPointerGetAttributes")
            with nogil:
                result = ask_for_id(context, &id)
            check(result, b"cuCtxGetId")
        IndexedResource.own(self, buffer)
        if context != NULL:
            holding = buffer.entry
            holding.context, holding.context_id = <size_t>context, id
        return 0

    cdef int ensure_not_gone(self, Record record) except -1:
        """Raise that memory went with its context, before the driver is asked for anything that went with it too.

        By now the address may be another allocation's, of the context that came after a reset.
        """
        cdef unsigned long long id = 0
        cdef cydriver.CUcontext context = self.context_of_memory(record, &id)
        cdef cydriver.CUresult result
        with nogil:
            result = ask_for_context(context, id)
        if result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED:
            error = error_for(result, b"cuCtxGetId")
            error.lost_place, error.lost_number = place_of_context(context), id
            self.end_free(self.begin_free(record), True)  # the address may come back, and means nothing then
            raise error
        check(result, b"cuCtxGetId")
        return 0

    cdef int mark_as_lost(self, Record record, object error) except -1:
        """Say in a driver's error of which context the memory was, if that is gone."""
        cdef unsigned long long id = 0
        cdef cydriver.CUcontext context = self.context_of_memory(record, &id)
        cdef bint gone
        with nogil:
            gone = context != NULL and context_is_gone(context, id)
        if gone or is_hopeless(<cydriver.CUresult><int>error.result):
            error.lost_place = place_of_context(context) if context != NULL else place_of(record)
            error.lost_number = id
        return 0

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        if not record.size:
            return CLOSE_DONE
        try:
            self.ensure_not_gone(record)
        except CUDAError as error:
            if waiting < NEVER_WAIT or is_hopeless(<cydriver.CUresult><int>error.result):
                raise
            # The context could not be asked for. Nobody is left who could ask once more; the queue does.
        # These frees wait for the whole device, whatever their own stream does. A collection leaves that to the queue.
        if waiting >= NEVER_WAIT or must_queue(order, waiting):
            return self._queue_free(record, order, waiting)
        return self._free_now(record, order)

    cdef int _queue_free(self, Record record, StreamHandle* order, int waiting) except -1:
        cdef QueuedFree* what
        cdef Job* job
        # The entry goes when the free is queued: nobody can ask for this address any more.
        cdef Holding holding = self.begin_free(record)
        if self.is_freed(record, holding):
            return CLOSE_DONE
        try:
            what = <QueuedFree*>calloc(1, sizeof(QueuedFree))
            if what == NULL:
                raise MemoryError("no memory for a queued release")
            what.address = record.pointer
            what.host = self.ordinal() < 0
            try:
                job = new_job(_give_back, _discard, what, record, order)
            except BaseException:
                free(what)
                raise
            job.once = waiting == NEVER_WAIT
            job.context = self.context_of_memory(record, &job.context_id)
            if job.context != NULL:
                job.place = place_of_context(job.context)
            try:
                enqueue(job)
            except BaseException:
                discard_job(job)
                raise
        except BaseException:  # nothing was queued, and the record still owns it
            self.end_free(holding, False)
            raise
        self.note_free(record, holding)
        if waiting >= NEVER_WAIT:
            wait_a_moment()  # with an idle device the memory is back when the collection returns
        return CLOSE_QUEUED

    cdef int _free_now(self, Record record, StreamHandle* order) except -1:
        cdef Holding holding
        cdef unsigned long long id = 0
        cdef bint waited = False
        try:
            waited = wait_for_order(order)
        except CUDAError as error:
            # Where the stream's context is dead nothing runs any more. If the memory is of another, it is still there.
            hopeless = is_hopeless(<cydriver.CUresult><int>error.result)
            if not hopeless or order.context == self.context_of_memory(record, &id):
                self.mark_as_lost(record, error)
                raise
        if waited:  # its context may have been reset meanwhile
            self.ensure_not_gone(record)
        holding = self.begin_free(record)
        if self.is_freed(record, holding):
            return CLOSE_DONE
        try:
            self._free(record.pointer)
        except BaseException as error:  # the record still owns it
            if isinstance(error, CUDAError):
                self.mark_as_lost(record, error)
            self.end_free(holding, False)
            raise
        return self.note_free(record, holding)

    cdef int ensure_not_lost(self, Holding holding) except -1:
        cdef cydriver.CUcontext context = <cydriver.CUcontext>holding.context
        cdef cydriver.CUresult result
        with nogil:
            result = ask_for_context(context, holding.context_id)
        if result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED:
            error = error_for(result, b"cuCtxGetId")
            error.lost_place, error.lost_number = place_of_context(context), holding.context_id
            raise error
        check(result, b"cuCtxGetId")
        return 0

    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1:
        if waiting >= NEVER_WAIT or must_queue(order, waiting):
            return self._queue_free(self.part(holding), order, waiting)
        return self.free_unknown(<uintptr_t><size_t>holding.key, holding.size, order)

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        wait_for_order(order)
        return self._free(address)

    cdef int _free(self, uintptr_t address) except -1:
        cdef const char* function = NULL
        cdef cydriver.CUresult result
        cdef bint host = self.ordinal() < 0
        with nogil:
            result = free_plain(address, host, &function)
        check(result, function)
        return 0
