# SPDX-License-Identifier: Apache-2.0
"""What was freed or unmapped cannot be used, and its address does not come back at once."""

import ctypes

import pytest

import cuda_driver_sim as sim
from sim_helpers import GRANULE, Mapped, cu, ok, run_python

TOUCH = """
import ctypes, sys
import cuda_driver_sim; cuda_driver_sim.activate()
from sim_helpers import *
ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
what = sys.argv[1]
if what in ("unmapped", "freed range", "reserved"):
    memory = Mapped(); address = memory.base
    ctypes.memset(address, 1, 16)
    if what == "reserved":
        address = int(ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)))
    else:
        ok(cu.cuMemUnmap(address, GRANULE))
    if what == "freed range":
        ok(cu.cuMemAddressFree(address, GRANULE))
else:
    plain = what == "plain"
    allocate, free = (cu.cuMemAlloc, cu.cuMemFree) if plain else (cu.cuMemAllocHost, cu.cuMemFreeHost)
    address = int(ok(allocate(64)))
    ctypes.memset(address, 1, 64)
    ok(free(address))
print("before", flush=True)
ctypes.memset(address, 1, 16)
print("after", flush=True)
"""


@pytest.mark.parametrize("what", ["unmapped", "freed range", "reserved", "plain", "host"])
def test_host_access_faults(what, monkeypatch):
    from pathlib import Path

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = run_python(TOUCH, what)
    assert done.stdout == "before\n", done.stderr
    assert done.returncode == -11


@pytest.mark.parametrize("kind", ["plain", "host", "virtual"])
def test_addresses_come_back_late(kind):
    seen = set()
    for _ in range(1000):
        if kind == "virtual":
            address = int(ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)))
            ok(cu.cuMemAddressFree(address, GRANULE))
        elif kind == "plain":
            address = int(ok(cu.cuMemAlloc(4096)))
            ok(cu.cuMemFree(address))
        else:
            address = int(ok(cu.cuMemAllocHost(4096)))
            ok(cu.cuMemFreeHost(address))
        seen.add(address)
    assert len(seen) == 1000


def test_a_free_address_is_given_when_asked_for():
    address = int(ok(cu.cuMemAddressReserve(4 * GRANULE, 0, 0, 0)))
    ok(cu.cuMemAddressFree(address, 4 * GRANULE))
    assert int(ok(cu.cuMemAddressReserve(GRANULE, 0, address + GRANULE, 0))) == address + GRANULE
    ok(cu.cuMemAddressFree(address + GRANULE, GRANULE))


def test_freed_pool_memory_is_refused(pool, stream):
    pointer = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    assert cu.cuMemsetD8Async(pointer, 1, 16, stream)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    assert cu.cuMemcpyDtoH(bytearray(16), pointer, 16)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE


def test_freed_pool_memory_is_poisoned_when_the_free_has_run(pool, stream):
    pointer = int(ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream)))
    ok(cu.cuMemsetD8Async(pointer, 1, 4096, stream))
    with sim.hold():
        ok(cu.cuMemFreeAsync(pointer, stream))
        assert ctypes.string_at(pointer, 64) == bytes([1]) * 64
    assert ctypes.string_at(pointer, 64) == bytes([0xDD]) * 64


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
