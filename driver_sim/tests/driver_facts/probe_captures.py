"""Captures call by call, graph memory, host functions, and who waits for whom.

`python probe_captures.py > h200_captures.json` records on a machine with a GPU; `--check FILE` compares, as in
probe.py, and the names of scenarios restrict both. Every scenario runs in a process of its own.
"""
import ctypes
import mmap
import time

from cuda.bindings import driver as d

from probe import GRAN, access, pool_props, prop, ptr_attrs, vmm
from probe_tools import (
    MODE, THRESHOLD, LEGACY, PER_THREAD, MIB, HOST_BYTES, scenario, ctx, made, place, pointers,
    bytes_at, host_function, busy, on_thread, ended, main,
)

# --- captures --------------------------------------------------------------------------------------------

def each_capture(flags=1):
    """Streams in a capture of each mode, with this thread's mode as it was and exchanged to relaxed."""
    for mode in MODE:
        for exchanged in (False, True):
            stream = made(d.cuStreamCreate(flags))
            made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
            old = made(d.cuThreadExchangeStreamCaptureMode(MODE["RELAXED"])) if exchanged else None
            yield f"{mode}{', exchanged' if exchanged else ''}", stream
            if exchanged:
                d.cuThreadExchangeStreamCaptureMode(old)
            d.cuStreamEndCapture(stream)
            d.cuStreamDestroy(stream)


@scenario
def virtual_memory_during_a_capture(log):
    for label, stream in each_capture():
        log.note(label)
        base = int(log("reserve", d.cuMemAddressReserve(GRAN, 0, 0, 0)))
        chunk = log("create", d.cuMemCreate(GRAN, prop(), 0))
        log("map", d.cuMemMap(base, GRAN, 0, chunk, 0))
        log("access", d.cuMemSetAccess(base, GRAN, [access()], 1))
        log("retain", d.cuMemRetainAllocationHandle(base))
        log("release", d.cuMemRelease(chunk))
        log("set", d.cuMemsetD8(base, 1, 8))
        time.sleep(0.05)  # an unmap does not wait for the work
        log("unmap", d.cuMemUnmap(base, GRAN))
        log("release the last", d.cuMemRelease(chunk))
        log("free", d.cuMemAddressFree(base, GRAN))
        log.note("end", *ended(stream))


@scenario
def waits_during_a_capture(log):
    other, blocking = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(0))
    event = made(d.cuEventCreate(2))
    made(d.cuEventRecord(event, other) + (None,))
    pool = made(d.cuMemPoolCreate(pool_props()))
    plain = made(d.cuMemAlloc(64))
    d.cuCtxSynchronize()
    calls = {
        "wait for another stream": lambda: d.cuStreamSynchronize(other),
        "query another stream": lambda: d.cuStreamQuery(other),
        "wait for a blocking stream": lambda: d.cuStreamSynchronize(blocking),
        "query the legacy stream": lambda: d.cuStreamQuery(LEGACY),
        "wait for the legacy stream": lambda: d.cuStreamSynchronize(LEGACY),
        "wait for the per-thread stream": lambda: d.cuStreamSynchronize(PER_THREAD),
        "wait for the context": d.cuCtxSynchronize,
        "query an event": lambda: d.cuEventQuery(event),
        "wait for an event": lambda: d.cuEventSynchronize(event),
        "record on the legacy stream": lambda: d.cuEventRecord(event, LEGACY),
        "is the legacy stream capturing": lambda: d.cuStreamIsCapturing(LEGACY)[:1],
        "set": lambda: d.cuMemsetD8(plain, 1, 8),
        "set on the legacy stream": lambda: d.cuMemsetD8Async(plain, 1, 8, LEGACY),
        "copy to the host": lambda: d.cuMemcpyDtoH(bytearray(8), plain, 8),
        "a pool's attribute": lambda: d.cuMemPoolGetAttribute(pool, THRESHOLD)[:1],
        "trim": lambda: d.cuMemPoolTrimTo(pool, 0),
    }
    for flags in (1, 0):
        for name, call in calls.items():
            for label, stream in each_capture(flags):
                answer = call()[0]
                log(f"{name}, {'blocking' if not flags else 'non-blocking'}, {label}", (answer,), *ended(stream))
    d.cuMemFree(plain)
    d.cuMemPoolDestroy(pool)
    d.cuEventDestroy(event)
    d.cuStreamDestroy(other)
    d.cuStreamDestroy(blocking)


