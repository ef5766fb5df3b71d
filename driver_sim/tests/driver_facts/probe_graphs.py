"""Graphs: branches that end, nodes added to a running capture, memory over launches in flight, updates, addresses.

`python probe_graphs.py > h200_graphs.json` records on a machine with a GPU; `--check FILE` compares, as in probe.py,
and the names of scenarios restrict both. Every scenario runs in a process of its own.
"""
import ctypes
import os
import tempfile
import time

from cuda.bindings import driver as d

from probe_tools import MODE, MIB, scenario, scenarios, made, busy, on_thread, ended, driver, main

scenarios.clear()  # those that came with the import
RELAXED = MODE["RELAXED"]
SET = d.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
ADD = d.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_ADD_CAPTURE_DEPENDENCIES


def begin(stream, mode="RELAXED"):
    made(d.cuStreamBeginCapture(stream, MODE[mode]) + (None,))


def wait_for(later, earlier):
    event = made(d.cuEventCreate(2))
    made(d.cuEventRecord(event, earlier) + (None,))
    made(d.cuStreamWaitEvent(later, event, 0) + (None,))
    d.cuEventDestroy(event)


def info(stream):
    """The graph of a capture and what the next node on the stream comes behind, past the bindings."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    graph, last, edges, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    out = [ctypes.byref(x) for x in (status, number, graph, last, edges, count)]
    assert driver.cuStreamGetCaptureInfo_v3(ctypes.c_void_p(int(stream)), *out) == 0
    nodes = (ctypes.c_void_p * count.value).from_address(last.value) if count.value else []
    return d.CUgraph(graph.value), [d.CUgraphNode(node) for node in nodes]


def there(log, label, address):
    """What the driver knows of an address, by the question that is never refused, and by the one that is."""
    names = [getattr(d.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{n}") for n in ("MEMORY_TYPE", "RANGE_SIZE")]
    plural = d.cuPointerGetAttributes(2, names, address)
    single = d.cuPointerGetAttribute(names[0], address)
    log(label, plural[:1], int(plural[1][0]) if plural[0] == 0 else "", single[0].name)


# --- branches ------------------------------------------------------------------------------------------------

@scenario
def branches_that_end(log):
    """A stream that has joined a capture is destroyed, or not joined, in every combination."""
    plain = made(d.cuMemAlloc(64))
    for first in (False, True):
        for work in (False, True):
            for join in (False, True):
                for destroy in (False, True):
                    for wrong_end in (False, True):
                        stream, fork = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
                        begin(stream)
                        if first:
                            d.cuMemsetD8Async(plain, 1, 8, stream)
                        wait_for(fork, stream)
                        if work:
                            d.cuMemsetD8Async(plain, 2, 8, fork)
                        if join:
                            wait_for(stream, fork)
                        label = " ".join(n for n, on in (("first", first), ("work", work), ("join", join),
                                                         ("end on the branch", wrong_end), ("destroy", destroy)) if on)
                        if wrong_end:
                            log(f"{label}: end on the branch", d.cuStreamEndCapture(fork)[:1])
                        if destroy:
                            log(f"{label}: destroy", d.cuStreamDestroy(fork))
                        log.note(f"{label}: end", *ended(stream))
                        d.cuStreamDestroy(stream)
                        if not destroy:
                            d.cuStreamDestroy(fork)
    d.cuMemFree(plain)


@scenario
def dependencies_put_back(log):
    """Work on a branch behind its join, taken off the branch again."""
    plain = made(d.cuMemAlloc(64))
    for put_back in (False, True):
        stream, fork = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
        begin(stream)
        wait_for(fork, stream)
        d.cuMemsetD8Async(plain, 1, 8, fork)
        wait_for(stream, fork)
        _, before = info(fork)
        log("more work", d.cuMemsetD8Async(plain, 2, 8, fork))
        if put_back:
            log("put back", d.cuStreamUpdateCaptureDependencies(fork, before, None, len(before), SET))
            log.note("the same", [int(n) for n in info(fork)[1]] == [int(n) for n in before])
        log.note("end", *ended(stream))
        d.cuStreamDestroy(stream)
        d.cuStreamDestroy(fork)
    stream = made(d.cuStreamCreate(1))
    log("not capturing", d.cuStreamUpdateCaptureDependencies(stream, [], None, 0, SET))
    begin(stream)
    log("unknown flag", d.cuStreamUpdateCaptureDependencies(stream, [], None, 0, 2))
    log.note("end", *ended(stream))
    d.cuStreamDestroy(stream)
    d.cuMemFree(plain)


# --- nodes added to a running capture -------------------------------------------------------------------------

@scenario
def a_free_node_added_to_a_capture(log):
    """Behind the join of a branch, where a captured free would leave the branch unjoined."""
    for mode in MODE:
        for how in ("captured", "added"):
            stream, fork = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
            begin(stream, mode)
            wait_for(fork, stream)
            memory = int(log(f"{mode}, {how}: allocate on the branch", d.cuMemAllocAsync(MIB, fork)))
            log("set", d.cuMemsetD8Async(memory, 1, 64, fork))
            wait_for(stream, fork)
            if how == "captured":
                log("free", d.cuMemFreeAsync(memory, fork))
            else:
                graph, behind = info(fork)
                log("inside", d.cuGraphAddMemFreeNode(graph, behind, len(behind), memory + 256)[:1])
                log("free", d.cuGraphAddMemFreeNode(graph, behind, len(behind), memory)[:1])
                log("free again", d.cuGraphAddMemFreeNode(graph, behind, len(behind), memory)[:1])
                log("and by the stream", d.cuMemFreeAsync(memory, fork))
                log.note("the branch goes on from", len(info(fork)[1]), "as before",
                         [int(n) for n in info(fork)[1]] == [int(n) for n in behind])
            status = made(d.cuStreamIsCapturing(stream)).name.rpartition("_")[2]
            end = d.cuStreamEndCapture(stream)
            log(f"end, {status}", end[:1])
            if end[0] == 0:
                executable = log("instantiate", d.cuGraphInstantiate(end[1], 0))
                for _ in range(3):
                    log("launch", d.cuGraphLaunch(executable, stream))
                log("sync", d.cuStreamSynchronize(stream))
                there(log, "is there", memory)
                d.cuGraphExecDestroy(executable)
                d.cuGraphDestroy(end[1])
            d.cuStreamDestroy(stream)
            d.cuStreamDestroy(fork)
    d.cuDeviceGraphMemTrim(0)


@scenario
def a_free_node_added_from_another_thread(log):
    for mode in MODE:
        for own in (None, "RELAXED"):
            stream = made(d.cuStreamCreate(1))
            begin(stream, mode)
            memory = int(made(d.cuMemAllocAsync(MIB, stream)))
            graph, behind = info(stream)

            def there_is(graph=graph, behind=behind, memory=memory, own=own, mode=mode):
                if own:
                    d.cuThreadExchangeStreamCaptureMode(MODE[own])
                log(f"{mode}, the other thread's {own}: add", d.cuGraphAddMemFreeNode(graph, behind, len(behind), memory)[:1])

            on_thread(there_is)
            log.note("end", *ended(stream))
            begin(stream, mode)
            memory = int(made(d.cuMemAllocAsync(MIB, stream)))

            def captured(memory=memory, own=own, stream=stream):
                if own:
                    d.cuThreadExchangeStreamCaptureMode(MODE[own])
                log("free by the stream", d.cuMemFreeAsync(memory, stream))

            on_thread(captured)
            log.note("end", *ended(stream))
            d.cuStreamDestroy(stream)


@scenario
def allocating_beside_captures(log):
    """On a stream that is captured, while another one is, too; with the thread's mode exchanged and without."""
    for mode in MODE:
        for exchanged in (False, True):
            first, second = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
            begin(first, mode)
            begin(second)
            old = made(d.cuThreadExchangeStreamCaptureMode(RELAXED)) if exchanged else None
            memory = log(f"{mode}, exchanged: {exchanged}: allocate", d.cuMemAllocAsync(4096, second))
            log("free", d.cuMemFreeAsync(memory, second) if memory is not None and int(memory or 0) else (d.CUresult(1),))
            if exchanged:
                d.cuThreadExchangeStreamCaptureMode(old)
            log.note("end of the other", *ended(second))
            log.note("end of the first", *ended(first))
            begin(first, mode)
            plain = made(d.cuStreamCreate(1))
            old = made(d.cuThreadExchangeStreamCaptureMode(RELAXED))
            begin(plain)
            graph = made(d.cuStreamEndCapture(plain))
            executable = log("instantiate, exchanged", d.cuGraphInstantiate(graph, 0))
            log("destroy, exchanged", d.cuGraphExecDestroy(executable))
            d.cuThreadExchangeStreamCaptureMode(old)
            d.cuGraphDestroy(graph)
            log.note("end of the first", *ended(first))
            for stream in (first, second, plain):
                d.cuStreamDestroy(stream)


