# SPDX-License-Identifier: Apache-2.0
"""Sizes that run over the end of all addresses, and lists with nulls in them: refused, and nothing happens.

The calls go past the bindings, which keep some of them from the driver.
"""

import ctypes
import mmap
import os

import pytest

from sim_helpers import GRANULE, Mapped, cu, make_pool, ok, read_write, run_test_program

INVALID_VALUE = cu.CUresult.CUDA_ERROR_INVALID_VALUE
HUGE = [2**64 - 1, 2**64 - 8, 2**64 - 4096, 2**64 - GRANULE, 2**63]

driver = ctypes.CDLL("libcuda.so.1")


def number(value):
    return ctypes.c_uint64(int(value))


@pytest.fixture
def mapped():
    memory = Mapped()
    yield memory
    memory.close()


@pytest.fixture
def managed():
    pointer = ok(cu.cuMemAllocManaged(4096, 1))
    yield pointer
    ok(cu.cuMemFree(pointer))


@pytest.mark.parametrize("size", HUGE)
def test_virtual_memory_over_the_end(mapped, size):
    assert driver.cuMemUnmap(number(mapped.base), number(size)) == INVALID_VALUE
    assert cu.cuMemSetAccess(mapped.base, size, [read_write()], 1)[0] == INVALID_VALUE
    to_the_end = 2**64 - mapped.base
    assert (
        cu.cuMemSetAccess(mapped.base + GRANULE, to_the_end - GRANULE, [read_write()], 1)[0] == INVALID_VALUE
    )
    assert driver.cuMemMap(
        number(2**64 - GRANULE), number(GRANULE), number(0), number(mapped.chunk), number(0)
    ) == (INVALID_VALUE)
    assert driver.cuMemUnmap(number(2**64 - GRANULE), number(GRANULE)) == INVALID_VALUE


@pytest.mark.parametrize("size", HUGE)
def test_managed_memory_over_the_end(managed, stream, size):
    place = cu.CUmemLocation()
    place.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    advice = cu.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY
    question = cu.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
    assert cu.cuMemAdvise(managed, size, advice, place)[0] == INVALID_VALUE
    assert cu.cuMemPrefetchAsync(managed, size, place, 0, stream)[0] == INVALID_VALUE
    answer = ctypes.c_int(7)
    asked = driver.cuMemRangeGetAttribute(
        ctypes.byref(answer), number(4), int(question), number(managed), number(size)
    )
    assert (asked, answer.value) == (INVALID_VALUE, 7)


@pytest.mark.parametrize("size", HUGE)
def test_host_memory_is_not_registered_over_the_end(size):
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert driver.cuMemHostRegister_v2(number(address), number(size), 0) == INVALID_VALUE


@pytest.mark.simulation
def test_only_memory_of_the_process_can_be_registered(mapped):
    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ok(cu.cuMemHostRegister(address, 1 << 20, 0))
    ok(cu.cuMemHostUnregister(address))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(number(address), number(1 << 20), 3) == 0
    libc.munmap(number(address + 4096), number(4096))
    assert cu.cuMemHostRegister(address, 1 << 20, 0)[0] == INVALID_VALUE
    # From the program's memory into what the driver gives out.
    lowest = 1 << 16
    assert cu.cuMemHostRegister(lowest, mapped.base + 4096 - lowest, 0)[0] == INVALID_VALUE


def test_lists_with_nulls(managed):
    nothing, kind = (ctypes.c_void_p * 1)(None), (ctypes.c_int * 1)(2)
    assert driver.cuPointerGetAttributes(1, kind, nothing, number(managed)) == INVALID_VALUE
    size, question = (ctypes.c_size_t * 1)(4), (ctypes.c_int * 1)(1)
    asked = driver.cuMemRangeGetAttributes(nothing, size, question, number(1), number(managed), number(4096))
    assert asked == INVALID_VALUE


@pytest.mark.parametrize("most", [2**64 - 1, 2**64 - (32 << 20), 2**63, 1 << 41])
@pytest.mark.simulation
def test_a_pool_may_be_allowed_more_than_there_is(most, stream):
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.maxSize = most
    pool = ok(cu.cuMemPoolCreate(properties))
    pointer = ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream))
    ok(cu.cuMemsetD8Async(pointer, 1, 4096, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuMemPoolDestroy(pool))


@pytest.mark.simulation
def test_the_name_of_a_device_takes_no_more_room_than_it_needs():
    room = ctypes.create_string_buffer(b"x" * 63)
    assert driver.cuDeviceGetName(room, 60, 0) == 0
    assert room.raw[len(room.value) + 1 : 63] == b"x" * (62 - len(room.value))


def test_destroyed_events_keep_no_descriptor(stream):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        event = ok(cu.cuEventCreate(6))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuEventDestroy(event))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.simulation
def test_destroyed_pools_keep_no_memory(stream):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE

    def round_of_pools():
        pool = make_pool()
        pointers = [ok(cu.cuMemAllocFromPoolAsync(256, pool, stream)) for _ in range(20_000)]
        for pointer in pointers:
            ok(cu.cuMemFreeAsync(pointer, stream))
        ok(cu.cuMemPoolDestroy(pool))

    round_of_pools()
    before = resident()
    for _ in range(10):
        round_of_pools()
    assert resident() - before < 12 << 20


@pytest.mark.simulation
def test_a_capture_on_the_own_default_stream_ends_with_its_context():
    program = """
from sim_helpers import *
start()
ok(cu.cuStreamBeginCapture(cu.CUstream(2), cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(cu.cuDevicePrimaryCtxReset(0))
start()
ok(cu.cuMemFree(ok(cu.cuMemAlloc(100))))
"""
    run_test_program(program)
