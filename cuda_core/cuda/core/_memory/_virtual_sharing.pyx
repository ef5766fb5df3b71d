# SPDX-License-Identifier: Apache-2.0
"""Virtual memory between processes: every chunk of a buffer is exported, and mapped one behind the other there.

The importer has a range of its own, with its own addresses and rights. The driver counts who has a chunk, so either
side may end first, and each import of a buffer is a range like any other.
"""

from weakref import WeakValueDictionary

from cuda.bindings cimport cydriver
from libc.stdint cimport intptr_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from cuda.core._driver cimport check, ensure_driver, error_for
from cuda.core._memory._allocation cimport Keeper, Record
from cuda.core._memory._buffer cimport Buffer, new_buffer
from cuda.core._shared_containers cimport take_all
from cuda.core._memory._ipc cimport IPCAllocationHandle, own_descriptor
from cuda.core._memory._ownership cimport STATE_OWNED, fresh
from cuda.core._memory._release cimport report
from cuda.core._memory._shared_pool cimport default_order
from cuda.core._memory._virtual_descriptor cimport (
    VirtualBufferDescriptor,
    describe_chunks,
    enable_sending_descriptors,
)
from cuda.core._memory._virtual_memory_base cimport VirtualMemoryBase
from cuda.core._memory._virtual_parts cimport (
    AbsentChunk,
    AllocationHandle,
    ChunkRequest,
    CUresult,
    Failure,
    Mapping,
    give_access,
    keep_reference,
    map_held_chunk,
    release_reference,
    reserve,
)
from cuda.core._memory._virtual_range cimport VirtualRange
from cuda.core._memory._virtual_succession cimport claim, unclaim
from cuda.core._stream_handle cimport StreamHandle, drop_stream

from cuda.core._error_text import shown

# Set by the module of VirtualMemoryResource, which stands above.
resource_type = None

cdef CUresult OK = cydriver.CUresult.CUDA_SUCCESS
cdef cydriver.CUmemAllocationHandleType FILE = (
    cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
)
cdef cydriver.CUmemAllocationHandleType FABRIC = cydriver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC

# The resources of buffers that were unpickled, by where the memory is.
cdef object _resources = WeakValueDictionary()
cdef list _leftovers = []   # ranges of imports that failed and could not be undone, references of exports


class _Imported:
    """In a buffer that was imported: the driver exports an import no further, so that there is no name to tell."""

    __slots__ = ()

    @property
    def descriptor(self):
        raise RuntimeError(
            "the buffer was imported from another process, which alone can share it: the driver exports no import"
        )

    def resource_or_name(self):
        return self.descriptor


# --- export -------------------------------------------------------------------------------------------------------


cdef int _keep_chunk(AllocationHandle chunk, CUresult refusal) except -1:
    """Keep a reference to a chunk that could not be given up. The export has what it needs all the same."""
    cdef VirtualRange range_ = VirtualRange.__new__(VirtualRange)
    keep_reference(&range_.parts, chunk)
    range_._count()
    _leftovers.append(range_)
    report(
        "the memory of a buffer that was exported stays allocated when it is closed: "
        f"{error_for(refusal, b'cuMemRelease')}. The next export or import of virtual memory tries again"
    )
    return 0


cdef object _export_one(cydriver.CUdeviceptr address):
    """Return a handle of the chunk that is mapped at an address, of the kind that it was made for."""
    cdef cydriver.CUmemAllocationProp properties
    cdef cydriver.CUmemFabricHandle fabric
    cdef AllocationHandle chunk = 0
    cdef const char* function = b"cuMemRetainAllocationHandle"
    cdef CUresult result
    cdef CUresult released = OK
    cdef int kinds = 0, number = -1
    with nogil:
        result = cydriver.cuMemRetainAllocationHandle(&chunk, <void*>address)
        if result == OK:
            function = b"cuMemGetAllocationPropertiesFromHandle"
            result = cydriver.cuMemGetAllocationPropertiesFromHandle(&properties, chunk)
            if result == OK:
                kinds = <int>properties.requestedHandleTypes
                if kinds & FILE:
                    function = b"cuMemExportToShareableHandle"
                    result = cydriver.cuMemExportToShareableHandle(&number, chunk, FILE, 0)
                elif kinds & FABRIC:
                    function = b"cuMemExportToShareableHandle"
                    result = cydriver.cuMemExportToShareableHandle(&fabric, chunk, FABRIC, 0)
            released = cydriver.cuMemRelease(chunk)
    if released != OK:
        _keep_chunk(chunk, released)
    check(result, function)
    if kinds & FILE:
        return own_descriptor(number, None)
    if kinds & FABRIC:
        return (<char*>&fabric)[:sizeof(fabric)]
    raise RuntimeError(
        f"the chunk at {<size_t>address:#x} was made with handle_type=None, so that it cannot be shared"
    )