# --- memory over launches in flight -----------------------------------------------------------------------------

def allocating(stream, count=1):
    begin(stream)
    memory = [int(made(d.cuMemAllocAsync(MIB, stream))) for _ in range(count)]
    for address in memory:
        d.cuMemsetD8Async(address, 0x55, 64, stream)
    graph = made(d.cuStreamEndCapture(stream))
    return memory, graph


@scenario
def memory_of_launches_in_flight(log):
    """What is known of the memory while the launch, or the free, waits behind other work."""
    stream, other = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1))
    (memory,), graph = allocating(stream)
    there(log, "captured", memory)
    executable = made(d.cuGraphInstantiate(graph, 0))
    there(log, "instantiated", memory)
    log("upload", d.cuGraphUpload(executable, stream))
    d.cuStreamSynchronize(stream)
    there(log, "uploaded", memory)
    log("free", d.cuMemFreeAsync(memory, stream))
    busy(stream)
    log("launch behind work", d.cuGraphLaunch(executable, stream))
    there(log, "in flight", memory)
    log("launch again", d.cuGraphLaunch(executable, stream))
    log("free behind it", d.cuMemFreeAsync(memory, stream))
    there(log, "free in flight", memory)
    log("launch behind the free", d.cuGraphLaunch(executable, stream))
    there(log, "in flight again", memory)
    log("free behind it", d.cuMemFreeAsync(memory, stream))
    log("free again", d.cuMemFreeAsync(memory, stream))
    log("sync", d.cuStreamSynchronize(stream))
    there(log, "freed", memory)
    busy(stream)
    log("launch behind work", d.cuGraphLaunch(executable, stream))
    wait_for(other, stream)
    log("free on another stream that waits for it", d.cuMemFreeAsync(memory, other))
    log("launch again", d.cuGraphLaunch(executable, stream))
    log("free", d.cuMemFreeAsync(memory, stream))
    log("sync", d.cuCtxSynchronize())
    busy(stream)
    log("launch behind work", d.cuGraphLaunch(executable, stream))
    log("launch on another stream", d.cuGraphLaunch(executable, other))
    log("destroy the executable in flight", d.cuGraphExecDestroy(executable))
    there(log, "in flight, executable gone", memory)
    log("destroy the graph in flight", d.cuGraphDestroy(graph))
    there(log, "in flight, all gone", memory)
    log("sync", d.cuStreamSynchronize(stream))
    there(log, "all gone", memory)
    log("free", d.cuMemFreeAsync(memory, stream))
    log("free again", d.cuMemFreeAsync(memory, stream))
    log("sync", d.cuStreamSynchronize(stream))
    there(log, "freed, all gone", memory)
    (memory,), graph = allocating(stream)
    executable = made(d.cuGraphInstantiate(graph, 0))
    log("launch", d.cuGraphLaunch(executable, stream))
    log("free by the plain call", d.cuMemFree(memory))
    log("sync", d.cuStreamSynchronize(stream))
    d.cuGraphExecDestroy(executable)
    d.cuGraphDestroy(graph)
    d.cuDeviceGraphMemTrim(0)
    d.cuStreamDestroy(stream)
    d.cuStreamDestroy(other)


