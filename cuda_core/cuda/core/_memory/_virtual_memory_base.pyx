# SPDX-License-Identifier: Apache-2.0
"""What a virtual memory resource is before it allocates: its options, and how it returns what its ranges hold."""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._shared_containers cimport dict_item, take_all
from cuda.core._driver cimport driver_is_the_parents, error_for, is_finalizing, is_hopeless
from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, Record
from cuda.core._memory._arguments cimport device_argument
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._ownership cimport STATE_OWNED, fresh
from cuda.core._memory._queue cimport drain_for_memory
from cuda.core._memory._release cimport must_queue, report, wait_for_order
from cuda.core._memory._virtual_contents cimport let_contents_go
from cuda.core._memory._virtual_descriptor cimport enable_sending_descriptors
from cuda.core._memory._virtual_memory_request cimport check_fit, facts_of, prepare_request
from cuda.core._memory._virtual_parts cimport ChunkRequest, Failure, Parts
from cuda.core._memory._virtual_queue cimport queue_parts
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._stream_handle cimport StreamHandle

from cuda.core._errors import CUDAError
from cuda.core.typing import VirtualMemoryHandleType, VirtualMemoryLocationType

# Set by the device module when it is imported; modules below it cannot import it.
device_factory = None


cdef bint worth_another_try(Failure* failure) noexcept nogil:
    """Whether memory was short and the queue has given some back. The failure is then forgotten."""
    if failure.result != cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY or not drain_for_memory():
        return False
    failure.function = NULL
    return True


cdef object grow_error(Failure failure, size_t reserved):
    """Make the error of something that was refused; of addresses it says how many were asked for."""
    error = error_for(failure.result, failure.function)
    if error.function == "cuMemAddressReserve":
        error.args = (f"{error.args[0]}; {reserved} bytes of addresses were asked for, see reserve_size",)
    return error