@scenario
def other_threads_during_a_capture(log):
    other = made(d.cuStreamCreate(1))

    def calls(label, exchange):
        if exchange:
            d.cuThreadExchangeStreamCaptureMode(MODE[exchange])
        plain = d.cuMemAlloc(64)
        log(f"{label}: plain memory", plain)
        log(f"{label}: wait for another stream", d.cuStreamSynchronize(other))
        if plain[0] == 0:
            log(f"{label}: free it", d.cuMemFree(plain[1]))

    for mode in MODE:
        for exchange in (None, "THREAD_LOCAL", "RELAXED"):
            stream = made(d.cuStreamCreate(1))
            made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
            on_thread(calls, f"{mode}, the other thread's {exchange}", exchange)
            log.note("end", *ended(stream))
            d.cuStreamDestroy(stream)
    for mode in MODE:
        stream = made(d.cuStreamCreate(1))
        made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
        on_thread(lambda: log(f"end a {mode} capture on another thread", d.cuStreamEndCapture(stream)[:1]))
        log.note("end", *ended(stream))
        d.cuStreamDestroy(stream)
    d.cuStreamDestroy(other)


@scenario
def captures_of_odd_things(log):
    stream, other = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
    event = made(d.cuEventCreate(0))

    def begin(which=stream):
        log("begin", d.cuStreamBeginCapture(which, MODE["RELAXED"]))

    begin()
    log("begin again", d.cuStreamBeginCapture(stream, MODE["RELAXED"]))
    log.note("end", *ended(stream))
    begin()
    log("record", d.cuEventRecord(event, stream))
    log("query the captured event", d.cuEventQuery(event))
    log.note("end", *ended(stream))
    begin()
    log("record", d.cuEventRecord(event, stream))
    log.note("end", *ended(stream))
    log("query the event afterwards", d.cuEventQuery(event))
    log("wait for the event afterwards", d.cuEventSynchronize(event))
    log("another stream waits for it", d.cuStreamWaitEvent(other, event, 0))
    log("record it anew", d.cuEventRecord(event, other))
    log("wait", d.cuEventSynchronize(event))
    begin()
    log("wait for an event recorded outside", d.cuStreamWaitEvent(stream, event, 0))
    log.note("end", *ended(stream))
    fresh = made(d.cuEventCreate(2))
    begin()
    log("wait for an event that was never recorded", d.cuStreamWaitEvent(stream, fresh, 0))
    log.note("end", *ended(stream))
    begin()
    begin(other)
    log("record on one", d.cuEventRecord(fresh, stream))
    log("wait for it on the other", d.cuStreamWaitEvent(other, fresh, 0))
    log.note("end of one", *ended(stream))
    log.note("end of the other", *ended(other))
    begin()
    log("record", d.cuEventRecord(fresh, stream))
    log("the legacy stream waits for it", d.cuStreamWaitEvent(LEGACY, fresh, 0))
    log.note("end", *ended(stream))
    begin()
    log("record", d.cuEventRecord(fresh, stream))
    log("fork", d.cuStreamWaitEvent(other, fresh, 0))
    log("end on the fork", d.cuStreamEndCapture(other))
    log("destroy the fork", d.cuStreamDestroy(other))
    log.note("end", *ended(stream))
    begin()
    log("allocate nothing", d.cuMemAllocAsync(0, stream))
    log("allocate too much", d.cuMemAllocAsync(1 << 60, stream))
    log("free null", d.cuMemFreeAsync(0, stream))
    log("destroy the capturing stream", d.cuStreamDestroy(stream))
    d.cuEventDestroy(event)
    d.cuEventDestroy(fresh)
    log("sync", d.cuCtxSynchronize())