cdef object export_chunks(VirtualMemoryBase resource, Record record):
    """Return a descriptor of every chunk of a buffer, which is lent for the length of the call.

    The loan keeps the chunks where they are; a grow in the meantime may add some, which are not in it.
    """
    cdef Buffer buffer = record
    cdef vector[Mapping] mappings
    cdef Mapping mapping
    cdef list sizes = [], handles = []
    claim(buffer, "exported")
    mappings = buffer.range.parts.mappings
    size = buffer.size
    unclaim(buffer)
    _retry_leftovers()
    enable_sending_descriptors()  # of memory that was made elsewhere, by a resource that shares nothing itself
    try:
        for mapping in mappings:
            handles.append(_export_one(mapping.address))
            sizes.append(mapping.size)
        if len({type(handle) for handle in handles}) > 1:
            raise RuntimeError("the buffer has chunks with handles of different types, and cannot be shared as a whole")
    except BaseException:
        for handle in handles:
            if isinstance(handle, IPCAllocationHandle):
                handle.close()
        raise
    return describe_chunks(size, tuple(sizes), tuple(handles))


cdef object reduce_to_chunks(object descriptor):
    return _receive_buffer, (descriptor,)


def _receive_buffer(descriptor):
    """Import a buffer that was received. Its rights are this process's: read and write for the device of the memory."""
    if not isinstance(descriptor, VirtualBufferDescriptor):
        raise ValueError(f"what was received is no buffer: {shown(descriptor)}")
    with descriptor:  # the import needs its file descriptors no longer
        return import_chunks(None, descriptor, NULL)


# --- import -------------------------------------------------------------------------------------------------------


cdef int _import_one(VirtualRange range_, object handle, AbsentChunk* chunk) except -1:
    """Take a reference to a chunk of another process.

    Raises
    ------
    ValueError
        If the handle is none of a chunk.
    CUDAError
        If the driver refuses for another reason.
    """
    cdef cydriver.CUmemFabricHandle fabric
    cdef IPCAllocationHandle descriptor = None
    cdef void* name
    cdef cydriver.CUmemAllocationHandleType kind
    cdef CUresult result
    if isinstance(handle, IPCAllocationHandle):
        descriptor = handle
        name, kind = <void*><intptr_t>descriptor.hold(), FILE
    else:
        memcpy(&fabric, <const char*><bytes>handle, sizeof(fabric))
        name, kind = &fabric, FABRIC
    try:
        with nogil:
            result = cydriver.cuMemImportFromShareableHandle(&chunk.held, name, kind)
    finally:
        if descriptor is not None:
            descriptor.let_go()
    if result in (
        cydriver.CUresult.CUDA_ERROR_UNKNOWN,  # what a driver says to a file of another kind
        cydriver.CUresult.CUDA_ERROR_INVALID_VALUE,
        cydriver.CUresult.CUDA_ERROR_INVALID_HANDLE,
    ) or (kind == FILE and result == cydriver.CUresult.CUDA_ERROR_NOT_SUPPORTED):
        raise ValueError("the descriptor holds a handle that is none of virtual memory") from error_for(
            result, b"cuMemImportFromShareableHandle"
        )
    check(result, b"cuMemImportFromShareableHandle")
    keep_reference(&range_.parts, chunk.held)
    range_._count()
    with nogil:
        result = cydriver.cuMemGetAllocationPropertiesFromHandle(&chunk.properties, chunk.held)
    return check(result, b"cuMemGetAllocationPropertiesFromHandle")


cdef object _where(cydriver.CUmemLocation* location):
    """Return where chunks are as (is on a device, ordinal); of the host any node is as good as another."""
    if location.type == cydriver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE:
        return True, location.id
    return False, 0


cdef str _named(tuple place):
    return f"device {place[1]}" if place[0] else "the host"


cdef VirtualMemoryBase _resource_for(tuple place):
    """Return this process's resource for memory that was unpickled."""
    resource = _resources.get(place)
    if resource is None:
        resource = resource_type(place[1], None if place[0] else {"location_type": "host_numa"})
        resource = _resources.setdefault(place, resource)
    return resource


cdef int _ensure_sizes(VirtualMemoryBase resource, tuple sizes, tuple place) except -1:
    """Refuse sizes that no chunk has, before addresses are reserved for them."""
    cdef size_t total = 0
    cdef CUresult result
    cdef ChunkRequest request
    granularity = resource.held_request(&request)
    for size in sizes:
        if size % granularity:
            raise ValueError(
                f"the descriptor says a chunk of {size} bytes; chunks are multiples of {granularity} bytes"
            )
    if place[0]:
        with nogil:
            result = cydriver.cuDeviceTotalMem(&total, resource._ordinal)
        check(result, b"cuDeviceTotalMem")
        if sum(sizes) > total:
            raise ValueError(
                f"the descriptor says {sum(sizes)} bytes, and device {place[1]} has {total} bytes of memory"
            )
    return 0


