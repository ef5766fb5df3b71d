# SPDX-License-Identifier: Apache-2.0
"""``VirtualMemoryResource``: buffers on virtual memory, which can grow."""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._driver cimport driver_is_the_parents, error_for, is_finalizing, is_hopeless
from cuda.core._memory._allocation cimport CLOSE_DONE, CLOSE_QUEUED, LAST_LOAN, NEVER_WAIT, Record, record_ended
from cuda.core._memory._arguments cimport device_argument, round_up, size_argument
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._memory._indexed_resource cimport Holding, IndexedResource
from cuda.core._memory._ownership cimport (
    EVENT_ABORT_TRANSFER,
    EVENT_BEGIN_GROW,
    LOANS_MASK,
    STATE_BORROWED,
    STATE_OWNED,
    TAKER_GROWN,
    VERDICT_GO,
    VERDICT_NOT_OWNER,
    commit_shared_transfer,
    fresh,
)
from cuda.core._memory._queue cimport Job, discard_job, drain_for_memory, enqueue, keep_refused, new_job
from cuda.core._memory._release cimport ensure_not_capturing, must_queue, report, wait_for_order
from cuda.core._memory._virtual_memory_request cimport check_fit, facts_of, prepare_request
from cuda.core._memory._virtual_range cimport (
    GROW_ELSEWHERE,
    GROW_FAILED,
    GROWN,
    ChunkRequest,
    CUdeviceptr,
    Failure,
    Parts,
    VirtualRange,
    del_parts,
    new_parts,
    parts_are_empty,
    return_parts,
)
from cuda.core._stream cimport Stream_accept, bind_default_stream, bind_stream
from cuda.core._stream_handle cimport StreamHandle, release_stream, retain_stream

from cuda.core._error_text import shown
from cuda.core._errors import CUDAError, OwnershipError
from cuda.core._memory._virtual_memory_options import VirtualMemoryResourceOptions
from cuda.core.typing import VirtualMemoryLocationType

__all__ = ["VirtualMemoryResource", "VirtualMemoryResourceOptions"]

# Set by the device module when it is imported; modules below it cannot import it.
device_factory = None

cdef bint _worth_another_try(Failure* failure) noexcept nogil:
    """Whether memory was short and the queue has given some back. The failure is then forgotten."""
    if failure.result != cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY or not drain_for_memory():
        return False
    failure.function = NULL
    return True


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    return return_parts(<Parts*>data, failure)


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    del_parts(<Parts*>data)
    return True


