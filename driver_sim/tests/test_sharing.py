# SPDX-License-Identifier: Apache-2.0
"""Memory and events between processes."""

import ctypes
import multiprocessing
import os
from multiprocessing import reduction

import pytest

import cuda_driver_sim as sim
from sim_helpers import GRANULE, Mapped, cu, make_pool, ok, read, read_write

FILE_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def start():
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))


def use_chunk(pipe):
    start()
    descriptor = reduction.recv_handle(pipe)
    pipe.recv()  # the exporter has let go of everything
    chunk = ok(cu.cuMemImportFromShareableHandle(descriptor, FILE_DESCRIPTOR))
    os.close(descriptor)
    base = int(ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)))
    ok(cu.cuMemMap(base, GRANULE, 0, chunk, 0))
    ok(cu.cuMemRelease(chunk))
    ok(cu.cuMemSetAccess(base, GRANULE, [read_write()], 1))
    pipe.send(read(base, 4))
    ok(cu.cuMemUnmap(base, GRANULE))
    ok(cu.cuMemAddressFree(base, GRANULE))
    pipe.send(sim.live())


def use_event(pipe):
    start()
    handle = cu.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), pipe.recv(), 64)
    event = ok(cu.cuIpcOpenEventHandle(handle))
    pipe.send(cu.cuEventQuery(event)[0])
    pipe.recv()
    ok(cu.cuEventSynchronize(event))
    pipe.send(cu.cuEventQuery(event)[0])


def open_event(pipe):
    start()
    handle = cu.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), pipe.recv(), 64)
    pipe.send(cu.cuIpcOpenEventHandle(handle)[0])


def record_and_die(pipe):
    start()
    event, stream = ok(cu.cuEventCreate(6)), ok(cu.cuStreamCreate(1))
    with sim.hold():
        ok(cu.cuEventRecord(event, stream))
        pipe.send(ctypes.string_at(ok(cu.cuIpcGetEventHandle(event)).getPtr(), 64))
        pipe.recv()
        os._exit(0)


@pytest.fixture
def child():
    """Start a function in a spawned process, with a pipe to it."""
    started = []

    def begin(function):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(theirs,))
        process.start()
        theirs.close()
        started.append(process)
        return ours, process

    yield begin
    for process in started:
        process.join(60)
        assert process.exitcode == 0


def test_a_chunk_outlives_its_exporter(child):
    pipe, process = child(use_chunk)
    descriptors = len(os.listdir("/proc/self/fd"))
    memory = Mapped()
    ok(cu.cuMemsetD8(memory.base, 0x42, GRANULE))
    descriptor = int(ok(cu.cuMemExportToShareableHandle(memory.chunk, FILE_DESCRIPTOR, 0)))
    assert read(memory.base, 4) == b"\x42" * 4
    reduction.send_handle(pipe, descriptor, process.pid)
    os.close(descriptor)
    memory.close()
    pipe.send("gone")
    assert pipe.recv() == b"\x42" * 4
    assert pipe.recv() == {"primary_context": 1}
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_exported_chunk_keeps_its_aliases():
    memory = Mapped()
    alias = int(ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0)))
    ok(cu.cuMemMap(alias, GRANULE, 0, memory.chunk, 0))
    ok(cu.cuMemSetAccess(alias, GRANULE, [read_write()], 1))
    ok(cu.cuMemsetD8(memory.base, 1, 16))
    os.close(int(ok(cu.cuMemExportToShareableHandle(memory.chunk, FILE_DESCRIPTOR, 0))))
    assert read(alias, 16) == bytes([1]) * 16
    ok(cu.cuMemsetD8(alias, 2, 16))
    assert read(memory.base, 16) == bytes([2]) * 16
    ok(cu.cuMemUnmap(alias, GRANULE))
    ok(cu.cuMemAddressFree(alias, GRANULE))
    memory.close()


