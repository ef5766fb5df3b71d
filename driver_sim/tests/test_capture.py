# SPDX-License-Identifier: Apache-2.0
"""What a capture allows meanwhile, by mode; looked up call by call on an H200."""

import ctypes
import threading

import pytest

from sim_helpers import GRANULE, Mapped, cu, ok, properties_of_chunk, read_write

MODE = cu.CUstreamCaptureMode
UNSUPPORTED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
INVALIDATED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
STRICT = [MODE.CU_STREAM_CAPTURE_MODE_GLOBAL, MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL]
MODES = [*STRICT, MODE.CU_STREAM_CAPTURE_MODE_RELAXED]


class Things:
    """What the calls need, made before the capture and returned after it."""

    def __init__(self, stream):
        self.stream = stream
        self.memory, self.plain, self.host = Mapped(), ok(cu.cuMemAlloc(64)), ok(cu.cuMemAllocHost(64))
        self.event = ok(cu.cuEventCreate(2))
        ok(cu.cuEventRecord(self.event, stream))
        self.pool = ok(cu.cuMemPoolCreate(self.pool_properties()))
        self.pooled = ok(cu.cuMemAllocFromPoolAsync(64, self.pool, stream))
        ok(cu.cuCtxSynchronize())
        self.undo = []

    @staticmethod
    def pool_properties():
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        return properties

    def made(self, answer, free):
        """Give back what a call has made when the capture is over."""
        if answer[0] == 0:
            self.undo.append(lambda: ok(free(answer[1])))
        return answer

    def close(self):
        for undo in self.undo:
            undo()
        for free, argument in ((cu.cuMemFree, self.plain), (cu.cuMemFreeHost, self.host)):
            free(argument)
        cu.cuMemFreeAsync(self.pooled, self.stream)
        ok(cu.cuMemPoolDestroy(self.pool))
        ok(cu.cuEventDestroy(self.event))
        self.memory.close()


USED = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
# Refused in the strict modes, and the end of the capture.
FORBIDDEN = {
    "cuMemAlloc": lambda t: t.made(cu.cuMemAlloc(64), cu.cuMemFree),
    "cuMemAllocHost": lambda t: t.made(cu.cuMemAllocHost(64), cu.cuMemFreeHost),
    "cuMemAllocManaged": lambda t: t.made(cu.cuMemAllocManaged(64, 1), cu.cuMemFree),
    "cuMemFree": lambda t: cu.cuMemFree(t.plain),
    "cuMemFreeHost": lambda t: cu.cuMemFreeHost(t.host),
    "cuMemPoolCreate": lambda t: t.made(cu.cuMemPoolCreate(t.pool_properties()), cu.cuMemPoolDestroy),
    "cuMemPoolTrimTo": lambda t: cu.cuMemPoolTrimTo(t.pool, 0),
    "cuMemPoolGetAttribute": lambda t: cu.cuMemPoolGetAttribute(t.pool, USED),
    "cuMemFreeAsync elsewhere": lambda t: cu.cuMemFreeAsync(t.pooled, t.stream),
    "cuEventQuery": lambda t: cu.cuEventQuery(t.event),
    "cuEventSynchronize": lambda t: cu.cuEventSynchronize(t.event),
    "cuStreamQuery elsewhere": lambda t: cu.cuStreamQuery(t.stream),
    "cuStreamSynchronize elsewhere": lambda t: cu.cuStreamSynchronize(t.stream),
}
# Fine in every mode.
ALLOWED = {
    "cuMemCreate": lambda t: t.made(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0), cu.cuMemRelease),
    "cuMemAddressReserve": lambda t: t.made(
        cu.cuMemAddressReserve(GRANULE, 0, 0, 0), lambda p: cu.cuMemAddressFree(p, GRANULE)
    ),
    "cuMemSetAccess": lambda t: cu.cuMemSetAccess(t.memory.base, GRANULE, [read_write()], 1),
    "cuMemsetD8": lambda t: cu.cuMemsetD8(t.plain, 1, 16),
    "cuMemcpyDtoH": lambda t: cu.cuMemcpyDtoH(bytearray(16), t.plain, 16),
    "cuMemGetInfo": lambda t: cu.cuMemGetInfo(),
    "cuEventCreate": lambda t: t.made(cu.cuEventCreate(0), cu.cuEventDestroy),
    "cuStreamCreate": lambda t: t.made(cu.cuStreamCreate(1), cu.cuStreamDestroy),
    "cuDeviceGetDefaultMemPool": lambda t: cu.cuDeviceGetDefaultMemPool(0),
}