@scenario
def calls_in_a_broken_capture(log):
    plain, event = made(d.cuMemAlloc(64)), made(d.cuEventCreate(2))
    pools = [made(d.cuMemPoolCreate(pool_props())), made(d.cuMemPoolCreate(pool_props(handle="CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"))),
             made(d.cuMemPoolCreate(pool_props(location="HOST")))]
    made(d.cuEventRecord(event, LEGACY) + (None,))
    d.cuCtxSynchronize()
    managed = made(d.cuMemAllocManaged(4096, 1))
    calls = {
        "flags": lambda s: d.cuStreamGetFlags(s),
        "priority": lambda s: d.cuStreamGetPriority(s),
        "context": lambda s: d.cuStreamGetCtx(s),
        "id": lambda s: d.cuStreamGetId(s),
        "query": lambda s: d.cuStreamQuery(s),
        "wait": lambda s: d.cuStreamSynchronize(s),
        "begin": lambda s: d.cuStreamBeginCapture(s, MODE["RELAXED"]),
        "set": lambda s: d.cuMemsetD8Async(plain, 1, 8, s),
        "set null": lambda s: d.cuMemsetD8Async(0, 1, 8, s),
        "set off its width": lambda s: d.cuMemsetD32Async(int(plain) + 1, 1, 2, s),
        "set beyond": lambda s: d.cuMemsetD8Async(plain, 1, 1 << 30, s),
        "set nothing": lambda s: d.cuMemsetD8Async(plain, 1, 0, s),
        "copy": lambda s: d.cuMemcpyDtoDAsync(plain, plain, 8, s),
        "copy nothing": lambda s: d.cuMemcpyDtoDAsync(plain, plain, 0, s),
        "copy from null": lambda s: d.cuMemcpyDtoDAsync(plain, 0, 8, s),
        "copy from pageable memory": lambda s: d.cuMemcpyHtoDAsync(plain, bytes(8), 8, s),
        "copy to pageable memory": lambda s: d.cuMemcpyDtoHAsync(bytearray(8), plain, 8, s),
        "copy pageable as device memory": lambda s: d.cuMemcpyDtoDAsync(plain, HOST_BYTES, 8, s),
        "copy any from pageable memory": lambda s: d.cuMemcpyAsync(plain, HOST_BYTES, 8, s),
        "host function": lambda s: host_function(s, 0),
        "record": lambda s: d.cuEventRecord(event, s),
        "wait for an event": lambda s: d.cuStreamWaitEvent(s, event, 0),
        "allocate": lambda s: d.cuMemAllocAsync(64, s)[:1],
        "allocate nothing": lambda s: d.cuMemAllocAsync(0, s)[:1],
        "allocate from a pool": lambda s: d.cuMemAllocFromPoolAsync(64, pools[0], s)[:1],
        "allocate from a shareable pool": lambda s: d.cuMemAllocFromPoolAsync(64, pools[1], s)[:1],
        "allocate from a host pool": lambda s: d.cuMemAllocFromPoolAsync(64, pools[2], s)[:1],
        "free plain memory": lambda s: d.cuMemFreeAsync(plain, s),
        "free null": lambda s: d.cuMemFreeAsync(0, s),
        "prefetch": lambda s: d.cuMemPrefetchAsync(managed, 4096, place(), 0, s),
        "discard": lambda s: d.cuMemDiscardBatchAsync(pointers([managed]), [4096], 1, 0, s),
        "advise": lambda s: d.cuMemAdvise(managed, 4096, d.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY, place()),
        "range attribute": lambda s: d.cuMemRangeGetAttribute(4, d.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, 4096)[:1],
        "wait for the context": lambda s: d.cuCtxSynchronize(),
        "legacy flags": lambda s: d.cuStreamGetFlags(LEGACY),
        "begin on the legacy stream": lambda s: d.cuStreamBeginCapture(LEGACY, MODE["RELAXED"]),
        "end on the legacy stream": lambda s: d.cuStreamEndCapture(LEGACY),
        "free on the legacy stream": lambda s: d.cuMemFreeAsync(0, LEGACY),
        "set null on the legacy stream": lambda s: d.cuMemsetD8Async(0, 1, 8, LEGACY),
        "allocate nothing on the legacy stream": lambda s: d.cuMemAllocAsync(0, LEGACY)[:1],
        "plain memory": lambda s: d.cuMemFree(made(d.cuMemAlloc(8))),
        "registering": lambda s: d.cuMemHostRegister(0, 4096, 0),
        "managed, bad flags": lambda s: d.cuMemAllocManaged(64, 7)[:1],
        "managed, no bytes": lambda s: d.cuMemAllocManaged(0, 1)[:1],
        "pinned, bad flags": lambda s: d.cuMemHostAlloc(64, 64)[:1],
        "pinned, no bytes": lambda s: d.cuMemAllocHost(0)[:1],
        "destroy": None,
    }
    for mode, flags in (("RELAXED", 0), ("GLOBAL", 1)):
        for broken in (False, True):
            for name, call in calls.items():
                if name == "plain memory" and mode == "GLOBAL":
                    continue
                stream = made(d.cuStreamCreate(flags))
                made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
                if broken:
                    d.cuStreamSynchronize(stream)
                if call is None:
                    log(f"{mode}, {'broken' if broken else 'whole'}: destroy", d.cuStreamDestroy(stream))
                    continue
                answer = call(stream)[0]
                log(f"{mode}, {'broken' if broken else 'whole'}: {name}", (answer,), *ended(stream))
                d.cuStreamDestroy(stream)
    d.cuMemFree(managed)
    d.cuMemFree(plain)
    d.cuEventDestroy(event)
    for pool in pools:
        d.cuMemPoolDestroy(pool)