cdef int _map_all(
    VirtualRange range_, VirtualMemoryBase resource, vector[AbsentChunk]* chunks, size_t total
) except -1:
    """Map the chunks one behind the other, with the rights of the importing resource."""
    cdef Failure failure
    cdef size_t i, at = 0
    cdef bint done
    cdef ChunkRequest request
    cdef size_t granularity = resource.held_request(&request)
    failure.function = NULL
    with nogil:
        done = reserve(&range_.parts, total, granularity, 0, &failure)
        if done:
            range_.base = range_.parts.reservations[0].base
            range_.capacity.store(total)
            for i in range(chunks.size()):
                chunks[0][i].address = range_.base + at
                chunks[0][i].rights = request.rights
                at += chunks[0][i].size
                done = map_held_chunk(&range_.parts, &chunks[0][i], &failure)
                if not done:
                    break
            else:
                range_.mapped.store(total)
                done = give_access(&range_.parts, &failure)
    if done:
        return 0
    error = error_for(failure.result, failure.function)
    if failure.function == b"cuMemMap" and failure.result in (
        cydriver.CUresult.CUDA_ERROR_INVALID_VALUE, cydriver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    ):
        raise ValueError("the descriptor says another size than a chunk has") from error
    raise error


cdef int _undo(VirtualRange range_) except -1:
    """Return everything of an import that has failed. What is refused is tried again by the next import."""
    cdef Failure failure
    cdef bint done
    failure.function = NULL
    with nogil:
        done = range_.return_all(&failure)
    if not done:
        _leftovers.append(range_)
        report(
            f"an import of virtual memory has failed and could not be undone ({failure.function.decode()} was "
            "refused); the next import tries again"
        )
    return 0


cdef int _retry_leftovers() except -1:
    cdef VirtualRange range_
    cdef Failure ignored
    cdef bint done
    for range_ in take_all(_leftovers):
        ignored.function = NULL
        with nogil:
            done = range_.return_all(&ignored)
        if not done:
            _leftovers.append(range_)
    return 0


cdef Record import_chunks(VirtualMemoryBase resource, object given, StreamHandle* order):
    """Make a buffer of another process's chunks. The reference to ``order`` is taken over.

    ``resource`` decides about the rights. None: a resource of this process for wherever the memory is. Without an order
    it is the default stream of the device's primary context.
    """
    cdef VirtualBufferDescriptor descriptor
    cdef VirtualRange range_
    cdef vector[AbsentChunk] chunks
    cdef AbsentChunk chunk
    cdef ChunkRequest request
    cdef Failure ignored
    cdef Buffer buffer
    cdef Keeper keeper
    cdef tuple place = None
    cdef size_t i
    try:
        if not isinstance(given, VirtualBufferDescriptor):
            raise TypeError(
                f"ipc_descriptor must be a VirtualBufferDescriptor for a {type(resource).__name__}, "
                f"got {type(given).__name__}: {shown(given)}"
            )
        descriptor = given
        if descriptor.is_closed:
            raise RuntimeError("the VirtualBufferDescriptor has been closed")
        ensure_driver()
        if resource is not None:
            resource._options()
            resource._refresh()
        _retry_leftovers()
        range_ = VirtualRange.__new__(VirtualRange)
        range_.word.store(fresh(STATE_OWNED, 0))
        range_.imported = True
        try:
            for handle, size in zip(descriptor.handles, descriptor.sizes):
                chunk.size = size
                _import_one(range_, handle, &chunk)
                chunks.push_back(chunk)
                if place is None:
                    place = _where(&chunk.properties.location)
                elif _where(&chunk.properties.location) != place:
                    raise ValueError("the descriptor names chunks at different places")
            if place is None:
                place = True, 0
            if resource is None:
                resource = _resource_for(place)
            else:
                resource.held_request(&request)
                if chunks.size() and place != _where(&request.properties.location):
                    raise ValueError(
                        f"the descriptor names memory of {_named(place)}, which is not where {resource!r} allocates"
                    )
            if order == NULL:
                order = default_order(place[1])
            # What may fail comes before the mapping: from then on the buffer has everything.
            buffer = new_buffer(0, 0, resource, resource._ordinal, order)
            order = NULL
            keeper = Keeper.__new__(Keeper)
            keeper.imported = _Imported()
            if chunks.size():
                _ensure_sizes(resource, descriptor.sizes, place)
                _map_all(range_, resource, &chunks, sum(descriptor.sizes))
        except BaseException:
            _undo(range_)
            raise
    finally:
        drop_stream(order)
    with nogil:
        ignored.function = NULL
        for i in range(chunks.size()):
            release_reference(&range_.parts, chunks[i].held, &ignored)  # refused, it is returned with the rest
    range_._count()
    buffer.known_as = keeper.imported
    buffer.owner = keeper
    buffer.pointer = range_.base
    buffer.size = descriptor.size
    buffer.begin(STATE_OWNED, range_, 0)
    resource.remember(buffer)
    return buffer