cdef int return_range(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of virtual memory: after the ordering stream, every part of the range by its own record."""
    cdef VirtualMemoryBase resource = record.resource
    if record.range.is_empty():
        resource._retry_leftovers()
        return CLOSE_DONE
    if must_queue(order, waiting):
        return resource._queue_parts(record, order, waiting, False)
    try:
        # The streams of a collection were idle a moment ago, and nothing can be put there for this memory any more.
        # Asked again, one may be captured by now.
        resource._return_parts(record.range, record, order if waiting < NEVER_WAIT else <StreamHandle*>NULL)
    except CUDAError as error:
        if waiting != LAST_LOAN or is_hopeless(<cydriver.CUresult><int>error.result):
            raise
        # The buffer was closed before, so nobody will close it again: the queue has to go on.
        resource._queue_parts(record, order, waiting, True)
        report(
            f"{record.describe()} could not be returned: {error}. It stays allocated until a later attempt succeeds."
        )
        return CLOSE_QUEUED
    return CLOSE_DONE


# No gc_clear: a buffer that is collected together with its resource still needs the resource's tables.
@cython.no_gc_clear
cdef class VirtualMemoryBase(IndexedResource):
    """What is common to everything that a :class:`VirtualMemoryResource` does."""

    def __cinit__(self):
        self._leftovers = []
        self._revision = -1
        self._ordinal = -1

    def __init__(
        self, device_id: Device | int, config: VirtualMemoryResourceOptions | dict[str, Any] | None = None
    ) -> None:
        if self._revision >= 0:
            raise RuntimeError(f"this {type(self).__name__} was made already, and buffers may depend on what it is")
        from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions

        options = VirtualMemoryResourceOptions._accept(config, "config")
        cdef int ordinal = device_argument(device_id)
        cdef tuple facts = facts_of(ordinal)
        check_fit(ordinal, facts, options)
        self._ordinal = ordinal
        self._facts = facts
        self.config = options
        self._refresh()

    def __dealloc__(self):
        cdef Failure ignored
        cdef VirtualRange range_
        ignored.function = NULL
        if <void*>self._leftovers == NULL:  # the constructor of a base class failed, before there were any fields
            return
        if self._leftovers and not is_finalizing() and not driver_is_the_parents():
            for range_ in self._leftovers:
                range_.return_all(&ignored)

    # -- configuration ---------------------------------------------------------------------------------------------

    cdef object _options(self):
        """Return the options; RuntimeError where a subclass has forgotten to call the constructor."""
        if self.config is None:
            raise RuntimeError(f"{type(self).__name__}.__init__ was not called")
        return self.config

    cdef int _refresh(self) except -1:
        """Prepare the resource's own request again if an option was assigned since."""
        cdef ChunkRequest request
        cdef size_t granularity = 0, ahead, alignment
        cdef uintptr_t hint
        cdef bint at_each_node
        cdef int revision
        cdef bint known
        revision = self._options()._revision
        with cython.critical_section(self):
            known, at_each_node = revision == self._revision, self._at_each_node
        if known and not at_each_node:
            return 0
        at_each_node = self.config.location_type == VirtualMemoryLocationType.HOST_NUMA_CURRENT
        check_fit(self._ordinal, self._facts, self.config)
        prepare_request(self._ordinal, self.config, &request, &granularity)
        if not known and self.config.location_type != VirtualMemoryLocationType.DEVICE:
            self._ensure_place(&request, granularity)
        if self.config.handle_type == VirtualMemoryHandleType.POSIX_FD:
            enable_sending_descriptors()
        ahead, hint = self.config.reserve_size, self.config.addr_hint or 0
        alignment = self.config.addr_align or granularity
        with cython.critical_section(self):  # others may be copying it
            self._request = request
            self._granularity = granularity
            self._ahead, self._alignment, self._hint = ahead, alignment, hint
            self._at_each_node = at_each_node
            self._revision = revision
        return 0

    cdef size_t held_request(self, ChunkRequest* request) noexcept:
        """Copy the prepared request, and return the granularity that goes with it. Another thread may replace both."""
        with cython.critical_section(self):
            request[0] = self._request
            return self._granularity

    cdef int _ensure_place(self, ChunkRequest* request, size_t granularity) except -1:
        """Refuse a place at the host where the driver allocates nothing. Only an allocation there tells."""
        cdef VirtualRange trial = VirtualRange.__new__(VirtualRange)
        cdef Failure failure, ignored
        failure.function = ignored.function = NULL
        request.size = granularity
        with nogil:
            trial.move(granularity, granularity, 0, request, &failure)
            trial.return_all(&ignored)
        if not trial.is_empty():
            self._leftovers.append(trial)
        # Any other failure, as for want of memory, says nothing about the place.
        if failure.function != NULL and failure.result in (
            cydriver.CUresult.CUDA_ERROR_INVALID_VALUE,
            cydriver.CUresult.CUDA_ERROR_INVALID_DEVICE,
            cydriver.CUresult.CUDA_ERROR_NOT_SUPPORTED,
            cydriver.CUresult.CUDA_ERROR_NOT_PERMITTED,
        ):
            error = error_for(failure.result, failure.function)
            raise ValueError(
                f"location_type {self.config.location_type.value!r} with handle_type "
                f"{None if self.config.handle_type is None else self.config.handle_type.value!r} and "
                f"numa_id={self.config.numa_id!r}: the driver allocates nothing there ({error})"
            )
        return 0

    cdef size_t granularity_now(self) except 0:
        """Return to what sizes are rounded, by the options as they are."""
        cdef ChunkRequest request
        self._refresh()
        return self.held_request(&request)

    @property
    def wait_on_close(self) -> bool:
        """bool: whether closing a buffer waits for work in flight where the call does not say. An option."""
        return self._options().wait_on_close

    @property
    def device(self) -> Device | None:
        """Device or None: the device whose memory is allocated; None for memory of the host."""
        if self._options().location_type != VirtualMemoryLocationType.DEVICE:
            return None
        return device_factory(self._ordinal)

    @property
    def device_id(self) -> int:
        """int: ordinal of the device whose memory is allocated; -1 for memory of the host."""
        return self._ordinal if self._options().location_type == VirtualMemoryLocationType.DEVICE else -1

    @property
    def is_device_accessible(self) -> bool:
        """bool: whether a device can use the memory, by its own or a peer's rights."""
        if self._options().location_type == VirtualMemoryLocationType.DEVICE:
            return True
        return bool(self.config.peers) and self.config.peer_access is not None

    @property
    def is_host_accessible(self) -> bool:
        """bool: whether the host can use the memory."""
        return self._options().location_type != VirtualMemoryLocationType.DEVICE

    def __repr__(self) -> str:
        if self.config is None:
            return f"<{type(self).__name__}, __init__ was not called>"
        place = f"device {self._ordinal}" if self.device_id >= 0 else self.config.location_type.value
        return f"<{type(self).__name__} on {place}, {len(self._holdings)} ranges>"

    # -- what an allocation could not undo -----------------------------------------------------------------------

    cdef object _failed(self, VirtualRange range_, Failure failure, size_t reserved):
        """Make the error of a failed allocation and keep what could not be undone."""
        error = grow_error(failure, reserved)
        if (
            failure.result == cydriver.CUresult.CUDA_ERROR_NOT_PERMITTED
            and self.config.handle_type == VirtualMemoryHandleType.FABRIC
        ):
            error.args = (f"{error.args[0]}: handle_type 'fabric' needs an IMEX channel that this process may use",)
        if not range_.is_empty():
            self._leftovers.append(range_)
            report(
                f"{type(self).__name__} on device {self._ordinal} could not undo all of a failed allocation "
                f"({failure.function.decode()} failed first); it tries again at its next use"
            )
        return error

    cdef int _retry_leftovers(self) except -1:
        """Try again to return what failed allocations could not undo. Quiet: the failure was told when it happened."""
        cdef VirtualRange range_
        cdef Failure ignored
        cdef bint done
        for range_ in take_all(self._leftovers):
            ignored.function = NULL
            with nogil:
                done = range_.return_all(&ignored)
            if not done:
                self._leftovers.append(range_)
        return 0

    # -- release ---------------------------------------------------------------------------------------------------

    cdef int _return_parts(self, VirtualRange range_, Record record, StreamHandle* order) except -1:
        """Return everything that a range holds, after the work in ``order``."""
        cdef Failure failure
        cdef Holding holding
        cdef bint done
        failure.function = NULL
        try:
            wait_for_order(order)
        except CUDAError as error:
            # Where the context is dead nothing runs any more. Virtual memory outlives it and can be returned.
            if not is_hopeless(<cydriver.CUresult><int>error.result):
                raise
        holding = self.begin_free(record) if record is not None else None
        range_.gather_late()
        with nogil:
            done = range_.return_all(&failure)
        self.end_free(holding, not range_.holds_base())
        if not done:
            raise error_for(failure.result, failure.function)
        let_contents_go(range_)  # of a buffer that is closed while it is paused
        self._retry_leftovers()
        return 0

    cdef int _queue_parts(self, Record record, StreamHandle* order, int waiting, bint refused) except -1:
        """Hand everything that a range holds to the queue, to be returned behind a stream or tried again some time."""
        cdef VirtualRange range_ = record.range
        cdef Parts everything
        holding = self.begin_free(record)
        range_.gather_late()
        range_.give_parts_away(&everything)
        try:
            queue_parts(&everything, record, order, waiting == NEVER_WAIT, refused)
        except BaseException:
            range_.take_parts_back(&everything)
            self.end_free(holding, False)
            raise
        self.end_free(holding, True)
        range_.contents = None  # to be queued, too
        return CLOSE_QUEUED

    cdef int begin_owning(self, Record buffer) except -1:
        """Own memory that exists: a range of this resource that was handed over and comes back, or else one
        reservation with one mapping of exactly the buffer's address and size."""
        cdef Holding known = dict_item(self._holdings, <size_t>buffer.pointer) if buffer.size else None
        cdef VirtualRange range_
        if known is not None and not known.being_freed and known.size == buffer.size and not known.range.is_empty():
            buffer.begin(STATE_OWNED, known.range, known.range.word.load() >> 40)
            return 0
        range_ = VirtualRange.__new__(VirtualRange)
        range_.word.store(fresh(STATE_OWNED, 0))
        if buffer.size:
            range_.adopt(buffer.pointer, buffer.size)
        buffer.begin(STATE_OWNED, range_, 0)
        return 0

    cdef int ensure_same_kind(self, MemoryResource before) except -1:
        cdef VirtualMemoryBase other
        IndexedResource.ensure_same_kind(self, before)
        other = before
        if other.config.location_type != self.config.location_type:
            raise ValueError(
                f"mr allocates at {self.config.location_type.value!r}, the memory lies at "
                f"{other.config.location_type.value!r}"
            )
        return 0

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        if record.range.is_empty():
            return CLOSE_DONE
        return return_range(record, order, waiting)

    cdef int free_holding(self, Holding holding, StreamHandle* order, int waiting) except -1:
        if waiting >= NEVER_WAIT:
            return return_range(self.part(holding), order, waiting)
        if must_queue(order, waiting):
            return self._queue_parts(self.part(holding), order, waiting, False)
        return self._return_parts(holding.range, None, order)

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        cdef VirtualRange range_ = VirtualRange.__new__(VirtualRange)
        range_.adopt(address, size)
        try:
            self._return_parts(range_, None, order)
        except BaseException:
            range_.abandon()
            raise
        return 0