@scenario
def graphs_during_a_capture(log):
    stream, other, plain = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1)), made(d.cuMemAlloc(64))
    made(d.cuStreamBeginCapture(other, MODE["RELAXED"]) + (None,))
    d.cuMemsetD8Async(plain, 1, 8, other)
    graph = made(d.cuStreamEndCapture(other))
    spare = [made(d.cuGraphInstantiate(graph, 0)) for _ in range(6)]
    calls = {
        "instantiate": lambda: (d.cuGraphInstantiate(graph, 0)[0],),
        "upload": lambda: d.cuGraphUpload(spare[-1], other),
        "launch": lambda: d.cuGraphLaunch(spare[-1], other),
        "launch on the capturing stream": lambda: d.cuGraphLaunch(spare[-1], stream),
        "destroy an executable": lambda: d.cuGraphExecDestroy(spare.pop()),
        "nodes": lambda: d.cuGraphGetNodes(graph, 4)[:1],
        "graph memory": lambda: d.cuDeviceGetGraphMemAttribute(0, d.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)[:1],
        "trim": lambda: d.cuDeviceGraphMemTrim(0),
        "create a graph": lambda: d.cuGraphDestroy(made(d.cuGraphCreate(0))),
    }
    for mode in MODE:
        for name, call in calls.items():
            made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
            answer = call()[0]
            log(f"{mode}: {name}", (answer,), *ended(stream))
            d.cuCtxSynchronize()
    made(d.cuStreamBeginCapture(stream, MODE["RELAXED"]) + (None,))
    memory = int(made(d.cuMemAllocAsync(4096, stream)))
    allocating = made(d.cuStreamEndCapture(stream))
    made(d.cuStreamBeginCapture(stream, MODE["RELAXED"]) + (None,))
    log("free another graph's memory", d.cuMemFreeAsync(memory, stream))
    log("free it again", d.cuMemFreeAsync(memory, stream))
    freeing = log("end", d.cuStreamEndCapture(stream))
    one, two = log("instantiate", d.cuGraphInstantiate(allocating, 0)), log("instantiate", d.cuGraphInstantiate(freeing, 0))
    for label, executable in (("allocate", one), ("allocate again", one), ("free", two), ("free again", two), ("allocate", one), ("free", two)):
        log(label, d.cuGraphLaunch(executable, stream))
        log("sync", d.cuStreamSynchronize(stream))
    log("two of one with memory", (d.cuGraphInstantiate(allocating, 0)[0],))
    for executable in (one, two, *spare):
        d.cuGraphExecDestroy(executable)
    for each in (graph, allocating, freeing):
        d.cuGraphDestroy(each)
    d.cuMemFree(plain)
    d.cuStreamDestroy(stream)
    d.cuStreamDestroy(other)


# --- graphs ----------------------------------------------------------------------------------------------

def graph_memory(log, label):
    names = ("USED_MEM_CURRENT", "USED_MEM_HIGH", "RESERVED_MEM_CURRENT", "RESERVED_MEM_HIGH")
    attributes = (getattr(d.CUgraphMem_attribute, f"CU_GRAPH_MEM_ATTR_{name}") for name in names)
    log.note(label, *(int(made(d.cuDeviceGetGraphMemAttribute(0, a))) for a in attributes))


def reset_graph_memory():
    d.cuDeviceGraphMemTrim(0)
    for name in ("USED_MEM_HIGH", "RESERVED_MEM_HIGH"):
        d.cuDeviceSetGraphMemAttribute(0, getattr(d.CUgraphMem_attribute, f"CU_GRAPH_MEM_ATTR_{name}"), d.cuuint64_t(0))