@scenario
def addresses_of_graphs_that_are_gone(log):
    """Whether an address is given out again: while the graph is there, and behind it."""
    stream = made(d.cuStreamCreate(1))
    held, graphs = [], []
    for _ in range(4):
        (memory,), graph = allocating(stream)
        held.append(memory)
        graphs.append(graph)
    log.note("while the graphs are there", len(set(held)))
    for graph in graphs:
        d.cuGraphDestroy(graph)
    seen = set()
    for _ in range(8):
        (memory,), graph = allocating(stream)
        seen.add(memory)
        d.cuGraphDestroy(graph)
    log.note("behind the graphs, some twice", len(seen) < 8)
    (armed,), graph = allocating(stream)
    executable = made(d.cuGraphInstantiate(graph, 0))
    d.cuGraphLaunch(executable, stream)
    d.cuGraphExecDestroy(executable)
    d.cuGraphDestroy(graph)
    later = []
    for _ in range(8):
        (memory,), graph = allocating(stream)
        later.append(memory)
        d.cuGraphDestroy(graph)
    log.note("memory that was launched and not freed keeps its address", armed not in later)
    log("free", d.cuMemFreeAsync(armed, stream))
    log("sync", d.cuStreamSynchronize(stream))
    d.cuDeviceGraphMemTrim(0)
    d.cuStreamDestroy(stream)


