"""Pools beside captures, streams that end at once, rights on pools at the host, and what a captured graph owns.

`python probe_pools.py > h200_pools.json` records on a machine with a GPU; `--check FILE` compares, as in probe.py,
and the names of scenarios restrict both. Every scenario runs in a process of its own.
"""
import ctypes
import time

from cuda.bindings import driver as d

from probe import access, pool_props
from probe_captures import each_capture
from probe_tools import (
    MODE, THRESHOLD, LEGACY, PER_THREAD, MIB, scenario, scenarios, made, place, busy, on_thread, ended, driver, main,
)

def captured_graph(log, stream):
    """Ask for a capture's graph past the bindings, which read the data of edges also where there are none."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    graph, last, edges, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    out = [ctypes.byref(x) for x in (status, number, graph, last, edges, count)]
    result = driver.cuStreamGetCaptureInfo_v3(ctypes.c_void_p(int(stream)), *out)
    log("  info", (d.CUresult(result),), status.value, count.value, f"edge data: {bool(edges.value)}")
    return d.CUgraph(graph.value)


USED = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
scenarios.clear()  # those that came with the import


@scenario
def pools_beside_a_capture(log):
    other = made(d.cuStreamCreate(1))
    pool = made(d.cuMemPoolCreate(pool_props()))
    made(d.cuMemAllocFromPoolAsync(64, pool, other))
    held = [made(d.cuMemAllocFromPoolAsync(64, pool, other)) for _ in range(16)]
    spare = [made(d.cuMemPoolCreate(pool_props())) for _ in range(16)]
    d.cuStreamSynchronize(other)
    calls = {
        "allocate": lambda: d.cuMemAllocFromPoolAsync(64, pool, other)[:1],
        "allocate much": lambda: d.cuMemAllocFromPoolAsync(256 * MIB, pool, other)[:1],
        "allocate on the per-thread stream": lambda: d.cuMemAllocFromPoolAsync(64, pool, PER_THREAD)[:1],
        "free": lambda: d.cuMemFreeAsync(held.pop(), other),
        "make": lambda: d.cuMemPoolCreate(pool_props())[:1],
        "destroy": lambda: d.cuMemPoolDestroy(spare.pop()),
        "default pool": lambda: d.cuDeviceGetDefaultMemPool(0)[:1],
        "current pool": lambda: d.cuDeviceGetMemPool(0)[:1],
        "current pool of a place": lambda: d.cuMemGetMemPool(place(), d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)[:1],
        "attribute": lambda: d.cuMemPoolGetAttribute(pool, USED)[:1],
        "set an attribute": lambda: d.cuMemPoolSetAttribute(pool, THRESHOLD, d.cuuint64_t(0)),
        "trim": lambda: d.cuMemPoolTrimTo(pool, 0),
        "rights": lambda: d.cuMemPoolGetAccess(pool, place())[:1],
    }
    for name, call in calls.items():
        for label, stream in each_capture():
            log(f"{name}: {label}", call(), *ended(stream))
    for name, call in calls.items():
        stream = made(d.cuStreamCreate(1))
        made(d.cuStreamBeginCapture(stream, MODE["GLOBAL"]) + (None,))
        answer = []
        on_thread(lambda: answer.append(call()))
        log(f"{name}: GLOBAL, on another thread", answer[0], *ended(stream))
        d.cuStreamDestroy(stream)


@scenario
def a_free_behind_a_stream_that_ends_at_once(log):
    first, second = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
    pool = made(d.cuMemPoolCreate(pool_props()))
    memory = made(d.cuMemAllocFromPoolAsync(MIB, pool, first))
    busy(first)
    busy(second, 120)
    own, event = made(d.cuStreamCreate(1)), made(d.cuEventCreate(2))
    for stream in (first, second):
        log("record", d.cuEventRecord(event, stream))
        log("wait", d.cuStreamWaitEvent(own, event, 0))
    log("free", d.cuMemFreeAsync(memory, own))
    log("destroy the event", d.cuEventDestroy(event))
    log("destroy the stream", d.cuStreamDestroy(own))
    log("used while the work runs", d.cuMemPoolGetAttribute(pool, USED)[:1])
    log("first", d.cuStreamSynchronize(first))
    log("second, not done", d.cuStreamQuery(second))
    log("second", d.cuStreamSynchronize(second))
    log("context", d.cuCtxSynchronize())
    result = d.cuMemPoolGetAttribute(pool, USED)
    log("used at the end", result[:1], int(result[1]))
    log("pool", d.cuMemPoolDestroy(pool))


@scenario
def rights_of_a_device_at_pools_of_the_host(log):
    stream = made(d.cuStreamCreate(1))
    for kind in ("HOST", "HOST_NUMA"):
        pool = log(f"{kind}: make", d.cuMemPoolCreate(pool_props(kind, 0)))
        early = made(d.cuMemAllocFromPoolAsync(4096, pool, stream))
        for flag in (None, "READ", "READWRITE", "NONE", "READWRITE"):
            if flag:
                log(f"  grant {flag}", d.cuMemPoolSetAccess(pool, [access(flag)], 1))
            result = d.cuMemPoolGetAccess(pool, place())
            log("  rights", result[:1], int(result[1]))
        late = made(d.cuMemAllocFromPoolAsync(4096, pool, stream))
        d.cuStreamSynchronize(stream)
        for name, memory in (("early", early), ("late", late)):
            log(f"  set {name}", d.cuMemsetD8Async(memory, 1, 8, stream))
            log("  wait", d.cuStreamSynchronize(stream))
            log("  free", d.cuMemFreeAsync(memory, stream))
        log("  destroy", d.cuMemPoolDestroy(pool))


@scenario
def what_a_captured_graph_owns(log):
    called = []
    noted = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
    destructor = d.CUhostFn(ctypes.cast(noted, ctypes.c_void_p).value)

    def seen():
        time.sleep(0.1)
        return sorted(int(data) for data in called)

    for mode in MODE:
        called.clear()
        stream, plain = made(d.cuStreamCreate(1)), made(d.cuMemAlloc(64))
        made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
        log(f"{mode}: set", d.cuMemsetD8Async(plain, 1, 8, stream))
        graph = captured_graph(log, stream)
        one = log("  make", d.cuUserObjectCreate(7, destructor, 1, d.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        log("  give", d.cuGraphRetainUserObject(graph, one, 1, d.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE))
        kept = log("  make another", d.cuUserObjectCreate(8, destructor, 1, d.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        log("  give a share", d.cuGraphRetainUserObject(graph, kept, 1, 0))
        log("  take the share back", d.cuGraphReleaseUserObject(graph, kept, 1))
        log.note("  called", *seen())
        log("  release", d.cuUserObjectRelease(kept, 1))
        log.note("  called", *seen())
        log("  end", d.cuStreamEndCapture(stream)[:1])
        executable = log("  instantiate", d.cuGraphInstantiate(graph, 0))
        log("  destroy the graph", d.cuGraphDestroy(graph))
        log.note("  called", *seen())
        log("  launch", d.cuGraphLaunch(executable, stream))
        log("  destroy the executable", d.cuGraphExecDestroy(executable))
        log("  wait", d.cuStreamSynchronize(stream))
        log.note("  called", *seen())
        called.clear()
        made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))
        graph = captured_graph(log, stream)
        one = made(d.cuUserObjectCreate(9, destructor, 1, d.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        log("  give", d.cuGraphRetainUserObject(graph, one, 1, d.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE))
        log("  break the capture", d.cuStreamSynchronize(stream))
        log("  end", d.cuStreamEndCapture(stream)[:1])
        log.note("  called", *seen())
        d.cuStreamDestroy(stream)
        d.cuMemFree(plain)


if __name__ == "__main__":
    main()
