"""Further memory calls: aliases, processes, pools, rights, advice, pointers, batches, registered memory.

`python probe_memory.py > h200_memory.json` records on a machine with a GPU; `--check FILE` compares, as in
probe.py, and the names of scenarios restrict both. Every scenario runs in a process of its own.
"""
import ctypes
import mmap
import os
import time

from cuda.bindings import driver as d

from probe import GRAN, access, pool_attr, pool_props, prop, ptr_attrs, vmm
from probe_tools import (
    FD, MODE, EVERYTHING, THRESHOLD, LEGACY, PER_THREAD, MIB, libc, scenario, made, place,
    pointers, bytes_at, rights, busy, in_processes, ended, main,
)

# --- virtual memory -------------------------------------------------------------------------------------

@scenario
def aliases_with_different_access(log):
    chunk = made(d.cuMemCreate(GRAN, prop(), 0))
    base = int(made(d.cuMemAddressReserve(4 * GRAN, GRAN, 0, 0)))
    writer, reader, neither, later = (base + i * GRAN for i in range(4))
    for alias in (writer, reader, neither):
        log("map", d.cuMemMap(alias, GRAN, 0, chunk, 0))
    log("write for one", d.cuMemSetAccess(writer, GRAN, [access()], 1))
    log("read for another", d.cuMemSetAccess(reader, GRAN, [access("READ")], 1))
    for label, alias in (("writer", writer), ("reader", reader), ("neither", neither), ("unmapped", later)):
        rights(log, f"access of the {label}", alias)
        log("  set", d.cuMemsetD8(alias, 7, 8))
        log("  read", d.cuMemcpyDtoH(bytearray(8), alias, 8))
        log("  copy to it", d.cuMemcpyDtoD(alias + 64, writer, 8))
        log("  copy from it", d.cuMemcpyDtoD(writer + 64, alias, 8))
    log("set across writer and reader", d.cuMemsetD8(reader - 8, 1, 16))
    log("read across writer and reader", d.cuMemcpyDtoH(bytearray(16), reader - 8, 16))
    log("read across reader and neither", d.cuMemcpyDtoH(bytearray(16), neither - 8, 16))
    log("write for all three", d.cuMemSetAccess(base, 3 * GRAN, [access()], 1))
    log("set through the third", d.cuMemsetD8(neither, 9, 8))
    bytes_at(log, "seen through the first", writer)
    log("take it from the first", d.cuMemSetAccess(writer, GRAN, [access("NONE")], 1))
    rights(log, "access of the first", writer)
    log("set through the first", d.cuMemsetD8(writer, 1, 8))
    bytes_at(log, "seen through the second", reader)
    log("read and write in one call", d.cuMemSetAccess(reader, GRAN, [access("READ"), access()], 2))
    rights(log, "  the last counts", reader)
    log("map the fourth", d.cuMemMap(later, GRAN, 0, chunk, 0))
    rights(log, "a new alias has none", later)
    log("release the chunk", d.cuMemRelease(chunk))
    retained = [made(d.cuMemRetainAllocationHandle(alias)) for alias in (writer, later)]
    log.note("one handle for all aliases", int(retained[0]) == int(retained[1]) == int(chunk))
    for handle in retained:
        log("release", d.cuMemRelease(handle))
    log("unmap the first two", d.cuMemUnmap(base, 2 * GRAN))
    rights(log, "access of the third", neither)
    bytes_at(log, "still there", neither)
    log("unmap the others", d.cuMemUnmap(neither, 2 * GRAN))
    log("free", d.cuMemAddressFree(base, 4 * GRAN))