def test_an_event_is_seen_by_the_other_process(child, stream):
    pipe, _ = child(use_event)
    event = ok(cu.cuEventCreate(6))
    with sim.hold():
        ok(cu.cuEventRecord(event, stream))
        pipe.send(ctypes.string_at(ok(cu.cuIpcGetEventHandle(event)).getPtr(), 64))
        assert pipe.recv() == cu.CUresult.CUDA_ERROR_NOT_READY
        pipe.send("go on")
        ok(cu.cuStreamSynchronize(stream))
        assert pipe.recv() == cu.CUresult.CUDA_SUCCESS
    ok(cu.cuEventDestroy(event))


@pytest.mark.parametrize("becomes", ["nothing", "an empty file", "another event"])
def test_a_destroyed_event_is_not_opened(child, becomes, tmp_path):
    pipe, _ = child(open_event)
    event = ok(cu.cuEventCreate(6))
    handle = ctypes.string_at(ok(cu.cuIpcGetEventHandle(event)).getPtr(), 64)
    ok(cu.cuEventDestroy(event))
    other = None
    if becomes == "an empty file":  # which gets the number of the descriptor that is free now
        other = (tmp_path / "file").open("w")
    elif becomes == "another event":
        other = ok(cu.cuEventCreate(6))
    pipe.send(handle)
    assert pipe.recv() == cu.CUresult.CUDA_ERROR_INVALID_HANDLE
    if becomes == "another event":
        ok(cu.cuEventDestroy(other))


@pytest.mark.simulation
def test_an_exporter_that_dies_does_not_leave_others_waiting(child, stream):
    pipe, process = child(record_and_die)
    handle = cu.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), pipe.recv(), 64)
    event = ok(cu.cuIpcOpenEventHandle(handle))
    assert cu.cuEventQuery(event)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    pipe.send("die")
    process.join(60)
    ok(cu.cuEventSynchronize(event))
    ok(cu.cuEventQuery(event))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    ok(cu.cuEventDestroy(event))


def test_freeing_an_imported_pointer_is_ordered_by_its_stream(stream, other_stream):
    pool = make_pool(shareable=True)
    pointer = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    descriptor = int(ok(cu.cuMemPoolExportToShareableHandle(pool, FILE_DESCRIPTOR, 0)))
    imported = ok(cu.cuMemPoolImportFromShareableHandle(descriptor, FILE_DESCRIPTOR, 0))
    os.close(descriptor)
    data = ok(cu.cuMemPoolExportPointer(pointer))
    there = ok(cu.cuMemPoolImportPointer(imported, data))
    with sim.hold():
        ok(cu.cuMemsetD8Async(there, 7, 64, stream))
        ok(cu.cuMemFreeAsync(there, stream))
        assert cu.cuMemsetD8Async(there, 8, 64, stream)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        assert cu.cuMemFreeAsync(there, stream)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
        # Imported once more before the free has run, it is another import.
        assert int(ok(cu.cuMemPoolImportPointer(imported, data))) == int(there)
        ok(cu.cuStreamSynchronize(stream))
    assert read(pointer, 64) == bytes([7]) * 64
    ok(cu.cuMemsetD8Async(there, 9, 64, other_stream))
    ok(cu.cuMemFreeAsync(there, other_stream))
    ok(cu.cuMemPoolDestroy(imported))
    assert read(pointer, 64) == bytes([9]) * 64
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuMemPoolDestroy(pool))


def shared_pool(numa=None):
    """Return a pool, the same as imported, a pointer of it, and the name of the pointer."""
    pool = make_pool(shareable=True, numa=numa)
    stream = ok(cu.cuStreamCreate(1))
    pointer = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuStreamDestroy(stream))
    descriptor = int(ok(cu.cuMemPoolExportToShareableHandle(pool, FILE_DESCRIPTOR, 0)))
    imported = ok(cu.cuMemPoolImportFromShareableHandle(descriptor, FILE_DESCRIPTOR, 0))
    return pool, imported, pointer, ok(cu.cuMemPoolExportPointer(pointer)), descriptor


def result_of(answer):
    return answer[0].name.removeprefix("CUDA_").removeprefix("ERROR_")


