# SPDX-License-Identifier: Apache-2.0
"""What resources do whose pools can be shared between processes: export, import, registry, pickles."""

import weakref

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from cuda.core._context cimport current_context, primary_context
from cuda.core._driver cimport check
from cuda.core._memory._allocation cimport Keeper, Record
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._memory._import_table cimport has_shares
from cuda.core._memory._ipc cimport (
    IPCAllocationHandle,
    IPCBufferDescriptor,
    describe_buffer,
    duplicate_descriptor,
    enable_sending_handles,
    own_descriptor,
    uuid_argument,
)
from cuda.core._memory._memory_pool cimport _MemPool, return_to_pool
from cuda.core._memory._memory_resource cimport MemoryResource
from cuda.core._memory._ownership cimport STATE_OWNED
from cuda.core._memory._pointer_import cimport (
    ImportReference,
    abandon,
    give_up,
    import_pointer,
    imported_range,
    return_import,
)
from cuda.core._memory._pool_handle cimport PoolReference, export_pointer, export_pool, import_pool
from cuda.core._stream cimport bind_default_stream
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown
from cuda.core._errors import CUDAError, OwnershipError
from cuda.core._memory import _ipc, _pool_registry
from cuda.core._start_method import warn_under_fork

__all__ = []

# What the driver answers to a descriptor that is none of a pool: INVALID_VALUE, NOT_SUPPORTED, UNKNOWN.
_NO_POOL = (1, 801, 999)


class _ImportedName:
    """By what name a buffer came from another process: it can be sent on, also when it is closed here."""

    __slots__ = ("_kind", "_resource", "_uuid", "descriptor")

    def __init__(self, resource, descriptor):
        self.descriptor = descriptor
        self._kind = type(resource)
        self._uuid = resource.uuid
        self._resource = weakref.ref(resource)

    def resource_or_name(self):
        """Return the resource if it is open, else what finds it by its UUID where it is registered."""
        resource = self._resource()
        if resource is not None and not resource.is_closed:
            return resource
        if self._uuid is None:
            raise RuntimeError("the buffer cannot be pickled: its resource is closed here, and has no UUID")
        return _RegisteredPool(self._kind, self._uuid)


class _RegisteredPool:
    """What is pickled in the place of a resource that is closed here: the receiver must know it by its UUID."""

    __slots__ = ("_kind", "_uuid")

    def __init__(self, kind, uuid):
        self._kind = kind
        self._uuid = uuid

    def __reduce__(self):
        return _find_pool, (self._kind, self._uuid)


class _HandleOnTheWay:
    """The handle of a pool inside a pickle. Only ``multiprocessing`` can send it; in any other pickle it is None."""

    __slots__ = ("_resource",)

    def __init__(self, resource):
        self._resource = resource

    def __reduce__(self):
        return _no_handle, ()


def _no_handle():
    return None


def _the_handle(handle):
    return handle


def _reduce_handle_on_the_way(place):
    # The very handle, which is pickled once in each message: a process cannot be started with a descriptor given twice.
    return _the_handle, (place._resource.allocation_handle,)


cdef int enable_sending() except -1:
    """Tell multiprocessing how pools are sent. When the first is made or opened: most programs never share anything."""
    from multiprocessing import reduction

    enable_sending_handles()
    reduction.register(_HandleOnTheWay, _reduce_handle_on_the_way)
    return 0


def _ensure_kind(kind):
    if not isinstance(kind, type) or not issubclass(kind, _SharedPool):
        raise ValueError(f"what was received is no memory resource that can be shared: {shown(kind)}")


def _find_pool(kind, uuid, ordinal=None):
    """Return the registered resource of a UUID."""
    _ensure_kind(kind)
    uuid_argument(uuid)
    found = _pool_registry.find(uuid)
    if found is None:
        raise RuntimeError(f"no memory resource is registered for {uuid}; send it through multiprocessing first")
    _ensure_same(found, kind, uuid, ordinal)
    return found


def _ensure_same(found, kind, uuid, ordinal):
    if not isinstance(found, kind):
        raise TypeError(f"{uuid} is registered for a {type(found).__name__}, not a {kind.__name__}")
    if ordinal is not None and ordinal >= 0 and found.device_id != ordinal:
        raise ValueError(f"{uuid} is registered for device {found.device_id}, not for device {ordinal}")


