# SPDX-License-Identifier: Apache-2.0
"""Makes the calls of a random sequence on the driver of this process, and answers what can be compared.

An answer is a list: the name of the result, and values that do not differ between machines. `skipped` means
that the call was not made: what it needs was never made, or the call would depend on chance (an address that
is in use again) or could break the process (a handle that was destroyed, pageable memory that is not there).
"""

import ctypes
import os

from cuda.bindings import driver as d

from random_things import GRANULE, RELAXED, Chunk, Skip, Things, access, location, name, properties_at

SKIPPED = ["skipped"]
FAULTS = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "CONTEXT_IS_DESTROYED", "UNKNOWN", "DEINITIALIZED")
ATTRIBUTES = (
    "MEMORY_TYPE",
    "DEVICE_ORDINAL",
    "IS_MANAGED",
    "MAPPED",
    "RANGE_SIZE",
    "IS_LEGACY_CUDA_IPC_CAPABLE",
    "ALLOWED_HANDLE_TYPES",
    "MEMPOOL_HANDLE",
    "SYNC_MEMOPS",
    "ACCESS_FLAGS",
)
FD = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LIBRARY = ctypes.CDLL("libcuda.so.1")
HOST_FUNCTION = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)  # any function of the C library


class Machine(Things):
    """Makes the calls; each method is a kind of call."""

    def answer(self, call):
        number, kind, *arguments = call
        try:
            result = getattr(self, kind)(number, *arguments)
        except Skip:
            return SKIPPED
        return [name(r) if isinstance(r, d.CUresult) else r for r in result]

    # --- virtual memory ---

    def reserve(self, number, size, align, hint, flags):
        wanted = 0
        if hint is not None:
            wanted = self.thing(hint[0], dead=True).value + hint[1]
            if wanted % GRANULE or align > GRANULE:  # whether the address is aligned is chance
                raise Skip
        result = d.cuMemAddressReserve(size, align, wanted, flags)
        if result[0] != 0:
            return [result[0]]
        base = int(result[1])
        self.make(number, result, "range", size)
        self.things[number].placed = placed = bool(wanted) and base == wanted
        return [result[0], base % max(align, GRANULE) == 0, placed]

    def free_range(self, number, pointer, size):
        address = self.address(pointer)
        self.stay(pointer, 0)
        self.settle()
        result = d.cuMemAddressFree(address, size)
        self.pointer_ends(pointer, result)
        return [result[0]]

    def create(self, number, size, place, handle, flags):
        result = d.cuMemCreate(size, properties_at(place, handle), flags)
        self.make(number, result, "chunk", value=result[1])
        if result[0] == 0:
            self.things[number].chunk, self.things[number].size = Chunk(), 0
        return [result[0]]

    def reference(self, number):
        """A handle that is good: a made-up one may break the process."""
        found = self.thing(number, "chunk", dead=True)
        if found.chunk.references == 0:
            raise Skip
        return found

    def release(self, number, chunk):
        found = self.reference(chunk)
        result = d.cuMemRelease(found.value)
        if result[0] == 0:
            found.chunk.references -= 1
        return [result[0]]

    def share(self, number, chunk):
        result = d.cuMemExportToShareableHandle(self.reference(chunk).value, FD, 0)
        if result[0] != 0:
            return [result[0]]
        imported = d.cuMemImportFromShareableHandle(int(result[1]), FD)
        os.close(int(result[1]))
        self.make(number, imported, "chunk", value=imported[1])
        if imported[0] == 0:
            self.things[number].chunk = Chunk()
        same = imported[0] == 0 and int(imported[1]) == int(self.things[chunk].value)
        if same:  # another reference to the same handle
            self.things[number].chunk = self.things[chunk].chunk
            self.things[number].chunk.references += 1
        return [result[0], imported[0], same]

    def properties(self, number, chunk):
        result = d.cuMemGetAllocationPropertiesFromHandle(self.reference(chunk).value)
        if result[0] != 0:
            return [result[0]]
        p = result[1]
        return [result[0], p.type.name, p.location.type.name, p.location.id, p.requestedHandleTypes.name]

    def granularity(self, number, place):
        option = d.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        result = d.cuMemGetAllocationGranularity(properties_at(place), option)
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def map(self, number, pointer, size, offset, chunk, flags):
        address, found = self.address(pointer), self.reference(chunk)
        self.stay(pointer, size)
        result = d.cuMemMap(address, size, offset, found.value, flags)
        if result[0] == 0:
            self.mappings[address] = (size, found.chunk)
            found.chunk.mappings += 1
        return [result[0]]

    def unmap(self, number, pointer, size):
        address = self.address(pointer)
        self.stay(pointer, size)
        self.settle()
        result = d.cuMemUnmap(address, size)
        if result[0] == 0:
            for base in [b for b in self.mappings if address <= b < address + size]:
                self.mappings.pop(base)[1].mappings -= 1
        self.known.clear()
        return [result[0]]

    def set_access(self, number, pointer, size, places, flags):
        self.stay(pointer, size)
        descriptors = [access(place, flag) for place, flag in zip(places, flags, strict=True)]
        return [d.cuMemSetAccess(self.address(pointer), size, descriptors, len(descriptors))[0]]

    def get_access(self, number, pointer, place):
        result = d.cuMemGetAccess(location(place), self.address(pointer))
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def retain(self, number, pointer):
        address = self.address(pointer)
        result = d.cuMemRetainAllocationHandle(address)
        base = self.mapping_of(address)
        if result[0] == 0 and base is not None:
            self.make(number, result, "chunk", value=result[1])
            self.things[number].chunk = self.mappings[base][1]
            self.things[number].chunk.references += 1
        return [result[0]]

    # --- plain, host and managed memory ---

    def alloc(self, number, size):
        return self.make(number, d.cuMemAlloc(size), "plain", size)

    def alloc_host(self, number, size, flags):
        result = d.cuMemAllocHost(size) if flags is None else d.cuMemHostAlloc(size, flags)
        return self.make(number, result, "host", size) if size else [result[0]]

    def alloc_managed(self, number, size, flags):
        return self.make(number, d.cuMemAllocManaged(size, flags), "managed", size)

    def free(self, number, pointer):
        address = self.address(pointer)
        self.settle()
        result = d.cuMemFree(address)
        self.pointer_ends(pointer, result)
        return [result[0]]

    def free_host(self, number, pointer):
        address = self.address(pointer)
        self.settle()
        result = d.cuMemFreeHost(address)
        self.pointer_ends(pointer, result)
        return [result[0]]

    def free_async(self, number, pointer, stream):
        address, handle = self.address(pointer), self.stream_handle(stream)
        self.settle()
        result = d.cuMemFreeAsync(address, handle)
        found = self.things.get(pointer[0])
        if result[0] == 0 and found is not None and found.kind == "plain":
            found.freed_in_order = True  # a second free would break the process
        self.pointer_ends(pointer, result)
        self.settle(handle)
        return [result[0]]

    def host_flags(self, number, pointer):
        result = d.cuMemHostGetFlags(self.address(pointer))
        # Small allocations share a block, and with it whether it is portable.
        return [result[0], int(result[1]) & ~1 if result[0] == 0 else 0]

    def device_pointer(self, number, pointer):
        address = self.address(pointer)
        result = d.cuMemHostGetDevicePointer(address, 0)
        return [result[0], result[0] == 0 and int(result[1]) == address]

    def register(self, number, offset, size, flags):
        result = d.cuMemHostRegister(self.buffer + offset, size, flags)
        if result[0] == 0:
            self.registered.add(offset)
        return [result[0]]

    def unregister(self, number, offset):
        self.settle()
        result = d.cuMemHostUnregister(self.buffer + offset)
        if result[0] == 0:
            self.registered.discard(offset)
        return [result[0]]

    def prefetch(self, number, pointer, bytes_, place, flags, stream):
        handle = self.stream_handle(stream)
        result = d.cuMemPrefetchAsync(self.address(pointer), bytes_, location(place), flags, handle)
        self.settle(handle)
        return [result[0]]

    def advise(self, number, pointer, bytes_, advice, place):
        return [d.cuMemAdvise(self.address(pointer), bytes_, d.CUmem_advise(advice), location(place))[0]]

    def range_attribute(self, number, pointer, bytes_, attribute):
        what = getattr(d.CUmem_range_attribute, f"CU_MEM_RANGE_ATTRIBUTE_{attribute}")
        result = d.cuMemRangeGetAttribute(4, what, self.address(pointer), bytes_)
        return [result[0], str(result[1]) if result[0] == 0 else ""]

    # --- pools ---

    def pool(self, number, kind, handle, most):
        allocation, _, place = kind.partition(":")
        p = d.CUmemPoolProps()
        p.allocType = getattr(d.CUmemAllocationType, f"CU_MEM_ALLOCATION_TYPE_{allocation}")
        p.location = location(place)
        p.handleTypes = getattr(d.CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{handle}")
        p.maxSize = most
        return self.make(number, d.cuMemPoolCreate(p), "pool")

    def pool_handle(self, number):
        return d.CUmemoryPool(self.thing(number, "pool").value)

    def pool_alloc(self, number, size, pool, stream):
        handle = self.stream_handle(stream)
        result = d.cuMemAllocFromPoolAsync(size, self.pool_handle(pool), handle)
        self.settle(handle)
        return self.make(number, result, "pooled", size) if size else [result[0]]

    def alloc_async(self, number, size, stream):
        handle = self.stream_handle(stream)
        result = d.cuMemAllocAsync(size, handle)
        self.settle(handle)
        return self.make(number, result, "pooled", size) if size else [result[0]]

    def attribute_of(self, pool, attribute):
        what = getattr(d.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{attribute}")
        result = d.cuMemPoolGetAttribute(self.pool_handle(pool), what)
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def pool_attribute(self, number, pool, attribute):
        return self.attribute_of(pool, attribute)

    def pool_reserved(self, number, pool):
        self.pool_handle(pool)
        return [d.cuCtxSynchronize()[0], *self.attribute_of(pool, "RESERVED_MEM_CURRENT")]

    def set_pool_attribute(self, number, pool, attribute, value):
        what = getattr(d.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{attribute}")
        return [d.cuMemPoolSetAttribute(self.pool_handle(pool), what, d.cuuint64_t(value))[0]]

    def trim(self, number, pool, keep):
        self.settle()
        return [d.cuMemPoolTrimTo(self.pool_handle(pool), keep)[0]]

    def pool_access(self, number, pool, place, flag):
        return [d.cuMemPoolSetAccess(self.pool_handle(pool), [access(place, flag)], 1)[0]]

    def get_pool_access(self, number, pool, place):
        result = d.cuMemPoolGetAccess(self.pool_handle(pool), location(place))
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def destroy_pool(self, number, pool):
        handle = self.pool_handle(pool)
        self.settle()
        result = d.cuMemPoolDestroy(handle)
        self.things[pool].dead = result[0] == 0
        return [result[0]]

    # --- streams and events ---

    def stream(self, number, flags):
        result = d.cuStreamCreate(flags)
        return self.make(number, result, "stream", value=result[1])

    def destroy_stream(self, number, stream):
        handle = self.thing(stream, "stream").value
        result = d.cuStreamDestroy(handle)
        self.things[stream].dead = result[0] == 0
        return [result[0]]

    def event(self, number, flags):
        result = d.cuEventCreate(flags)
        return self.make(number, result, "event", value=result[1])

    def destroy_event(self, number, event):
        result = d.cuEventDestroy(self.thing(event, "event").value)
        self.things[event].dead = result[0] == 0
        return [result[0]]

    def record(self, number, event, stream):
        handle = self.stream_handle(stream)
        result = d.cuEventRecord(self.thing(event, "event").value, handle)
        self.settle(handle)
        return [result[0]]

    def wait(self, number, event, stream, flags):
        return [d.cuStreamWaitEvent(self.stream_handle(stream), self.thing(event, "event").value, flags)[0]]

    def query_event(self, number, event):
        return [d.cuEventQuery(self.thing(event, "event").value)[0]]

    def sync_event(self, number, event):
        return [d.cuEventSynchronize(self.thing(event, "event").value)[0]]

    def elapsed(self, number, first, second):
        return [d.cuEventElapsedTime(self.thing(first, "event").value, self.thing(second, "event").value)[0]]

    def query_stream(self, number, stream):
        return [d.cuStreamQuery(self.stream_handle(stream))[0]]

    def sync_stream(self, number, stream):
        return [d.cuStreamSynchronize(self.stream_handle(stream))[0]]

    def sync_context(self, number):
        return [d.cuCtxSynchronize()[0]]

    def stream_facts(self, number, stream):
        handle, result = self.stream_handle(stream), []
        for call in (d.cuStreamGetFlags, d.cuStreamGetPriority):
            got = call(handle)
            result += [got[0], int(got[1]) if got[0] == 0 else 0]
        return result

    def host_function(self, number, stream):
        handle = self.stream_handle(stream)
        # Not through the bindings: what they allocate for a captured call is gone after its first launch.
        result = LIBRARY.cuLaunchHostFunc(ctypes.c_void_p(int(handle)), HOST_FUNCTION, None)
        self.settle(handle)
        return [d.CUresult(result)]

    # --- captures ---

    def begin(self, number, stream, mode):
        how = getattr(d.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
        return [d.cuStreamBeginCapture(self.stream_handle(stream), how)[0]]

    def end(self, number, stream):
        result = d.cuStreamEndCapture(self.stream_handle(stream))
        if result[0] == 0:
            self.make(number, result, "graph", value=result[1])
        return [result[0]]

    def status(self, number, stream):
        result = d.cuStreamIsCapturing(self.stream_handle(stream))
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def exchange(self, number, mode):
        how = getattr(d.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
        result = d.cuThreadExchangeStreamCaptureMode(how)
        return [result[0], int(result[1]) if result[0] == 0 else 0]

    def instantiate(self, number, graph, flags):
        result = d.cuGraphInstantiate(self.thing(graph, "graph").value, flags)
        return self.make(number, result, "executable", value=result[1])

    def launch(self, number, executable, stream):
        handle = self.stream_handle(stream)
        result = d.cuGraphLaunch(self.thing(executable, "executable").value, handle)
        self.known.clear()
        self.settle(handle)
        return [result[0]]

    def graph_nodes(self, number, graph):
        result = d.cuGraphGetNodes(self.thing(graph, "graph").value, 64)
        types = (
            [d.cuGraphNodeGetType(node)[1].name[19:] for node in result[1][: result[2]]]
            if result[0] == 0
            else []
        )
        return [result[0], sorted(types)]

    def destroy_graph(self, number, graph):
        result = d.cuGraphDestroy(self.thing(graph, "graph").value)
        self.things[graph].dead = result[0] == 0
        return [result[0]]

    def destroy_executable(self, number, executable):
        self.settle(0)
        result = d.cuGraphExecDestroy(self.thing(executable, "executable").value)
        self.things[executable].dead = result[0] == 0
        return [result[0]]

    # --- use of memory ---

    def forget(self, address, bytes_):
        if any(
            base < address + bytes_ and address < base + size for base, (size, _) in self.mappings.items()
        ):
            self.known.clear()  # aliases change with it
        self.known = {a: b for a, b in self.known.items() if not address - 16 < a < address + bytes_}

    def filled(self, width, address, value, bytes_, result):
        self.forget(address, bytes_)
        if result == 0 and bytes_ >= 16:
            self.known[address] = value

    def fill(self, number, width, pointer, value, bytes_):
        address = self.address(pointer)
        self.stay(pointer, bytes_)
        call = {8: d.cuMemsetD8, 16: d.cuMemsetD16, 32: d.cuMemsetD32}[width]
        pattern = int.from_bytes(bytes([value]) * (width // 8), "little")
        self.settle()
        result = call(address, pattern, bytes_ * 8 // width)
        self.settle(0)
        self.filled(width, address, value, bytes_, result[0])
        return [result[0]]

    def fill_async(self, number, width, pointer, value, bytes_, stream):
        address, handle = self.address(pointer), self.stream_handle(stream)
        self.stay(pointer, bytes_)
        call = {8: d.cuMemsetD8Async, 16: d.cuMemsetD16Async, 32: d.cuMemsetD32Async}[width]
        pattern = int.from_bytes(bytes([value]) * (width // 8), "little")
        result = call(address, pattern, bytes_ * 8 // width, handle)
        self.settle(handle)
        mode = d.cuThreadExchangeStreamCaptureMode(RELAXED)[1]
        captured = handle not in (0, 1) and int(d.cuStreamIsCapturing(handle)[1] or 0)
        d.cuThreadExchangeStreamCaptureMode(mode)
        if not captured:
            self.filled(width, address, value, bytes_, result[0])
        return [result[0]]

    def ends(self, form, to, source, bytes_):
        """The two addresses of a copy."""
        self.stay(to, bytes_)
        self.stay(source, bytes_)
        return (
            self.address(to, form in ("DtoH", "any"), bytes_),
            self.address(source, form in ("HtoD", "any"), bytes_),
        )

    def copy(self, number, form, to, source, bytes_):
        a, b = self.ends(form, to, source, bytes_)
        call = {"DtoD": d.cuMemcpyDtoD, "HtoD": d.cuMemcpyHtoD, "DtoH": d.cuMemcpyDtoH, "any": d.cuMemcpy}[
            form
        ]
        self.settle()
        result = call(a, b, bytes_)
        self.settle(0)
        self.forget(a, bytes_)
        return [result[0]]

    def copy_async(self, number, form, to, source, bytes_, stream):
        a, b = self.ends(form, to, source, bytes_)
        handle = self.stream_handle(stream)
        call = {
            "DtoD": d.cuMemcpyDtoDAsync,
            "HtoD": d.cuMemcpyHtoDAsync,
            "DtoH": d.cuMemcpyDtoHAsync,
            "any": d.cuMemcpyAsync,
        }[form]
        result = call(a, b, bytes_, handle)
        self.settle(handle)
        self.forget(a, bytes_)
        return [result[0]]

    def read(self, number, pointer):
        address, out = self.address(pointer), bytearray(16)
        self.stay(pointer, 16)
        result = d.cuMemcpyDtoH(out, address, 16)
        if result[0] == 0 and address in self.known:
            return [result[0], bytes(out) == bytes([self.known[address]]) * 16]
        return [result[0]]

    def attributes(self, number, pointer):
        address, values = self.address(pointer), []
        for attribute in ATTRIBUTES:
            what = getattr(d.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{attribute}")
            error, value = d.cuPointerGetAttribute(what, address)
            if error != 0:
                values.append(name(error))
            elif attribute == "MEMPOOL_HANDLE":
                values.append(bool(value is not None and int(value)))
            else:
                values.append(getattr(value, "name", None) or int(value))
        return values

    def address_range(self, number, pointer):
        address = self.address(pointer)
        result = d.cuMemGetAddressRange(address)
        if result[0] != 0:
            return [result[0]]
        return [result[0], address - int(result[1]) if int(result[1]) else "no base", int(result[2])]