@pytest.fixture
def things(other_stream):
    made = Things(other_stream)
    yield made
    made.close()


def end(stream):
    error, graph = cu.cuStreamEndCapture(stream)
    if error == 0:
        ok(cu.cuGraphDestroy(graph))
    return error


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name[23:])
@pytest.mark.parametrize("call", FORBIDDEN)
def test_forbidden_calls(mode, call, things, stream):
    ok(cu.cuStreamBeginCapture(stream, mode))
    error = FORBIDDEN[call](things)[0]
    if mode in STRICT:
        assert (error, end(stream)) == (UNSUPPORTED, INVALIDATED)
    else:
        assert (error, end(stream)) == (0, 0)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name[23:])
@pytest.mark.parametrize("call", ALLOWED)
def test_allowed_calls(mode, call, things, stream):
    ok(cu.cuStreamBeginCapture(stream, mode))
    ok(ALLOWED[call](things))
    assert end(stream) == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name[23:])
@pytest.mark.parametrize("call", [cu.cuStreamQuery, cu.cuStreamSynchronize, lambda s: cu.cuCtxSynchronize()])
def test_waiting_for_the_capture_itself(mode, call, stream):
    ok(cu.cuStreamBeginCapture(stream, mode))
    assert call(stream)[0] == UNSUPPORTED
    assert end(stream) == INVALIDATED


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name[23:])
def test_another_thread_disturbs_only_a_global_capture(mode, stream, context):
    errors = []

    def other():
        cu.cuCtxSetCurrent(context)
        error, pointer = cu.cuMemAlloc(64)
        if error == 0:
            cu.cuMemFree(pointer)
        errors.append(error)

    ok(cu.cuStreamBeginCapture(stream, mode))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    is_global = mode == MODE.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert errors == [UNSUPPORTED if is_global else 0]
    assert end(stream) == (INVALIDATED if is_global else 0)


def test_an_event_from_outside_breaks_isolation(things, stream):
    ok(cu.cuStreamBeginCapture(stream, MODE.CU_STREAM_CAPTURE_MODE_RELAXED))
    error = cu.cuStreamWaitEvent(stream, things.event, 0)[0]
    assert error == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    assert end(stream) == INVALIDATED


def test_a_forked_stream_joins_and_must_be_joined(stream, other_stream):
    for join in (True, False):
        fork, back = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
        memory = Mapped()
        ok(cu.cuStreamBeginCapture(stream, MODE.CU_STREAM_CAPTURE_MODE_RELAXED))
        ok(cu.cuEventRecord(fork, stream))
        ok(cu.cuStreamWaitEvent(other_stream, fork, 0))
        ok(cu.cuMemsetD8Async(memory.base, 1, 16, other_stream))
        ok(cu.cuEventRecord(back, other_stream))
        if join:
            ok(cu.cuStreamWaitEvent(stream, back, 0))
        assert end(stream) == (0 if join else cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        assert ok(cu.cuStreamIsCapturing(other_stream)) == 0
        ok(cu.cuEventDestroy(fork))
        ok(cu.cuEventDestroy(back))
        memory.close()


@pytest.mark.simulation
def test_the_graph_of_a_running_capture_can_be_looked_at(things, stream):
    """As cuda.h says: all but destroying it."""
    destroyed = threading.Event()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: destroyed.set())
    driver = ctypes.CDLL("libcuda.so.1")
    for end_well in (True, False):
        destroyed.clear()
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        graph = ok(cu.cuStreamGetCaptureInfo(stream))[2]
        ok(cu.cuMemsetD8Async(things.plain, 1, 16, stream))
        node = ok(cu.cuGraphGetNodes(graph, 1))[0][0]
        assert int(ok(cu.cuGraphGetRootNodes(graph, 1))[0][0]) == int(node)
        assert ok(cu.cuGraphNodeGetType(node)) == cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
        held = ctypes.c_void_p()
        assert driver.cuUserObjectCreate(ctypes.byref(held), None, function, 1, 1) == 0
        ok(cu.cuGraphRetainUserObject(graph, cu.CUuserObject(held.value), 1, 1))
        assert cu.cuGraphDestroy(graph)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        assert cu.cuGraphInstantiate(graph, 0)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        if end_well:
            assert int(ok(cu.cuStreamEndCapture(stream))) == int(graph)
            assert not destroyed.is_set()
            ok(cu.cuGraphDestroy(graph))
        else:
            cu.cuStreamSynchronize(stream)
            assert cu.cuStreamEndCapture(stream)[0] == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        assert destroyed.wait(20)
