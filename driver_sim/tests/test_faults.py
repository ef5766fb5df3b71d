# SPDX-License-Identifier: Apache-2.0
"""What was freed or unmapped cannot be used, and its address does not come back at once."""

import ctypes
import signal

import pytest

import cuda_driver_sim as sim
from sim_helpers import GRANULE, Mapped, cu, make_pool, ok, properties_of_chunk, run_test_program

TOUCH = """
import ctypes, sys
from sim_helpers import *
start()
what, access = sys.argv[1:]
stream = ok(cu.cuStreamCreate(1))
inside = 0
if what in ("unmapped", "freed range", "reserved", "end of a mapping"):
    memory = Mapped(); address = memory.base
    ctypes.memset(address, 1, 16)
    if what == "reserved":
        address = int(ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)))
    elif what == "end of a mapping":
        address += GRANULE
    else:
        ok(cu.cuMemUnmap(address, GRANULE))
    if what == "freed range":
        ok(cu.cuMemAddressFree(address, GRANULE))
elif what == "freed pool":
    pool = make_pool()
    address = int(ok(cu.cuMemAllocFromPoolAsync(64, pool, stream)))
    ctypes.memset(address, 1, 16)
    ok(cu.cuMemPoolDestroy(pool))
    ctypes.memset(address, 1, 16)  # it lives until its last allocation is freed
    ok(cu.cuMemFreeAsync(address, stream))
elif what == "graph memory":
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    address = int(ok(cu.cuMemAllocAsync(64, stream)))
    graph = ok(cu.cuStreamEndCapture(stream))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ctypes.memset(address, 1, 16)
    ok(cu.cuMemFreeAsync(address, stream))
    ok(cu.cuGraphExecDestroy(executable)); ok(cu.cuGraphDestroy(graph))
else:
    allocate, free = {
        "plain": (cu.cuMemAlloc, cu.cuMemFree),
        "plain in order": (cu.cuMemAlloc, lambda address: cu.cuMemFreeAsync(address, stream)),
        "plain of a context that was reset": (cu.cuMemAlloc, lambda _: cu.cuDevicePrimaryCtxReset(0)),
        "host": (cu.cuMemAllocHost, cu.cuMemFreeHost),
        "managed": (lambda size: cu.cuMemAllocManaged(size, 1), cu.cuMemFree),
    }[what]
    address = int(ok(allocate(64)))
    ctypes.memset(address, 1, 64)
    ok(free(address))
print("before", flush=True)
if access == "write":
    ctypes.memset(address, 1, 16)
else:
    ctypes.string_at(address, 16)
print("after", flush=True)
"""


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(
    "what",
    [
        "unmapped",
        "freed range",
        "reserved",
        "end of a mapping",
        "plain",
        "plain in order",
        "plain of a context that was reset",
        "host",
        "managed",
        "graph memory",
        "freed pool",
    ],
)
def test_host_access_faults(what, access):
    assert run_test_program(TOUCH, what, access, returncode=-signal.SIGSEGV) == "before\n"


# The rule: a kind of address is handed out upwards from one stretch, and what was freed comes back only
# when the rest of the stretch has been used. Two things are outside of it: an address that is asked for and
# free is given, and a pool hands its own memory out again in stream order, as the device does.


@pytest.mark.parametrize("kind", ["plain", "host", "managed", "virtual", "pool"])
def test_addresses_come_back_late(kind):
    allocate, free = {
        "plain": (lambda: ok(cu.cuMemAlloc(4096)), cu.cuMemFree),
        "host": (lambda: ok(cu.cuMemAllocHost(4096)), cu.cuMemFreeHost),
        "managed": (lambda: ok(cu.cuMemAllocManaged(4096, 1)), cu.cuMemFree),
        "virtual": (
            lambda: ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)),
            lambda address: cu.cuMemAddressFree(address, GRANULE),
        ),
        "pool": (make_pool, cu.cuMemPoolDestroy),
    }[kind]
    seen = set()
    for _ in range(20 if kind == "pool" else 1000):
        made = allocate()
        if kind == "pool":
            address = ok(cu.cuMemAllocFromPoolAsync(64, made, 0))
            ok(cu.cuMemFreeAsync(address, 0))
        else:
            address = made
        ok(free(made))
        assert int(address) not in seen
        seen.add(int(address))