def _receive_pool(kind, ordinal, uuid, handle):
    """Return the resource for a pool that was received, opened now or before."""
    _ensure_kind(kind)
    if ordinal is not None and type(ordinal) is not int:
        raise ValueError(f"what was received is no device: {shown(ordinal)}")
    if handle is None:
        return _find_pool(kind, uuid, ordinal)
    if not isinstance(handle, IPCAllocationHandle):
        raise ValueError(f"what was received is no IPCAllocationHandle: {shown(handle)}")
    return kind._open_received(ordinal, handle)


cdef object open_pool(object kind, object handle, int ordinal):
    """Open the pool behind a handle or the number of a file descriptor, unless it is open and registered already."""
    cdef IPCAllocationHandle given = None
    cdef IPCAllocationHandle descriptor = None
    cdef _SharedPool self
    if isinstance(handle, IPCAllocationHandle):
        given = handle
        number = given.hold()
    else:
        number = _ipc.descriptor_argument(handle)
    try:
        if given is not None and given._uuid is not None:
            found = _pool_registry.find(given._uuid)
            if found is not None:
                _ensure_same(found, kind, given._uuid, ordinal)
                return found
        descriptor = duplicate_descriptor(number, given._uuid if given is not None else None)
    finally:
        if given is not None:
            given.let_go()
    self = kind.__new__(kind)
    try:
        self.take_imported_pool(descriptor, ordinal, number)
    except BaseException:
        descriptor.close()
        raise
    if descriptor._uuid is None:
        return self
    return self._register(descriptor._uuid)