@scenario
def graph_with_several_memory_nodes(log):
    reset_graph_memory()
    stream, plain = made(d.cuStreamCreate(1)), made(d.cuMemAlloc(64))
    made(d.cuStreamBeginCapture(stream, MODE["RELAXED"]) + (None,))
    first = int(log("allocate 1 MiB", d.cuMemAllocAsync(MIB, stream)))
    second = int(log("allocate 40 MiB", d.cuMemAllocAsync(40 * MIB, stream)))
    log("set the first", d.cuMemsetD8Async(first, 0x11, MIB, stream))
    log("copy to the second", d.cuMemcpyDtoDAsync(second, first, 64, stream))
    log("free the first", d.cuMemFreeAsync(first, stream))
    log("free the first again", d.cuMemFreeAsync(first, stream))
    third = int(log("allocate 1 MiB", d.cuMemAllocAsync(MIB, stream)))
    log("set the third", d.cuMemsetD8Async(third, 0x22, MIB, stream))
    log("copy out", d.cuMemcpyDtoDAsync(plain, second, 32, stream))
    log("copy out", d.cuMemcpyDtoDAsync(int(plain) + 32, third, 32, stream))
    log("free inside", d.cuMemFreeAsync(second + 256, stream))
    log("free the second", d.cuMemFreeAsync(second, stream))
    log("free the third", d.cuMemFreeAsync(third, stream))
    graph = log("end", d.cuStreamEndCapture(stream))
    nodes = d.cuGraphGetNodes(graph, 32)
    log("nodes", nodes, nodes[2])
    log.note("types", *sorted(made(d.cuGraphNodeGetType(node)).name for node in nodes[1][:nodes[2]]))
    graph_memory(log, "captured")
    executable = log("instantiate", d.cuGraphInstantiate(graph, 0))
    graph_memory(log, "instantiated")
    for _ in range(3):
        log("clear", d.cuMemsetD8(plain, 0, 64))
        log("launch", d.cuGraphLaunch(executable, stream))
        log("sync", d.cuStreamSynchronize(stream))
        bytes_at(log, "the second's", plain, 4)
        bytes_at(log, "the third's", int(plain) + 32, 4)
    graph_memory(log, "launched")
    log("trim while it could be launched", d.cuDeviceGraphMemTrim(0))
    graph_memory(log, "trimmed")
    log("launch", d.cuGraphLaunch(executable, stream))
    log("sync", d.cuStreamSynchronize(stream))
    log("a second executable", second_executable := d.cuGraphInstantiate(graph, 0))
    if second_executable[0] == 0:
        d.cuGraphExecDestroy(second_executable[1])
    log("destroy the executable", d.cuGraphExecDestroy(executable))
    log("destroy the graph", d.cuGraphDestroy(graph))
    graph_memory(log, "destroyed")
    log("trim", d.cuDeviceGraphMemTrim(0))
    graph_memory(log, "trimmed")
    d.cuMemFree(plain)
    d.cuStreamDestroy(stream)


@scenario
def graph_memory_over_launches(log):
    reset_graph_memory()
    stream = made(d.cuStreamCreate(1))
    made(d.cuStreamBeginCapture(stream, MODE["RELAXED"]) + (None,))
    memory = int(log("allocate, and free nowhere", d.cuMemAllocAsync(4096, stream)))
    log("set", d.cuMemsetD8Async(memory, 0x44, 4096, stream))
    graph = log("end", d.cuStreamEndCapture(stream))
    ptr_attrs(log, "attributes before a launch", memory)
    log("set before a launch", d.cuMemsetD8(memory, 1, 8))
    log("free before a launch", d.cuMemFreeAsync(memory, stream))
    executable = log("instantiate", d.cuGraphInstantiate(graph, 0))
    for how in ("async", "plain", "async"):
        log("launch", d.cuGraphLaunch(executable, stream))
        log("sync", d.cuStreamSynchronize(stream))
        bytes_at(log, "read", memory)
        ptr_attrs(log, "attributes", memory)
        graph_memory(log, "launched")
        log("launch while it is not freed", d.cuGraphLaunch(executable, stream))
        log(f"free, {how}", d.cuMemFreeAsync(memory, stream) if how == "async" else d.cuMemFree(memory))
        log("free again", d.cuMemFreeAsync(memory, stream))
        log("sync", d.cuStreamSynchronize(stream))
        graph_memory(log, "freed")
        log("set after the free", d.cuMemsetD8(memory, 1, 8))
    log("launch", d.cuGraphLaunch(executable, stream))
    log("destroy the executable", d.cuGraphExecDestroy(executable))
    bytes_at(log, "its memory", memory)
    again = d.cuGraphInstantiate(graph, 1)
    log("instantiate, freed on launch, while the memory is there", again)
    log("free", d.cuMemFreeAsync(memory, stream))
    log("sync", d.cuStreamSynchronize(stream))
    if again[0] != 0:
        again = d.cuGraphInstantiate(graph, 1)
        log("instantiate, freed on launch", again)
    for _ in range(3):
        log("launch", d.cuGraphLaunch(again[1], stream))
    log("sync", d.cuStreamSynchronize(stream))
    graph_memory(log, "launched three times")
    log("destroy the executable", d.cuGraphExecDestroy(again[1]))
    log("destroy the graph", d.cuGraphDestroy(graph))
    bytes_at(log, "its memory", memory)
    log("free", d.cuMemFreeAsync(memory, stream))
    log("sync", d.cuStreamSynchronize(stream))
    log("set after all", d.cuMemsetD8(memory, 1, 8))
    log("trim", d.cuDeviceGraphMemTrim(0))
    graph_memory(log, "trimmed")
    d.cuStreamDestroy(stream)