def test_addresses_come_back_after_the_whole_stretch():
    # Pieces so large that a few of them are the whole stretch.
    size = 1 << 43
    seen = []
    while True:
        error, address = cu.cuMemAddressReserve(size, 0, 0, 0)
        if error != cu.CUresult.CUDA_SUCCESS:
            pytest.skip("this process cannot have so many addresses")
        ok(cu.cuMemAddressFree(address, size))
        if any(abs(int(address) - other) < size for other in seen):
            break
        seen.append(int(address))
        assert len(seen) < 100
    assert len(seen) >= 3


def test_handles_of_chunks_do_not_come_back():
    seen = set()
    for _ in range(1000):
        chunk = ok(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0))
        ok(cu.cuMemRelease(chunk))
        assert cu.cuMemRelease(chunk)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        seen.add(int(chunk))
    assert len(seen) == 1000


def test_a_free_address_is_given_when_asked_for():
    address = int(ok(cu.cuMemAddressReserve(4 * GRANULE, 0, 0, 0)))
    ok(cu.cuMemAddressFree(address, 4 * GRANULE))
    assert int(ok(cu.cuMemAddressReserve(GRANULE, 0, address + GRANULE, 0))) == address + GRANULE
    ok(cu.cuMemAddressFree(address + GRANULE, GRANULE))


def test_freed_pool_memory_is_refused(pool, stream):
    pointer = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    good = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    out = bytearray(16)
    calls = {
        "set": cu.cuMemsetD8Async(pointer, 1, 16, stream),
        "set now": cu.cuMemsetD32(pointer, 1, 4),
        "set rows": cu.cuMemsetD2D8Async(pointer, 16, 1, 8, 2, stream),
        "read": cu.cuMemcpyDtoH(out, pointer, 16),
        "write": cu.cuMemcpyHtoD(pointer, bytes(16), 16),
        "copy from": cu.cuMemcpyAsync(good, pointer, 16, stream),
        "copy to": cu.cuMemcpyDtoDAsync(pointer, good, 16, stream),
        "attribute": cu.cuPointerGetAttribute(
            cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer
        ),
        "export": cu.cuMemPoolExportPointer(pointer),
        "free": cu.cuMemFree(pointer),
        "free in order": cu.cuMemFreeAsync(pointer, stream),
    }
    refused = {name for name, answer in calls.items() if answer[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE}
    assert refused == calls.keys()
    assert sim.refused().total == len(calls)
    ok(cu.cuMemFreeAsync(good, stream))


@pytest.mark.parametrize("size", [1, 256, 512, 513, 4096, 3 << 20])
def test_freed_pool_memory_is_poisoned_when_the_free_has_run(size, pool, stream):
    def ends():
        return ctypes.string_at(pointer, min(size, 256)), ctypes.string_at(pointer + size - 1, 1)

    pointer = int(ok(cu.cuMemAllocFromPoolAsync(size, pool, stream)))
    ok(cu.cuMemsetD8Async(pointer, 1, size, stream))
    with sim.hold():
        ok(cu.cuMemFreeAsync(pointer, stream))
        assert ends() == (bytes([1]) * min(size, 256), b"\1")
    assert ends() == (bytes([0xDD]) * min(size, 256), b"\xdd")


USE_AFTER_FREE = """
from sim_helpers import *
start()
first, second = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
pointer = ok(cu.cuMemAllocAsync(4096, first))
with sim.hold():
    ok(cu.cuMemsetD8Async(pointer, 1, 16, second))
    ok(cu.cuMemFreeAsync(pointer, first))
    ok(cu.cuStreamSynchronize(first))
    print(cu.cuStreamSynchronize(second)[0].name)
"""


def test_work_that_runs_after_the_free_is_reported():
    assert run_test_program(USE_AFTER_FREE) == "CUDA_ERROR_ILLEGAL_ADDRESS\n"


def test_a_new_chunk_is_zero_and_does_not_remember():
    for value in (1, 2):
        memory = Mapped()
        assert ctypes.string_at(memory.base, 64) == bytes(64)
        ctypes.memset(memory.base, value, GRANULE)
        memory.close()


def test_many_mappings_and_chunks():
    memories = [Mapped() for _ in range(3000)]
    for number, memory in enumerate(memories):
        ok(cu.cuMemsetD32(memory.base, number, 4))
    for number, memory in enumerate(memories):
        assert int.from_bytes(ctypes.string_at(memory.base, 4), "little") == number
        memory.close()