@scenario
def buffer_ids_of_graph_memory(log):
    """Whether each launch gives the memory a number of its own."""
    stream = made(d.cuStreamCreate(1))
    (memory,), graph = allocating(stream)
    executable = made(d.cuGraphInstantiate(graph, 0))
    numbers = []
    for _ in range(3):
        d.cuGraphLaunch(executable, stream)
        result = d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, memory)
        numbers.append(int(result[1]) if result[0] == 0 else result[0].name)
        d.cuMemFreeAsync(memory, stream)
    log.note("different numbers", len(set(numbers)), "of", len(numbers))
    d.cuStreamSynchronize(stream)
    d.cuGraphExecDestroy(executable)
    d.cuGraphDestroy(graph)
    d.cuDeviceGraphMemTrim(0)
    d.cuStreamDestroy(stream)


# --- updates and text -------------------------------------------------------------------------------------------

@scenario
def updates(log):
    stream, other, plain = made(d.cuStreamCreate(1)), made(d.cuStreamCreate(1)), made(d.cuMemAlloc(256))

    def captured(*work):
        begin(stream)
        for each in work:
            made(each() + (None,))
        return made(d.cuStreamEndCapture(stream))

    def set_to(value, count=8, at=0):
        return lambda: d.cuMemsetD8Async(int(plain) + at, value, count, stream)

    def branched():
        wait_for(other, stream)
        made(d.cuMemsetD8Async(int(plain) + 64, 3, 8, other) + (None,))
        made(d.cuMemsetD8Async(plain, 3, 8, stream) + (None,))
        wait_for(stream, other)
        return (d.CUresult(0),)

    def allocated():
        memory = d.cuMemAllocAsync(MIB, stream)[1]
        d.cuMemsetD8Async(memory, 1, 8, stream)
        return d.cuMemFreeAsync(memory, stream)

    copy = lambda: d.cuMemcpyDtoDAsync(plain, int(plain) + 128, 8, stream)  # noqa: E731
    graphs = {
        "itself": captured(set_to(1)), "another value": captured(set_to(2)), "another place": captured(set_to(2, at=64)),
        "another length": captured(set_to(2, 16)), "one more": captured(set_to(2), set_to(3)), "a copy": captured(copy),
        "nothing": captured(), "branches": captured(branched), "in a row": captured(set_to(3, at=64), set_to(3)),
        "memory": captured(allocated), "other memory": captured(allocated),
    }

    def update(label, executable, graph):
        class Info(ctypes.Structure):
            _fields_ = [("result", ctypes.c_int), ("node", ctypes.c_void_p), ("other", ctypes.c_void_p)]
        answer = Info(-1, None, None)
        result = driver.cuGraphExecUpdate_v2(ctypes.c_void_p(int(executable)), ctypes.c_void_p(int(graph)), ctypes.byref(answer))
        log(label, (d.CUresult(result),), answer.result)

    for base in ("itself", "branches", "memory"):
        executable = made(d.cuGraphInstantiate(graphs[base], 0))
        for name, graph in graphs.items():
            update(f"{base}: by {name}", executable, graph)
            log("  launch", d.cuGraphLaunch(executable, stream))
        log("  sync", d.cuStreamSynchronize(stream))
        d.cuGraphExecDestroy(executable)
    for mode in MODE:
        executable = made(d.cuGraphInstantiate(graphs["itself"], 0))
        begin(other, mode)
        update(f"beside a {mode} capture", executable, graphs["another value"])
        log.note("  end", *ended(other))
        d.cuGraphExecDestroy(executable)
    with tempfile.TemporaryDirectory() as folder:
        log("print", d.cuGraphDebugDotPrint(graphs["memory"], os.path.join(folder, "a.dot").encode(), 0))
        log("print all", d.cuGraphDebugDotPrint(graphs["memory"], os.path.join(folder, "a.dot").encode(), 1))
        log.note("something was written", os.path.getsize(os.path.join(folder, "a.dot")) > 0)
        log("print where no folder is", d.cuGraphDebugDotPrint(graphs["memory"], b"/nonexistent/folder/a.dot", 0))
    for graph in graphs.values():
        d.cuGraphDestroy(graph)
    d.cuDeviceGraphMemTrim(0)
    d.cuMemFree(plain)
    d.cuStreamDestroy(stream)
    d.cuStreamDestroy(other)