# --- host functions and waits ------------------------------------------------------------------------------

@scenario
def host_functions(log):
    stream, event = made(d.cuStreamCreate(1)), made(d.cuEventCreate(2))
    for label, which in (("a stream", stream), ("the legacy stream", LEGACY), ("the per-thread stream", PER_THREAD)):
        busy(which)
        log(f"{label} is busy", d.cuStreamQuery(which))
        log("record behind it", d.cuEventRecord(event, which))
        log("query the event", d.cuEventQuery(event))
        log("wait for the event", d.cuEventSynchronize(event))
        log("query the stream", d.cuStreamQuery(which))
    made(d.cuStreamBeginCapture(stream, MODE["GLOBAL"]) + (None,))
    log("capture one", host_function(stream, 60000))
    graph = log("end", d.cuStreamEndCapture(stream))
    nodes = d.cuGraphGetNodes(graph, 4)
    log("nodes", nodes, nodes[2], made(d.cuGraphNodeGetType(nodes[1][0])).name)
    executable = log("instantiate", d.cuGraphInstantiate(graph, 0))
    log("launch", d.cuGraphLaunch(executable, stream))
    log("the stream is busy", d.cuStreamQuery(stream))
    log("destroy the executable", d.cuGraphExecDestroy(executable))
    log("sync", d.cuStreamSynchronize(stream))
    log("query", d.cuStreamQuery(stream))
    d.cuGraphDestroy(graph)
    d.cuEventDestroy(event)
    d.cuStreamDestroy(stream)