def importer(log, pid, fd):
    pidfd = os.pidfd_open(pid)
    fd = libc.syscall(438, pidfd, fd, 0)
    chunk = log("import", d.cuMemImportFromShareableHandle(fd, FD))
    again = log("import again", d.cuMemImportFromShareableHandle(fd, FD))
    log.note("another handle", int(chunk) != int(again))
    os.close(fd)
    props = d.cuMemGetAllocationPropertiesFromHandle(chunk)
    log("properties", props, props[1].type.name, props[1].location.type.name, props[1].requestedHandleTypes.name)
    base = int(made(d.cuMemAddressReserve(2 * GRAN, 0, 0, 0)))
    log("map", d.cuMemMap(base, GRAN, 0, chunk, 0))
    log("map the other handle", d.cuMemMap(base + GRAN, GRAN, 0, again, 0))
    log("set without access", d.cuMemsetD8(base, 1, 8))
    log("access", d.cuMemSetAccess(base, 2 * GRAN, [access()], 1))
    bytes_at(log, "what the exporter wrote", base)
    log("write", d.cuMemsetD8(base + 64, 0x66, 8))
    bytes_at(log, "through the other mapping", base + GRAN + 64)
    ptr_attrs(log, "attributes", base)
    exported = d.cuMemExportToShareableHandle(chunk, FD, 0)
    log("export the import", exported)
    for handle in (chunk, again):
        log("release", d.cuMemRelease(handle))
    bytes_at(log, "mapped without a handle", base)
    log("unmap", d.cuMemUnmap(base, 2 * GRAN))
    log("free", d.cuMemAddressFree(base, 2 * GRAN))