@scenario
def what_updates_and_launches_keep(log):
    """When the user objects of graphs are destroyed: by an update, by an end in flight."""
    called = []
    noted = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(int(data)))
    destructor = d.CUhostFn(ctypes.cast(noted, ctypes.c_void_p).value)
    stream, plain = made(d.cuStreamCreate(1)), made(d.cuMemAlloc(64))

    def seen(seconds=0.1):
        time.sleep(seconds)
        return sorted(called)

    graphs = []
    for number in (1, 2):
        begin(stream)
        d.cuMemsetD8Async(plain, number, 8, stream)
        graph = made(d.cuStreamEndCapture(stream))
        held = made(d.cuUserObjectCreate(number, destructor, 1, d.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        made(d.cuGraphRetainUserObject(graph, held, 1, d.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE) + (None,))
        graphs.append(graph)
    executable = made(d.cuGraphInstantiate(graphs[0], 0))
    d.cuGraphDestroy(graphs[0])
    log.note("first graph gone", *seen())
    busy(stream, 400)
    log("launch behind work", d.cuGraphLaunch(executable, stream))
    log("update in flight", d.cuGraphExecUpdate(executable, graphs[1])[:1])
    log.note("at once", *seen(0.05))
    log("sync", d.cuStreamSynchronize(stream))
    log.note("behind the launch", *seen())
    d.cuGraphDestroy(graphs[1])
    busy(stream, 400)
    log("launch behind work", d.cuGraphLaunch(executable, stream))
    log("destroy the executable in flight", d.cuGraphExecDestroy(executable))
    log.note("at once", *seen(0.05))
    log("sync", d.cuStreamSynchronize(stream))
    log.note("behind the launch", *seen())
    d.cuMemFree(plain)
    d.cuStreamDestroy(stream)


if __name__ == "__main__":
    main()