@pytest.mark.parametrize("numa", [None, 0])
def test_an_imported_pool_is_one_however_often_it_is_opened(stream, numa):
    """It answers no question, and is not given up while something is imported (recorded on an H200)."""
    pool, imported, pointer, name, descriptor = shared_pool(numa)
    again = ok(cu.cuMemPoolImportFromShareableHandle(descriptor, FILE_DESCRIPTOR, 0))
    os.close(descriptor)
    assert int(again) == int(imported)
    for attribute in cu.CUmemPool_attribute:
        assert result_of(cu.cuMemPoolGetAttribute(imported, attribute)) == "INVALID_VALUE"
    assert result_of(cu.cuMemPoolTrimTo(imported, 0)) == "INVALID_VALUE"
    there = ok(cu.cuMemPoolImportPointer(imported, name))
    second = cu.cuMemPoolImportPointer(again, name)
    if numa is None:
        assert int(ok(second)) == int(there)
    else:
        assert result_of(second) == "ALREADY_MAPPED"
    with sim.hold():
        ok(cu.cuMemFreeAsync(there, stream))
        assert result_of(cu.cuMemPoolDestroy(again)) == "INVALID_VALUE"
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(again))
    ok(cu.cuMemFreeAsync(ok(cu.cuMemPoolImportPointer(imported, name)), stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(imported))
    assert result_of(cu.cuMemPoolDestroy(imported)) == "INVALID_VALUE"
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(pool))


def test_each_pending_free_of_an_import_ends_its_own(stream, other_stream):
    """Also the one that runs first, of what was imported last (recorded on an H200)."""
    pool, imported, pointer, name, descriptor = shared_pool()
    os.close(descriptor)
    there = ok(cu.cuMemPoolImportPointer(imported, name))
    with sim.hold():
        ok(cu.cuMemsetD8Async(there, 7, 64, stream))
        ok(cu.cuMemFreeAsync(there, stream))
        assert int(ok(cu.cuMemPoolImportPointer(imported, name))) == int(there)
        ok(cu.cuMemFreeAsync(there, other_stream))
        ok(cu.cuStreamSynchronize(other_stream))
        ok(cu.cuStreamSynchronize(stream))
    assert read(pointer, 64) == bytes([7]) * 64
    assert result_of(cu.cuMemsetD8Async(there, 8, 64, stream)) == "INVALID_VALUE"
    ok(cu.cuMemPoolDestroy(imported))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(pool))


def test_what_is_no_pool_and_what_is_no_chunk(tmp_path):
    """Each kind of wrong descriptor has its answer (recorded on an H200)."""
    pool, imported, pointer, _, of_pool = shared_pool()
    chunk = Mapped()
    of_chunk = int(ok(cu.cuMemExportToShareableHandle(chunk.chunk, FILE_DESCRIPTOR, 0)))
    file = os.open(tmp_path, os.O_RDONLY)
    for number, as_pool, as_chunk in (
        (0, "INVALID_VALUE", "INVALID_VALUE"),
        (999, "UNKNOWN", "UNKNOWN"),
        (file, "UNKNOWN", "UNKNOWN"),
        (of_pool, "SUCCESS", "NOT_SUPPORTED"),
        (of_chunk, "NOT_SUPPORTED", "SUCCESS"),
    ):
        opened = cu.cuMemPoolImportFromShareableHandle(number, FILE_DESCRIPTOR, 0)
        assert result_of(opened) == as_pool, number
        if as_pool == "SUCCESS":
            ok(cu.cuMemPoolDestroy(opened[1]))
        opened = cu.cuMemImportFromShareableHandle(number, FILE_DESCRIPTOR)
        assert result_of(opened) == as_chunk, number
        if as_chunk == "SUCCESS":
            ok(cu.cuMemRelease(opened[1]))
    for number in (file, of_pool, of_chunk):
        os.close(number)
    chunk.close()
    ok(cu.cuMemFree(pointer))
    ok(cu.cuMemPoolDestroy(imported))
    ok(cu.cuMemPoolDestroy(pool))