@scenario
def virtual_memory_between_processes(log):
    libc.prctl(0x59616D61, ctypes.c_ulong(-1 & (2**64 - 1)), 0, 0, 0)
    base, chunk = vmm(log, release=False)
    log("write", d.cuMemsetD8(base, 0x33, 8))
    log("sync", d.cuCtxSynchronize())
    fd = int(log("export", d.cuMemExportToShareableHandle(chunk, FD, 0)))
    second = int(log("export twice", d.cuMemExportToShareableHandle(chunk, FD, 0)))
    log.note("another descriptor", fd != second)
    os.close(second)
    in_processes(log, [("in the other process:", importer, (os.getpid(), fd))])
    bytes_at(log, "what the importer wrote", base + 64)
    log("unmap", d.cuMemUnmap(base, GRAN))
    log("release", d.cuMemRelease(chunk))
    late = log("import when only the descriptor is left", d.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    log("map it", d.cuMemMap(base, GRAN, 0, late, 0))
    log("access", d.cuMemSetAccess(base, GRAN, [access()], 1))
    bytes_at(log, "the bytes are kept", base)
    log("unmap", d.cuMemUnmap(base, GRAN))
    log("release", d.cuMemRelease(late))
    log("free", d.cuMemAddressFree(base, GRAN))


# --- pools -----------------------------------------------------------------------------------------------

@scenario
def trim_under_several_streams(log):
    pool = made(d.cuMemPoolCreate(pool_props()))
    d.cuMemPoolSetAttribute(pool, THRESHOLD, EVERYTHING)
    streams = [made(d.cuStreamCreate(1)) for _ in range(3)]

    def sizes(label):
        log.note(label, *(pool_attr(pool, f"{what}_MEM_{when}") for what in ("USED", "RESERVED") for when in ("CURRENT", "HIGH")))

    blocks = [log("allocate 40 MiB", d.cuMemAllocFromPoolAsync(40 * MIB, pool, s)) for s in streams]
    sizes("all three")
    log("trim", d.cuMemPoolTrimTo(pool, 0))
    sizes("nothing to trim")
    log("free the first", d.cuMemFreeAsync(blocks[0], streams[0]))
    log("wait for it", d.cuStreamSynchronize(streams[0]))
    sizes("one is free")
    log("trim to 100 MiB", d.cuMemPoolTrimTo(pool, 100 * MIB))
    sizes("above what is left")
    log("trim", d.cuMemPoolTrimTo(pool, 0))
    sizes("trimmed")
    busy(streams[1])
    log("free the second behind work", d.cuMemFreeAsync(blocks[1], streams[1]))
    sizes("its free waits")
    log("trim", d.cuMemPoolTrimTo(pool, 0))
    sizes("while the free waits")
    log("wait for it", d.cuStreamSynchronize(streams[1]))
    log("trim", d.cuMemPoolTrimTo(pool, 0))
    sizes("after the wait")
    log("threshold 0", d.cuMemPoolSetAttribute(pool, THRESHOLD, d.cuuint64_t(0)))
    sizes("threshold alone changes nothing")
    log("free the third on another stream", d.cuMemFreeAsync(blocks[2], streams[0]))
    log("wait for a stream that has nothing to do with it", d.cuStreamSynchronize(streams[2]))
    log("wait for that stream", d.cuStreamSynchronize(streams[0]))
    sizes("all free")
    log("threshold 64 MiB", d.cuMemPoolSetAttribute(pool, THRESHOLD, d.cuuint64_t(64 * MIB)))
    blocks = [made(d.cuMemAllocFromPoolAsync(40 * MIB, pool, s)) for s in streams]
    for block, stream in zip(blocks, streams):
        d.cuMemFreeAsync(block, stream)
    log("wait for all", d.cuCtxSynchronize())
    sizes("down to the threshold")
    log("destroy", d.cuMemPoolDestroy(pool))
    for stream in streams:
        d.cuStreamDestroy(stream)


@scenario
def pool_memory_freed_by_the_plain_free(log):
    pool, other = made(d.cuMemPoolCreate(pool_props())), made(d.cuMemPoolCreate(pool_props()))
    stream, second, event = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1)), made(d.cuEventCreate(2))
    d.cuMemPoolSetAttribute(pool, THRESHOLD, EVERYTHING)
    plain = made(d.cuMemAlloc(64))

    def later(result=None):
        time.sleep(0.02)
        return (d.CUresult.CUDA_SUCCESS,)

    steps = {
        "nothing": later,
        "query of its stream": lambda: d.cuStreamQuery(stream),
        "wait for its stream": lambda: d.cuStreamSynchronize(stream),
        "wait for another stream": lambda: d.cuStreamSynchronize(second),
        "wait for an event": lambda: (d.cuEventRecord(event, stream), d.cuEventSynchronize(event))[1],
        "wait for the context": d.cuCtxSynchronize,
        "trim": lambda: d.cuMemPoolTrimTo(pool, 0),
        "an allocation of that size": lambda: d.cuMemFreeAsync(made(d.cuMemAllocFromPoolAsync(5000, pool, stream)), stream),
        "an allocation from another pool": lambda: d.cuMemFreeAsync(made(d.cuMemAllocFromPoolAsync(5000, other, stream)), stream),
        "a plain allocation": lambda: d.cuMemFree(made(d.cuMemAlloc(64))),
        "a copy to the host": lambda: d.cuMemcpyDtoH(bytearray(8), plain, 8),
        "a set": lambda: d.cuMemsetD8(plain, 1, 8),
        "a free in order": lambda: d.cuMemFreeAsync(held, stream),
    }
    for name, step in steps.items():
        held = made(d.cuMemAllocFromPoolAsync(1000, pool, stream))
        memory = made(d.cuMemAllocFromPoolAsync(5000, pool, stream))
        d.cuCtxSynchronize()
        log("free", d.cuMemFree(memory))
        log.note("used", pool_attr(pool, "USED_MEM_CURRENT"))
        log(name, step())
        log.note("used", pool_attr(pool, "USED_MEM_CURRENT"), pool_attr(pool, "USED_MEM_HIGH"))
        d.cuMemFreeAsync(held, stream)
        d.cuCtxSynchronize()
        log.note("used at the end", pool_attr(pool, "USED_MEM_CURRENT"))
    log("destroy", d.cuMemPoolDestroy(pool))
    d.cuMemPoolDestroy(other)
    d.cuMemFree(plain)
    d.cuEventDestroy(event)
    d.cuStreamDestroy(stream)
    d.cuStreamDestroy(second)