cdef int _return_range(Record record, StreamHandle* order, int waiting) except -1:
    """The deleter of virtual memory: after the ordering stream, every part of the range by its own record."""
    cdef VirtualMemoryResource resource = record.resource
    if record.range.is_empty():
        resource._retry_leftovers()
        return CLOSE_DONE
    if must_queue(order, waiting):
        return resource._queue_parts(record, order, waiting, False)
    try:
        resource._return_parts(record.range, record, order)
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
cdef class VirtualMemoryResource(IndexedResource):
    """Allocates virtual memory: physical chunks mapped into reserved address space. Its buffers can grow.

    Parameters
    ----------
    device_id : Device or int
        The device, also for memory at the host: it is the one whose nearest NUMA node ``"host_numa"`` means.
    config : VirtualMemoryResourceOptions or dict, optional
        How to allocate.

    Attributes
    ----------
    config : VirtualMemoryResourceOptions
        The options that were given. Assigning to one of them changes later allocations.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or names a device that is not there.
    RuntimeError
        If the device cannot do what the options ask for, or there is no driver.

    Notes
    -----
    Safe from any thread. Allocating and freeing are not stream-ordered by the driver: a release waits, without the
    GIL, for the stream that was recorded, and returns everything before it returns.

    Examples
    --------
    >>> mr = VirtualMemoryResource(0)  # doctest: +SKIP
    >>> small = mr.allocate(2 << 20, stream=stream)
    >>> large = mr.modify_allocation(small, 64 << 20)
    >>> small.ownership, large.ownership
    (<Ownership.TRANSFERRED: 3>, <Ownership.OWNED: 1>)
    >>> large.close()
    <CloseResult.DONE: 0>
    """

    def __cinit__(self):
        self._leftovers = []
        self._revision = -1
        self._ordinal = -1
        # The exact type frees in C. A subclass may have its own deallocate, and that is asked.
        if type(self) is VirtualMemoryResource:
            self.deleter = _return_range

    def __init__(self, device_id, config=None):
        if self._revision >= 0:
            raise RuntimeError(f"this {type(self).__name__} was made already, and buffers may depend on what it is")
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
        cdef size_t granularity = 0
        cdef int revision
        revision = self._options()._revision
        # The node of "host_numa_current" is the calling thread's, so it is looked up each time.
        if revision == self._revision and self.config.location_type != VirtualMemoryLocationType.HOST_NUMA_CURRENT:
            return 0
        check_fit(self._ordinal, self._facts, self.config)
        prepare_request(self._ordinal, self.config, &request, &granularity)
        self._request = request
        self._granularity = granularity
        self._revision = revision
        return 0

    @property
    def device(self):
        """Device or None: the device whose memory is allocated; None for memory of the host."""
        if self._options().location_type != VirtualMemoryLocationType.DEVICE:
            return None
        return device_factory(self._ordinal)

    @property
    def device_id(self):
        """int: ordinal of the device whose memory is allocated; -1 for memory of the host."""
        return self._ordinal if self._options().location_type == VirtualMemoryLocationType.DEVICE else -1

    @property
    def is_device_accessible(self):
        """bool: whether a device can use the memory, by its own or a peer's rights."""
        if self._options().location_type == VirtualMemoryLocationType.DEVICE:
            return True
        return bool(self.config.peers) and self.config.peer_access is not None

    @property
    def is_host_accessible(self):
        """bool: whether the host can use the memory."""
        return self._options().location_type != VirtualMemoryLocationType.DEVICE

    def __repr__(self):
        if self.config is None:
            return f"<{type(self).__name__}, __init__ was not called>"
        place = f"device {self._ordinal}" if self.device_id >= 0 else self.config.location_type.value
        return f"<{type(self).__name__} on {place}, {len(self._holdings)} ranges>"

    # -- allocation ------------------------------------------------------------------------------------------------

    def allocate(self, size, *, stream=None):
        """Allocate a buffer.

        Parameters
        ----------
        size : int
            Bytes wanted; rounded up to the granularity. 0 gives an empty buffer without any driver call.
        stream : Stream, optional
            The stream to record: the release waits for it. By default the default stream of the current context;
            where no context is current either, the release waits for nothing.

        Returns
        -------
        Buffer
            The new buffer, OWNED. Its memory is usable at once.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If ``size`` is not an integer, negative or too large, or ``stream`` is no stream. No driver call is made.
        CUDAError
            If the driver refuses. Everything done by then is undone.
        """
        cdef size_t wanted = size_argument(size, "size")
        cdef size_t rounded, reserved
        cdef StreamHandle* order = NULL
        cdef VirtualRange range_
        cdef Buffer buffer
        cdef Failure failure
        cdef ChunkRequest request
        cdef bint done
        cdef size_t alignment
        cdef uintptr_t hint
        failure.function = NULL
        range_ = VirtualRange.__new__(VirtualRange)
        range_.word.store(fresh(STATE_OWNED, 0))
        rounded = reserved = 0
        if wanted:
            self._refresh()
            rounded = round_up(wanted, self._granularity, "size")
            reserved = max(rounded, round_up(self.config.reserve_size, self._granularity, "reserve_size"))
        if stream is not None:
            order = bind_stream(Stream_accept(stream))
        elif wanted:
            order = bind_default_stream()
        # From here on the buffer holds the stream's reference, and an exception lets it go.
        buffer = new_buffer(0, 0, self, self._ordinal, order)
        if not wanted:
            buffer.begin(STATE_OWNED, range_, 0)
            return buffer
        alignment = self.config.addr_align or self._granularity
        hint = self.config.addr_hint or 0
        request = self._request
        request.size = rounded
        self._retry_leftovers()
        with nogil:
            done = range_.move(reserved, alignment, hint, &request, &failure)
            if not done and _worth_another_try(&failure):
                done = range_.move(reserved, alignment, hint, &request, &failure)
        if not done:
            raise self._failed(range_, failure)
        buffer.pointer = range_.base
        buffer.size = rounded
        buffer.begin(STATE_OWNED, range_, 0)
        self.remember(buffer)
        return buffer

    cdef object _failed(self, VirtualRange range_, Failure failure):
        """Make the error of a failed allocation and keep what could not be undone."""
        error = error_for(failure.result, failure.function)
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
        cdef list kept
        cdef bint done
        if not self._leftovers:
            return 0
        with cython.critical_section(self):
            leftovers, self._leftovers = self._leftovers, []
        kept = []
        for range_ in leftovers:
            ignored.function = NULL
            with nogil:
                done = range_.return_all(&ignored)
            if not done:
                kept.append(range_)
        self._leftovers.extend(kept)
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
        self._retry_leftovers()
        return 0

    cdef int _queue_parts(self, Record record, StreamHandle* order, int waiting, bint refused) except -1:
        """Hand everything that a range holds to the queue, to be returned behind a stream or tried again some time."""
        cdef VirtualRange range_ = record.range
        cdef Parts* parts = new_parts()
        cdef Job* job
        try:
            job = new_job(_give_back, _discard, parts, record, order)
        except BaseException:
            del_parts(parts)
            raise
        job.once = waiting == NEVER_WAIT
        holding = self.begin_free(record)
        range_.gather_late()
        range_.give_parts_away(parts)
        try:
            if refused:
                keep_refused(job)
            else:
                enqueue(job)
        except BaseException:
            range_.take_parts_back(parts)
            self.end_free(holding, False)
            discard_job(job)
            raise
        self.end_free(holding, True)
        return CLOSE_QUEUED

    cdef int begin_owning(self, Record buffer) except -1:
        """Own memory that exists: a range of this resource that was handed over and comes back, or else one
        reservation with one mapping of exactly the buffer's address and size."""
        cdef Holding known = self._holdings.get(<size_t>buffer.pointer) if buffer.size else None
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
        cdef VirtualMemoryResource other
        IndexedResource.ensure_same_kind(self, before)
        other = before
        if other.config.location_type != self.config.location_type:
            raise ValueError(
                f"mr allocates at {self.config.location_type.value!r}, the memory lies at "
                f"{other.config.location_type.value!r}"
            )
        return 0

    cdef int free_record(self, Record record, StreamHandle* order) except -1:
        if record.range.is_empty():
            return 0
        return self._return_parts(record.range, record, order)

    cdef int free_holding(self, uintptr_t address, Holding holding, StreamHandle* order) except -1:
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

    # -- growth ----------------------------------------------------------------------------------------------------

    def modify_allocation(self, buf, new_size, config=None):
        """Grow a buffer. The allocation moves to a new buffer, and ``buf`` becomes TRANSFERRED.

        Parameters
        ----------
        buf : Buffer
            An OWNED buffer of this resource.
        new_size : int
            Bytes wanted in all; rounded up to the granularity.
        config : VirtualMemoryResourceOptions or dict, optional
            How to allocate what is added, by default as the resource does. It must keep the location, and it is
            not stored.

        Returns
        -------
        Buffer
            A new buffer with the same contents at its start. ``buf`` itself, if it is large enough already.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an argument is wrong, or ``buf`` belongs to another resource. No driver call is made.
        OwnershipError
            If ``buf`` is BORROWED, closed, transferred, or being released or grown by another thread.
        CUDAError
            If the driver refuses. ``buf`` is then exactly what it was.

        Notes
        -----
        In this order: inside the reservation, the new memory is mapped behind the old; where the driver gives the
        addresses behind the reservation, likewise. In both cases the address stays and nothing waits. Otherwise a
        larger reservation is made and every chunk is mapped into it a second time; no byte is copied. The old
        addresses are returned after the recorded stream; if that fails, the new buffer is returned all the same, the
        failure is reported once as a ``CUDAWarning``, and the next close tries again.

        Work that uses the old address must be in the recorded stream, or finished.
        """
        cdef Buffer old, new
        cdef Holding entry
        cdef VirtualRange range_
        cdef ChunkRequest request
        cdef Failure failure
        cdef size_t wanted, rounded, granularity = 0, target, alignment, more
        cdef int verdict, outcome = GROW_ELSEWHERE
        cdef CUdeviceptr base
        cdef bint moved = False, done
        cdef int device_count = self._facts[0] if self._facts is not None else 0
        if not isinstance(buf, Buffer):
            raise TypeError(f"buf must be a Buffer, got {type(buf).__name__}: {shown(buf)}")
        old = buf
        options = self._options()
        wanted = size_argument(new_size, "new_size")  # which may run code that closes the buffer, so this comes first
        if config is not None:
            options = VirtualMemoryResourceOptions._accept(config, "config")
            if options.location_type != self.config.location_type:
                raise ValueError(
                    f"config must keep the location {self.config.location_type.value!r}, "
                    f"got {options.location_type.value!r}"
                )
            check_fit(self._ordinal, self._facts, options)
        old.ensure_usable()
        if old.state() == STATE_BORROWED:
            raise old.refusal(VERDICT_NOT_OWNER, "grown")
        if old.resource is not self:
            raise ValueError(f"buf belongs to another resource: {old.describe()}")
        if old.range.partly_returned:
            raise OwnershipError(
                f"a close that failed has returned a part of the buffer; close it again ({old.describe()})"
            )
        if wanted <= old.size:
            return buf
        self._refresh()
        if config is None:
            request, granularity = self._request, self._granularity
        else:
            prepare_request(self._ordinal, options, &request, &granularity)
        rounded = round_up(wanted, granularity, "new_size")
        alignment = options.addr_align or granularity
        # The new buffer is made before anything happens: after the commit point nothing may fail.
        new = new_buffer(0, rounded, self, self._ordinal, retain_stream(old.stream))
        entry = self.new_entry(new, old.pointer, rounded)
        failure.function = NULL

        with cython.critical_section(old.range):  # the end of a loan may be about to take left addresses out
            verdict = old.apply(EVENT_BEGIN_GROW)
        if verdict != VERDICT_GO:
            raise old.refusal(verdict, "grown")
        range_ = old.range
        base = range_.base
        try:
            with nogil:
                done = range_.learn_rights(device_count, &failure)
            if not done:
                raise error_for(failure.result, failure.function)
            request.size = rounded - range_.mapped
            more = rounded - range_.capacity if rounded > range_.capacity else 0
            if range_.capacity:
                with nogil:
                    outcome = range_.grow_in_place(more, granularity, &request, &failure)
                    if outcome == GROW_FAILED and _worth_another_try(&failure):
                        outcome = range_.grow_in_place(more, granularity, &request, &failure)
            if outcome == GROW_ELSEWHERE:
                # Retiring the old addresses would wait for the recorded stream. If that is being captured, say so now.
                ensure_not_capturing(old.stream)
                target = max(rounded, round_up(options.reserve_size, granularity, "reserve_size"))
                with nogil:
                    moved = range_.move(target, alignment, 0, &request, &failure)
                    if not moved and _worth_another_try(&failure):
                        moved = range_.move(target, alignment, 0, &request, &failure)
                outcome = GROWN if moved else GROW_FAILED
            if outcome == GROW_FAILED:
                raise error_for(failure.result, failure.function)
        except BaseException:  # also for KeyboardInterrupt: the word must not stay claimed
            old.apply(EVENT_ABORT_TRANSFER)
            raise

        # Committed: from here on the new buffer owns everything, whatever else happens.
        new.pointer = range_.base
        new.kept_by_collector = old.kept_by_collector
        old.taker_serial = new.serial
        old.left_to = TAKER_GROWN
        new.begin(STATE_OWNED, range_, old.epoch + 1)
        commit_shared_transfer(old.word, old.epoch)
        record_ended(old)
        entry.range = range_
        self._enter_grown(old, new, entry, base)
        old.forget()
        if moved:
            self._retire(new)
        return new

    cdef void _enter_grown(self, Buffer old, Buffer new, Holding entry, CUdeviceptr base) noexcept:
        """Know the new buffer as the owner of its address, not the old one. The grow is done: nothing may fail."""
        try:
            if new.pointer != base:
                self.end_free(self.begin_free(old), True)
                entry.key = <size_t>new.pointer
            self.enter(entry, new)
        except MemoryError:  # it cannot be found by its address, and frees itself all the same
            pass

    cdef int _retire(self, Buffer buffer) except -1:
        """Return the addresses that a grow has left. A failure is reported, and tried again at the buffer's close."""
        cdef VirtualRange range_ = buffer.range
        cdef Failure failure
        cdef bint done
        failure.function = NULL
        if parts_are_empty(&range_.retired):
            return 0
        if range_.word.load() & LOANS_MASK:
            # Whoever looks at the old addresses keeps them until the last loan ends.
            release_stream(range_.left_order)
            range_.left_order = retain_stream(buffer.stream)
            return 0
        try:
            wait_for_order(buffer.stream)
            with nogil:
                done = range_.return_retired(&failure)
            if not done:
                raise error_for(failure.result, failure.function)
        except Exception as error:
            report(
                f"{buffer.describe()} has grown, but the addresses it left could not be returned: {error}. "
                "Its close tries again."
            )
        return 0