@scenario
def who_waits_for_whom(log):
    free, blocking = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(0))
    event, other_event = made(d.cuEventCreate(2)), made(d.cuEventCreate(2))
    plain, host, pool = made(d.cuMemAlloc(64)), made(d.cuMemAllocHost(64)), made(d.cuMemPoolCreate(pool_props()))
    page = mmap.mmap(-1, 65536)
    registered = ctypes.addressof(ctypes.c_char.from_buffer(page))
    made(d.cuMemHostRegister(registered, 65536, 0) + (None,))
    base, _ = vmm(log)
    pooled = made(d.cuMemAllocFromPoolAsync(64, pool, free))
    d.cuCtxSynchronize()
    streams = {"a non-blocking stream": free, "a blocking stream": blocking, "the legacy stream": LEGACY,
               "the per-thread stream": PER_THREAD, "another thread's per-thread stream": None}
    calls = {
        "wait for the legacy stream": lambda: d.cuStreamSynchronize(LEGACY),
        "wait for a new blocking stream": lambda: d.cuStreamSynchronize(fresh),
        "wait for an event on the legacy stream": lambda: (d.cuEventRecord(other_event, LEGACY), d.cuEventSynchronize(other_event))[1],
        "wait for an event on a new blocking stream": lambda: (d.cuEventRecord(other_event, fresh), d.cuEventSynchronize(other_event))[1],
        "copy to the host": lambda: d.cuMemcpyDtoH(bytearray(8), plain, 8),
        "set": lambda: d.cuMemsetD8(plain, 1, 8),
        "create and destroy a stream": lambda: d.cuStreamDestroy(made(d.cuStreamCreate(0))),
        "query the legacy stream": lambda: d.cuStreamQuery(LEGACY),
    }
    for name, call in calls.items():
        for label, stream in streams.items():
            fresh = made(d.cuStreamCreate(0))

            def start(stream=stream):
                which = PER_THREAD if stream is None else stream
                busy(which, 40)
                d.cuEventRecord(event, which)

            on_thread(start) if stream is None else start()
            answer = call()
            done = d.cuEventQuery(event)
            log(f"{name}, {label} busy", answer, "done" if done[0] == 0 else done[0].name)
            d.cuCtxSynchronize()
            d.cuStreamDestroy(fresh)
    ends = {
        "free plain memory": lambda: d.cuMemFree(plain),
        "free host memory": lambda: d.cuMemFreeHost(host),
        "unregister": lambda: d.cuMemHostUnregister(registered),
        "unmap": lambda: d.cuMemUnmap(base, GRAN),
        "free addresses": lambda: d.cuMemAddressFree(base, GRAN),
        "free pool memory by cuMemFree": lambda: d.cuMemFree(pooled),
        "trim": lambda: d.cuMemPoolTrimTo(pool, 0),
        "destroy the pool": lambda: d.cuMemPoolDestroy(pool),
        "destroy another stream": lambda: d.cuStreamDestroy(blocking),
        "destroy an event": lambda: d.cuEventDestroy(other_event),
    }
    for name, call in ends.items():
        busy(free, 40)
        d.cuEventRecord(event, free)
        answer = call()
        done = d.cuEventQuery(event)
        log(f"{name}, a non-blocking stream busy", answer, "done" if done[0] == 0 else done[0].name)
        d.cuCtxSynchronize()
    d.cuEventDestroy(event)
    d.cuStreamDestroy(free)


@scenario
def defaults_of_streams_and_events(log):
    for label, create in (("create 0", lambda: d.cuStreamCreate(0)), ("create 1", lambda: d.cuStreamCreate(1)),
                          ("priority 0", lambda: d.cuStreamCreateWithPriority(0, 0)), ("priority -5", lambda: d.cuStreamCreateWithPriority(1, -5)),
                          ("priority -99", lambda: d.cuStreamCreateWithPriority(1, -99))):
        stream = log(label, create())
        flags, priority = d.cuStreamGetFlags(stream), d.cuStreamGetPriority(stream)
        log("  flags", flags, int(flags[1]))
        log("  priority", priority, int(priority[1]))
        log.note("  of the current context", int(made(d.cuStreamGetCtx(stream))) == int(ctx()))
        status = d.cuStreamIsCapturing(stream)
        log("  capturing", status, status[1].name)
        log("  query", d.cuStreamQuery(stream))
        log("  sync", d.cuStreamSynchronize(stream))
        log("  destroy", d.cuStreamDestroy(stream))
    for label, which in (("legacy", LEGACY), ("per thread", PER_THREAD)):
        priority = d.cuStreamGetPriority(which)
        log(f"{label}: priority", priority, int(priority[1]))
        status = d.cuStreamIsCapturing(which)
        log(f"{label}: capturing", status, status[1].name)
    stream = made(d.cuStreamCreate(1))
    for flags in (0, 1, 2, 3, 6, 7, 8):
        result = d.cuEventCreate(flags)
        log(f"event {flags}", result)
        if result[0] != 0:
            continue
        event = result[1]
        log("  query", d.cuEventQuery(event))
        log("  sync", d.cuEventSynchronize(event))
        log("  wait", d.cuStreamWaitEvent(stream, event, 0))
        log("  elapsed to itself", d.cuEventElapsedTime(event, event)[:1])
        log("  record", d.cuEventRecord(event, stream))
        log("  sync", d.cuEventSynchronize(event))
        log("  elapsed to itself", d.cuEventElapsedTime(event, event)[:1])
        log("  record, external", d.cuEventRecordWithFlags(event, stream, 1))
        log("  wait, external", d.cuStreamWaitEvent(stream, event, 1))
        log("  wait, flags 2", d.cuStreamWaitEvent(stream, event, 2))
        d.cuStreamSynchronize(stream)
        log("  destroy", d.cuEventDestroy(event))
    d.cuStreamDestroy(stream)


if __name__ == "__main__":
    main()