@scenario
def rights_at_other_places(log):
    def each(label, address):
        for where, number in (("DEVICE", 0), ("DEVICE", 99), ("HOST", 0), ("HOST", 1), ("HOST_NUMA", 0), ("HOST_NUMA", 1), ("HOST_NUMA_CURRENT", 0), ("INVALID", 0)):
            result = d.cuMemGetAccess(place(where, number), address)
            log(f"{label}, {where}:{number}", result, *(int(v) for v in result[1:] if result[0] == 0))

    base, _ = vmm(log, 2 * GRAN)
    each("device memory", base)
    for flag in ("NONE", "READ", "READWRITE"):
        for where in ("HOST", "HOST_NUMA", "HOST_NUMA_CURRENT"):
            log(f"{flag} for {where}", d.cuMemSetAccess(base, 2 * GRAN, [access(flag, where)], 1))
    d.cuMemUnmap(base, 2 * GRAN)
    each("unmapped", base)
    d.cuMemAddressFree(base, 2 * GRAN)
    for where in ("HOST", "HOST_NUMA"):
        chunk = made(d.cuMemCreate(GRAN, prop(where, 0, "CU_MEM_HANDLE_TYPE_NONE"), 0))
        base = int(made(d.cuMemAddressReserve(GRAN, 0, 0, 0)))
        d.cuMemMap(base, GRAN, 0, chunk, 0)
        d.cuMemRelease(chunk)
        each(f"{where}, fresh", base)
        log("address range", d.cuMemGetAddressRange(base)[:1])
        ptr_attrs(log, "attributes", base)
        log("for device 0", d.cuMemSetAccess(base, GRAN, [access()], 1))
        each(f"{where}, for device 0", base)
        log("for the host", d.cuMemSetAccess(base, GRAN, [access(location=where)], 1))
        each(f"{where}, for the host", base)
        d.cuMemUnmap(base, GRAN)
        d.cuMemAddressFree(base, GRAN)
    for label, args in (("device", {}), ("host", {"location": "HOST"}), ("host numa", {"location": "HOST_NUMA"}), ("managed", {"kind": "MANAGED"})):
        pool = made(d.cuMemPoolCreate(pool_props(**args)))
        for where, number in (("DEVICE", 0), ("DEVICE", 99), ("HOST", 0), ("HOST_NUMA", 0), ("INVALID", 0)):
            result = d.cuMemPoolGetAccess(pool, place(where, number))
            log(f"{label} pool, {where}:{number}", result, *(int(v) for v in result[1:] if result[0] == 0))
            for flag in ("READ", "NONE", "READWRITE"):
                log(f"  {flag}", d.cuMemPoolSetAccess(pool, [access(flag, where, number)], 1))
        d.cuMemPoolDestroy(pool)


@scenario
def advice_call_by_call(log):
    stream = made(d.cuStreamCreate(1))
    memory = {"managed": int(made(d.cuMemAllocManaged(65536, 1))), "plain": int(made(d.cuMemAlloc(65536))),
              "host": int(made(d.cuMemAllocHost(65536)))}
    for kind, pointer in memory.items():
        for advice in range(1, 7):
            for where, number in (("DEVICE", 0), ("DEVICE", 99), ("HOST", 0), ("HOST_NUMA", 0), ("INVALID", 0)):
                log(f"{kind}, {d.CUmem_advise(advice).name[14:]}, {where}:{number}", d.cuMemAdvise(pointer, 4096, d.CUmem_advise(advice), place(where, number)))
        for label, address, count in (("no bytes", pointer, 0), ("beyond", pointer, 1 << 20), ("inside", pointer + 100, 100)):
            log(f"{kind}, {label}: advise", d.cuMemAdvise(address, count, d.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY, place()))
            log(f"{kind}, {label}: prefetch", d.cuMemPrefetchAsync(address, count, place(), 0, stream))
        for where, number in (("DEVICE", 0), ("DEVICE", 99), ("HOST", 0), ("HOST_NUMA", 0), ("HOST_NUMA", 99), ("HOST_NUMA_CURRENT", 0), ("INVALID", 0)):
            log(f"{kind}, prefetch to {where}:{number}", d.cuMemPrefetchAsync(pointer, 4096, place(where, number), 0, stream))
        log(f"{kind}, prefetch with flags", d.cuMemPrefetchAsync(pointer, 4096, place(), 1, stream))
    d.cuCtxSynchronize()
    d.cuMemFree(memory["managed"])
    d.cuMemFree(memory["plain"])
    d.cuMemFreeHost(memory["host"])
    d.cuStreamDestroy(stream)