# No gc_clear, as for every pool.
@cython.no_gc_clear
cdef class _SharedPool(_MemPool):
    """Base of the resources whose pools can be shared with other processes."""

    cdef int take_imported_pool(self, IPCAllocationHandle descriptor, int ordinal, int given) except -1:
        """Become the resource of another process's pool. The descriptor, a duplicate of the one given, is kept."""
        cdef PoolReference reference
        cdef int number
        enable_sending()
        number = descriptor.hold()
        try:
            reference = import_pool(number)
        except CUDAError as error:
            if error.function == "cuMemPoolImportFromShareableHandle" and error.result in _NO_POOL:
                raise ValueError(f"file descriptor {given} is none of a memory pool") from error
            raise
        finally:
            descriptor.let_go()
        self.begin_importing(reference, ordinal)
        self._reference = reference
        self._pool = reference.handle.pool
        self._descriptor = descriptor
        self._ordinal = ordinal
        self._mapped, self._shareable, self._closed = True, True, False
        self._choose_deleter()
        return 0

    cdef int begin_importing(self, PoolReference reference, int ordinal) except -1:
        """Look whether an opened pool is one for this kind of resource, and set up who has access."""
        raise NotImplementedError

    cdef int _ensure_shareable(self) except -1:
        self.ensure_open()
        if not self._shareable:
            raise RuntimeError(f"{type(self).__name__} is not IPC-enabled: its pool was not made to be shared")
        return 0

    def close(self) -> None:
        """Give the pool up. Closing twice is harmless.

        Open buffers stay valid, also imported ones. A pool that this resource made or opened goes with the last of
        them, or now if there is none; the pool of a device stays. An opened pool is closed here alone: the exporter's
        is not affected. Nothing can be allocated or imported any more, and the registry forgets the resource.

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
        uuid = self._uuid
        _MemPool.close(self)
        if uuid is not None:
            _pool_registry.forget(uuid, self)
        with cython.critical_section(self):
            self._handle = self._descriptor = None
            self._home = None

    @property
    def is_mapped(self) -> bool:
        """bool: whether the pool is of another process, opened here to import buffers. False once it is closed."""
        return self._mapped and self._has_pool()

    @property
    def allocation_handle(self) -> IPCAllocationHandle:
        """IPCAllocationHandle: what another process needs to open the pool.

        It is made when it is first read, or after the last one was closed, and is closed with the last reference to it.

        Raises
        ------
        RuntimeError
            If the resource is closed, or was not made with ``ipc_enabled=True``.
        CUDAError
            If the driver refuses.
        """
        cdef IPCAllocationHandle handle, descriptor
        cdef PoolReference reference
        cdef cydriver.CUmemoryPool pool
        cdef int number
        self._ensure_shareable()
        with cython.critical_section(self):
            handle, descriptor = self._handle, self._descriptor
        reference = self.held_pool(&pool)  # it stays while it is exported
        if pool == NULL or self._mapped and descriptor is None:
            self.ensure_open()  # another thread has closed the resource
        if handle is not None and not handle.is_closed:
            return handle
        if self._mapped:
            number = descriptor.hold()
            try:
                handle = duplicate_descriptor(number, self._uuid)
            finally:
                descriptor.let_go()
        else:
            handle = own_descriptor(export_pool(reference.handle.pool), self._uuid)
        with cython.critical_section(self):
            # Another thread may have come first: both handles would be good, and one is enough.
            if self._handle is None or self._handle._is_closed():
                self._handle = handle
            return self._handle

    # -- the registry ----------------------------------------------------------------------------------------------

    def register(self, uuid: UUID) -> Self:
        """Let the pool be found by its UUID in this process.

        Parameters
        ----------
        uuid : uuid.UUID
            The ``uuid`` of the exporter's resource.

        Returns
        -------
        DeviceMemoryResource or PinnedMemoryResource
            This resource, or the open one that was registered with the UUID before.

        Raises
        ------
        TypeError
            If ``uuid`` is no UUID, or another kind of resource is registered with it.
        ValueError
            If this resource has another UUID.
        RuntimeError
            If the resource is closed, or not IPC-enabled.

        Examples
        --------
        >>> there = DeviceMemoryResource.from_allocation_handle(device, handle)  # doctest: +SKIP
        >>> there.register(handle.uuid) is there  # doctest: +SKIP
        True
        """
        uuid_argument(uuid)
        self._ensure_shareable()
        if self._uuid is not None and self._uuid != uuid:
            raise ValueError(f"uuid must be {self._uuid}, that of this resource, got {uuid}")
        return self._register(uuid)

    def _register(self, uuid):
        # Under its UUID already when others may find it.
        before, self._uuid = self._uuid, uuid
        found = _pool_registry.register(uuid, self)
        if found is not self:
            self._uuid = before
            _ensure_same(found, type(self), uuid, self._ordinal)
        return found

    @classmethod
    def from_registry(cls, uuid: UUID) -> Self:
        """Return the resource that was registered with a UUID in this process.

        Parameters
        ----------
        uuid : uuid.UUID
            What the pool was registered with: the UUID of the exporter's resource.

        Raises
        ------
        TypeError
            If ``uuid`` is no UUID, or another kind of resource is registered with it.
        RuntimeError
            If there is none that is open.

        Examples
        --------
        >>> DeviceMemoryResource.from_registry(handle.uuid) is there  # doctest: +SKIP
        True
        """
        return _find_pool(cls, uuid)

    def __reduce__(self) -> tuple[object, ...]:
        self._ensure_shareable()
        warn_under_fork()
        return _receive_pool, (
            type(self),
            self._ordinal if self._ordinal >= 0 else None,
            self._uuid,
            _HandleOnTheWay(self),
        )

    def __copy__(self) -> Never:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it stands for one pool")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it stands for one pool")

    # -- buffers ---------------------------------------------------------------------------------------------------

    cdef object export_buffer(self, Record buffer):
        cdef cydriver.CUmemPoolPtrExportData data
        if not self._shareable:
            raise RuntimeError(f"{type(self).__name__} is not IPC-enabled: its pool was not made to be shared")
        if not buffer.size:
            return _ipc.IPCBufferDescriptor._init(bytes(sizeof(data)), 0)
        if self._mapped or buffer.owner is not self._reference and self._reference is not None:
            raise RuntimeError(f"the memory is not of the pool that this resource shares ({buffer.describe()})")
        if self._handle is None:
            self.allocation_handle  # a driver names no pointer of a pool that was never exported (seen on an H200)
        export_pointer(buffer.pointer, &data)
        return describe_buffer(&data, buffer.size)

    cdef Record import_buffer(self, object descriptor, StreamHandle* order):
        cdef IPCBufferDescriptor name
        cdef Buffer buffer = None
        cdef ImportReference share
        cdef Keeper nothing
        cdef PoolReference reference
        cdef cydriver.CUmemoryPool pool
        try:
            if not isinstance(descriptor, IPCBufferDescriptor):
                raise TypeError(
                    f"ipc_descriptor must be an IPCBufferDescriptor for a {type(self).__name__}, "
                    f"got {type(descriptor).__name__}: {shown(descriptor)}"
                )
            name = descriptor
            self._ensure_shareable()
            reference = self.held_pool(&pool)
            if pool == NULL:
                self.ensure_open()  # another thread has closed the resource
            if not self._mapped:
                return (<_SharedPool>self._opened_here()).import_buffer(descriptor, _take(&order))
            if order == NULL:
                order = default_order(self._ordinal)
            buffer = new_buffer(0, name.size, self, self._ordinal, _take(&order))
        finally:
            drop_stream(order)
        buffer.known_as = _ImportedName(self, name)
        if not name.size:
            nothing = Keeper.__new__(Keeper)
            nothing.imported = buffer.known_as
            buffer.owner = nothing
            buffer.begin(STATE_OWNED, None, 0)
            return buffer
        share = import_pointer(reference, name.payload)
        share.imported = buffer.known_as
        buffer.pointer = share.pointer.address
        try:
            self._ensure_as_described(share, name.size)
        except BaseException:
            _undo(buffer, share)
            raise
        buffer.owner = share
        if buffer.deleter == return_to_pool:
            buffer.deleter = return_import
        buffer.begin(STATE_OWNED, None, 0)
        return buffer

    cdef int _ensure_as_described(self, ImportReference share, size_t size) except -1:
        """Raise ValueError unless what was imported is memory of this resource, and large enough."""
        cdef uintptr_t address = share.pointer.address
        if self._index.load() and self.owned_holding(address) is not None:
            abandon(share)  # else the owner would lose it
            raise OwnershipError(f"{<size_t>address:#x} has an owner already, which was not imported by its descriptor")
        at_host, ordinal, extent = imported_range(address)
        if at_host != (self._ordinal < 0) or (self._ordinal >= 0 and ordinal != self._ordinal):
            where = "the host" if at_host else f"device {ordinal}"
            raise ValueError(f"the descriptor names memory of {where}, which is not that of this {type(self).__name__}")
        if size > extent:
            raise ValueError(f"the descriptor says a size of {size} bytes, and {extent} bytes are there")
        return 0

    def _opened_here(self):
        """Return this process's own pool as one that was imported: what comes home is an import like any other."""
        with cython.critical_section(self):
            known = self._home
        home = None if known is None else known()
        if home is None or home.is_closed:
            home = open_pool(type(self), int(self.allocation_handle), self._ordinal)
            (<_SharedPool>home)._uuid = self._uuid
            known = weakref.ref(home)
            with cython.critical_section(self):
                self._home = known
        return home

    # -- addresses that come from outside --------------------------------------------------------------------------

    cdef int own(self, Record buffer) except -1:
        if self._mapped and has_shares(buffer.pointer):
            raise OwnershipError(f"{<size_t>buffer.pointer:#x} was imported by its descriptor, and has owners")
        return _MemPool.own(self, buffer)

    cdef int free_record(self, Record record, StreamHandle* order, int waiting) except -1:
        if isinstance(record.owner, ImportReference):
            return return_import(record, order, waiting)
        return _MemPool.free_record(self, record, order, waiting)

    cdef int free_unknown(self, uintptr_t address, size_t size, StreamHandle* order) except -1:
        if self._mapped and has_shares(address):
            raise OwnershipError(
                f"imported buffers own the mapping at {<size_t>address:#x}; close them, or adopt what was detached"
            )
        return _MemPool.free_unknown(self, address, size, order)

    cdef int ensure_adoptable(self, Record source) except -1:
        if isinstance(source.held_owner(), ImportReference):
            return 0  # it has shares, and no index knows it
        return _MemPool.ensure_adoptable(self, source)

    cdef object prepare_entry(self, Record source, Record target):
        if isinstance(source.held_owner(), ImportReference):
            return None
        return _MemPool.prepare_entry(self, source, target)

    cdef void enter_owner(self, Record source, Record target, MemoryResource before, object prepared) noexcept:
        if not isinstance(target.owner, ImportReference):
            _MemPool.enter_owner(self, source, target, before, prepared)
        elif target.deleter == return_to_pool:
            target.deleter = return_import


cdef StreamHandle* _take(StreamHandle** order) noexcept:
    """Return a reference that somebody else lets go."""
    cdef StreamHandle* taken = order[0]
    order[0] = NULL
    return taken


cdef int _undo(Record buffer, ImportReference share) except -1:
    """Give a share up that nobody has used. What even that is refused for stays in the table for the next import."""
    try:
        return give_up(buffer, share, buffer.stream)
    except CUDAError:
        pass
    try:
        return give_up(buffer, share, NULL)
    except CUDAError:
        abandon(share)
    return 0


cdef StreamHandle* default_order(int ordinal) except NULL:
    """Return the default stream of a device's primary context. The current context stays what it is.

    For memory of the host it is that of the current context, or of device 0 where there is none.
    """
    cdef cydriver.CUcontext popped = NULL
    cdef cydriver.CUcontext context = current_context() if ordinal < 0 else NULL
    cdef cydriver.CUresult result
    if context == NULL:
        context = primary_context(max(ordinal, 0))
    with nogil:
        result = cydriver.cuCtxPushCurrent(context)
    check(result, b"cuCtxPushCurrent")
    try:
        return bind_default_stream()
    finally:
        with nogil:
            cydriver.cuCtxPopCurrent(&popped)