@scenario
def pointers_of_each_kind(log):
    stream = made(d.cuStreamCreate(1))
    pools = {"device pool": {}, "shareable pool": {"handle": "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"}, "host pool": {"location": "HOST"},
             "numa pool": {"location": "HOST_NUMA"}, "managed pool": {"kind": "MANAGED"}}
    pools = {label: made(d.cuMemPoolCreate(pool_props(**args))) for label, args in pools.items()}
    base, _ = vmm(log)
    without, _ = vmm(log, give_access=False)
    memory = {"plain": int(made(d.cuMemAlloc(4096))), "pinned": int(made(d.cuMemAllocHost(4096))), "managed": int(made(d.cuMemAllocManaged(4096, 1))),
              "virtual": base, "virtual without access": without}
    memory |= {label: int(made(d.cuMemAllocFromPoolAsync(4096, pool, stream))) for label, pool in pools.items()}
    target = int(made(d.cuMemAlloc(4096)))
    d.cuStreamSynchronize(stream)

    def use(label, pointer):
        span = d.cuMemGetAddressRange(pointer + 64)
        log(f"{label}: address range", span, *([64, int(span[2])] if span[0] == 0 and int(span[1]) == pointer else []))
        flags = d.cuMemHostGetFlags(pointer)
        log(f"{label}: host flags", flags, *([int(flags[1]) & ~1] if flags[0] == 0 else []))
        for at in (0, 64):
            device = d.cuMemHostGetDevicePointer(pointer + at, 0)
            log(f"{label}: device pointer of {at}", device, *([int(device[1]) - pointer] if device[0] == 0 else []))
        for name in ("SYNC_MEMOPS", "ACCESS_FLAGS", "ALLOWED_HANDLE_TYPES", "MAPPING_SIZE"):
            value = d.cuPointerGetAttribute(getattr(d.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}"), pointer)
            log(f"{label}: {name}", value, *([getattr(value[1], "value", None) or int(value[1])] if value[0] == 0 else []))
        log(f"{label}: set", d.cuMemsetD8(pointer, 1, 8))
        log(f"{label}: copy any from it", d.cuMemcpyAsync(target, pointer, 8, stream))
        log(f"{label}: copy any to it", d.cuMemcpyAsync(pointer, target, 8, stream))
        log(f"{label}: copy device to device", d.cuMemcpyDtoDAsync(target, pointer, 8, stream))
        log(f"{label}: copy to the host", d.cuMemcpyDtoH(bytearray(8), pointer, 8))
        log(f"{label}: copy from the host", d.cuMemcpyHtoD(pointer, bytes(8), 8))
        log(f"{label}: copy as the host side", d.cuMemcpyDtoHAsync(pointer, target, 8, stream))
        log(f"{label}: copy as the host's source", d.cuMemcpyHtoDAsync(target, pointer, 8, stream))
        log("sync", d.cuCtxSynchronize())

    for label, pointer in memory.items():
        use(label, pointer)
    for label in ("host pool", "numa pool"):
        log(f"{label}: access for device 0", d.cuMemPoolSetAccess(pools[label], [access()], 1))
        use(f"{label} with access", memory[label])
        late = int(made(d.cuMemAllocFromPoolAsync(4096, pools[label], stream)))
        d.cuStreamSynchronize(stream)
        use(f"{label}, allocated with access", late)
        d.cuMemFreeAsync(late, stream)
    for label in pools:
        d.cuMemFreeAsync(memory[label], stream)
    for label in ("plain", "managed"):
        d.cuMemFree(memory[label])
    d.cuMemFree(target)
    d.cuMemFreeHost(memory["pinned"])
    for at in (base, without):
        d.cuMemUnmap(at, GRAN)
        d.cuMemAddressFree(at, GRAN)
    d.cuCtxSynchronize()
    for pool in pools.values():
        d.cuMemPoolDestroy(pool)
    d.cuStreamDestroy(stream)


# --- copies ----------------------------------------------------------------------------------------------

# What a batch is made of, other than one copy of 8 bytes: how many copies there are, the order of access of each
# attribute, the indices of the attributes, the size of a copy, the stream, and whether the last source is null. Not here, as the process
# does not survive it: a source that was freed.
BATCHES = {
    "two copies": {"count": 2},
    "one of no bytes": {"size": 0},
    "none": {"count": 0, "orders": (), "indices": ()},
    "none with attributes": {"count": 0},
    "no attributes": {"orders": (), "indices": ()},
    "two attributes": {"count": 2, "orders": ("STREAM", "ANY"), "indices": (0, 1)},
    "during the call": {"orders": ("DURING_API_CALL",)},
    "order invalid": {"orders": ("INVALID",)},
    "first index not 0": {"count": 2, "indices": (1,)},
    "indices falling": {"count": 2, "orders": ("STREAM", "STREAM"), "indices": (0, 0)},
    "index beyond": {"orders": ("STREAM", "STREAM"), "indices": (0, 1)},
    "from null": {"null": True},
    "one good, one from null": {"count": 2, "null": True},
    "beyond": {"size": 1 << 30},
    "on the legacy stream": {"stream": LEGACY},
    "on the null stream": {"stream": 0},
    "on the per-thread stream": {"stream": PER_THREAD},
    "in a capture": {"stream": "capturing"},
}


def batch(log, label):
    how = {"count": 1, "orders": ("STREAM",), "indices": (0,), "size": 8, "stream": None, "null": False} | BATCHES[label]
    count = how["count"]
    own = made(d.cuStreamCreate(1))
    to, source = (int(made(d.cuMemAlloc(4096))) for _ in range(2))
    d.cuMemsetD8(source, 0x10, 4096)
    d.cuCtxSynchronize()
    targets, sources = [to, to + 64][:count], [source, source][:count]
    if how["null"]:
        sources[-1] = 0
    if how["stream"] == "capturing":
        made(d.cuStreamBeginCapture(own, MODE["RELAXED"]) + (None,))
    stream = how["stream"] if isinstance(how["stream"], int) else own
    attributes = []
    for order in how["orders"]:
        attributes.append(d.CUmemcpyAttributes())
        attributes[-1].srcAccessOrder = getattr(d.CUmemcpySrcAccessOrder, f"CU_MEMCPY_SRC_ACCESS_ORDER_{order}")
    log("  answer", d.cuMemcpyBatchAsync(pointers(targets), pointers(sources), [how["size"]] * count, count, attributes,
                                         list(how["indices"]), len(attributes), stream))
    if how["stream"] == "capturing":
        log.note("  end", *ended(own))
    log("  sync", d.cuCtxSynchronize())
    if count and how["stream"] != "capturing":
        bytes_at(log, "  last target", targets[-1])


@scenario
def batched_copies(log):
    in_processes(log, [(label, batch, (label,)) for label in BATCHES])


@scenario
def batched_prefetches(log):
    stream = made(d.cuStreamCreate(1))
    a, b = int(made(d.cuMemAllocManaged(65536, 1))), int(made(d.cuMemAllocManaged(65536, 1)))
    device, host = place(), place("HOST")

    def prefetch(label, ranges, sizes, places, indices, flags=0, stream=stream, call=d.cuMemPrefetchBatchAsync):
        log(label, call(pointers(ranges), list(sizes), len(ranges), list(places), list(indices), len(places), flags, stream))

    def last(label, pointer):
        attribute = d.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
        result = d.cuMemRangeGetAttribute(4, attribute, pointer, 65536)
        log(label, result, str(result[1]))

    prefetch("both to the device", [a, b], [65536, 65536], [device], [0])
    log("sync", d.cuStreamSynchronize(stream))
    last("first", a)
    last("second", b)
    prefetch("one to each", [a, b], [65536, 65536], [device, host], [0, 1])
    log("sync", d.cuStreamSynchronize(stream))
    last("first", a)
    last("second", b)
    prefetch("none", [], [], [device], [0])
    prefetch("no places", [a], [65536], [], [])
    prefetch("first index not 0", [a, b], [65536, 65536], [device], [1])
    prefetch("index beyond", [a], [65536], [device, host], [0, 1])
    prefetch("flags 1", [a], [65536], [device], [0], 1)
    prefetch("to device 99", [a], [65536], [place(number=99)], [0])
    prefetch("beyond", [a], [1 << 30], [device], [0])
    prefetch("of null", [0], [4096], [device], [0])
    prefetch("one good, one bad", [a, 0], [4096, 4096], [device], [0])
    prefetch("on the legacy stream", [a], [65536], [device], [0], stream=LEGACY)
    log("discard", d.cuMemDiscardBatchAsync(pointers([a]), [65536], 1, 0, stream))
    log("sync", d.cuStreamSynchronize(stream))
    log("discard part", d.cuMemDiscardBatchAsync(pointers([a + 4096]), [4096], 1, 0, stream))
    log("discard none", d.cuMemDiscardBatchAsync([], [], 0, 0, stream))
    log("discard, flags 1", d.cuMemDiscardBatchAsync(pointers([a]), [65536], 1, 1, stream))
    prefetch("discard and prefetch", [a, b], [65536, 65536], [device], [0], call=d.cuMemDiscardAndPrefetchBatchAsync)
    log("sync", d.cuStreamSynchronize(stream))
    last("first", a)
    plain = made(d.cuMemAlloc(65536))
    prefetch("of plain memory", [plain], [65536], [device], [0])
    log("discard plain memory", d.cuMemDiscardBatchAsync(pointers([plain]), [65536], 1, 0, stream))
    log("sync", d.cuStreamSynchronize(stream))
    for pointer in (a, b, plain):
        d.cuMemFree(pointer)
    d.cuStreamDestroy(stream)


@scenario
def registered_memory_under_copies(log):
    stream, plain = made(d.cuStreamCreate(1)), int(made(d.cuMemAlloc(65536)))
    page = mmap.mmap(-1, 4 * 65536)
    memory = ctypes.addressof(ctypes.c_char.from_buffer(page))
    end = memory + 65536
    log("set what is not registered", d.cuMemsetD8(memory, 1, 8))
    log("register", d.cuMemHostRegister(memory, 65536, 0))
    log("register inside", d.cuMemHostRegister(memory + 4096, 4096, 0))
    log("register overlapping", d.cuMemHostRegister(memory + 32768, 65536, 0))
    log("register behind it", d.cuMemHostRegister(end, 4096, 0))
    flags = d.cuMemHostGetFlags(memory)
    log("flags", flags, int(flags[1]))
    log("set", d.cuMemsetD8(memory, 0x21, 64))
    log("set at its end", d.cuMemsetD8(end - 8, 0x22, 8))
    log("set across its end", d.cuMemsetD8(end - 8, 0x22, 16))
    log("sync", d.cuCtxSynchronize())
    log.note("seen by the host", page[:4].hex(), page[65536 - 4:65536].hex())
    log("copy to the device", d.cuMemcpyHtoDAsync(plain, memory, 64, stream))
    log("copy back behind it", d.cuMemcpyDtoHAsync(memory + 128, plain, 64, stream))
    log("sync", d.cuStreamSynchronize(stream))
    log.note("arrived", page[128:132].hex())
    log("copy device to device to it", d.cuMemcpyDtoDAsync(memory + 256, plain, 64, stream))
    log("copy any to it", d.cuMemcpyAsync(memory + 320, plain, 64, stream))
    log("sync", d.cuStreamSynchronize(stream))
    log.note("arrived", page[256:260].hex(), page[320:324].hex())
    log("copy that ends beyond it", d.cuMemcpyHtoD(plain, end - 8, 4096 + 16))
    log("copy from behind both", d.cuMemcpyHtoD(plain, end + 8192, 64))
    ptr_attrs(log, "attributes", memory + 64)
    span = d.cuMemGetAddressRange(memory + 64)
    log("address range", span, *([memory + 64 - int(span[1]), int(span[2])] if span[0] == 0 else []))
    log("free it as host memory", d.cuMemFreeHost(memory))
    log("free it as device memory", d.cuMemFree(memory))
    log("free it in order", d.cuMemFreeAsync(memory, stream))
    log("unregister behind work", (d.cuMemcpyHtoDAsync(plain, memory, 64, stream), d.cuMemHostUnregister(memory))[1])
    log("sync", d.cuStreamSynchronize(stream))
    log("set after that", d.cuMemsetD8(memory, 1, 8))
    log("copy as pageable", d.cuMemcpyHtoD(plain, memory, 64))
    log("unregister the other", d.cuMemHostUnregister(end))
    for address, size in ((memory + 64, 100), (memory, 0), (memory, 65536)):
        log(f"register {address - memory}, {size}", d.cuMemHostRegister(address, size, 1))
        log("  unregister", d.cuMemHostUnregister(address))
    log("register the driver's own", (host := made(d.cuMemAllocHost(4096)), d.cuMemHostRegister(int(host), 4096, 0))[1])
    log("register null", d.cuMemHostRegister(0, 4096, 0))
    log("flags 64", d.cuMemHostRegister(memory, 4096, 64))
    d.cuMemFreeHost(host)
    d.cuMemFree(plain)
    d.cuStreamDestroy(stream)


# --- handles that were destroyed -------------------------------------------------------------------------

def use_of_destroyed(log, what, call):
    other, event = made(d.cuStreamCreate(1)), made(d.cuEventCreate(0))
    pool, plain = made(d.cuMemPoolCreate(pool_props())), made(d.cuMemAlloc(64))
    chunk = made(d.cuMemCreate(GRAN, prop(), 0))
    made(d.cuStreamBeginCapture(other, MODE["RELAXED"]) + (None,))
    made(d.cuMemsetD8Async(plain, 1, 8, other) + (None,))
    graph = made(d.cuStreamEndCapture(other))
    executable = made(d.cuGraphInstantiate(graph, 0))
    d.cuCtxSynchronize()
    give_back = {"event": lambda: d.cuEventDestroy(event),
                 "pool": lambda: d.cuMemPoolDestroy(pool), "chunk": lambda: d.cuMemRelease(chunk),
                 "graph": lambda: d.cuGraphDestroy(graph), "executable": lambda: d.cuGraphExecDestroy(executable)}
    log("  destroy", give_back[what]())
    calls = {
        "destroy": give_back[what],
        "wait": lambda: d.cuEventSynchronize(event),
        "query": lambda: d.cuEventQuery(event),
        "record": lambda: d.cuEventRecord(event, other),
        "wait for the event": lambda: d.cuStreamWaitEvent(other, event, 0),
        "allocate": lambda: d.cuMemAllocFromPoolAsync(64, pool, other)[:1],
        "attribute": lambda: d.cuMemPoolGetAttribute(pool, THRESHOLD)[:1],
        "trim": lambda: d.cuMemPoolTrimTo(pool, 0),
        "instantiate": lambda: d.cuGraphInstantiate(graph, 0)[:1],
        "launch": lambda: d.cuGraphLaunch(executable, other),
    }
    log(f"  {call}", calls[call]())


@scenario
def destroyed_handles_in_use(log):
    # Not here, as the process does not survive: any use of a destroyed stream, a map and an export of a released chunk.
    uses = {"event": ("destroy", "wait", "query", "record", "wait for the event"),
            "pool": ("destroy", "allocate", "attribute", "trim"), "chunk": ("destroy",),
            "graph": ("destroy", "instantiate"), "executable": ("destroy", "launch")}
    for what, calls in uses.items():
        in_processes(log, [(f"{what}: {call}", use_of_destroyed, (what, call)) for call in calls])


if __name__ == "__main__":
    main()
