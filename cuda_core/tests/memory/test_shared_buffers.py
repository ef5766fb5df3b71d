# SPDX-License-Identifier: Apache-2.0
"""Imported buffers: one mapping for each pointer, counted; who frees it, when, and behind what."""

import copy
import gc
import pickle

import pytest

from buffer_kinds import ENDINGS, end
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    DeviceMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from cuda.core._memory import _counters
from cuda.core._memory._ipc import IPCBufferDescriptor
from cuda.core._memory._queue import drain
from shared_pools import KINDS, SIZE, RawShare, Shared, opened, payload_of
from support import check, fill, holds, read, warnings_seen, write

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=KINDS)
def shared(request, stream):
    shared = Shared(request.param, stream)
    yield shared
    shared.close()


def frees(watch, function):
    calls = watch.calls_of(function)
    return calls.get("cuMemFreeAsync", 0) + calls.get("cuMemFree", 0)


def test_what_an_import_says_of_itself(shared):
    buffer = shared.imported()
    assert (buffer.ownership, buffer.size, buffer.loans) == (Ownership.OWNED, SIZE, 0)
    assert (buffer.is_mapped, shared.buffer.is_mapped) == (True, False)
    assert buffer.memory_resource is shared.there
    assert buffer.owner is None
    assert buffer.device_id == shared.resource.device_id
    assert buffer.is_host_accessible == shared.buffer.is_host_accessible
    assert buffer[0:16].is_mapped
    assert not shared.buffer[0:16].is_mapped
    buffer.close()
    with pytest.raises(OwnershipError, match="has been closed"):
        buffer.is_mapped  # noqa: B018


def test_both_see_what_the_other_writes(shared):
    buffer = shared.imported()
    write(shared.buffer.handle, b"from the exporter")
    assert read(buffer.handle, 17) == b"from the exporter"
    write(buffer.handle, b"from the importer")
    assert read(shared.buffer.handle, 17) == b"from the importer"
    buffer.close()
    shared.stream.sync()
    assert read(shared.buffer.handle, 17) == b"from the importer"


@pytest.mark.watched
@pytest.mark.parametrize("ending", ENDINGS)
def test_ipc_01_one_pointer_is_one_mapping_however_often_it_is_imported(driver_watch, shared, ending):
    buffers = [shared.imported() for _ in range(3)]
    address = buffers[0].handle
    assert [buffer.handle for buffer in buffers] == [address] * 3
    assert _counters.live()["imports"] == 1

    def all_but_one():
        end([buffers.pop()], ending)
        end([buffers.pop(0)], ending)

    assert frees(driver_watch, all_but_one) == 0
    fill(address, SIZE, seed=3)
    assert holds(shared.buffer.handle, SIZE, seed=3)
    assert frees(driver_watch, lambda: end([buffers.pop()], ending)) == 1
    assert "imports" not in _counters.live()


@pytest.mark.provokes_refusals
def test_after_the_last_share_the_address_is_unmapped(shared):
    buffers = [shared.imported() for _ in range(2)]
    address = buffers[0].handle
    for buffer in buffers:
        assert buffer.close() is CloseResult.DONE
    shared.stream.sync()
    assert driver.cuMemFreeAsync(address, 0)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    again = shared.imported()
    assert again.close() is CloseResult.DONE


@pytest.mark.sim_only
def test_the_free_comes_behind_the_streams_of_all_shares(driver_watch, device, shared):
    """Also behind those that were closed before the last: their work still uses the mapping."""
    first, second = device.create_stream(), device.create_stream()
    one, other = shared.imported(first), shared.imported(second)
    address = one.handle
    with driver_watch.sim.hold():
        if shared.there.device_id == 0:
            one.fill(7, stream=first)
        one.close()
        other.close()
        assert _counters.live().get("imports", 0) == 0
        # The last was closed on a stream that is idle; the mapping must stay for the work of the first.
        driver_watch.sim.run(int(second.handle))
        first.sync()
    if shared.there.device_id == 0:
        assert read(shared.buffer.handle, 8) == b"\7" * 8
    assert address
    first.close()
    second.close()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sim_only
def test_no_order_of_streams_frees_under_work_of_another_share(driver_watch, device, stream, seed):
    shared = Shared("device", stream)
    streams = [device.create_stream() for _ in range(3)]
    buffers = [shared.imported(each) for each in streams]
    with driver_watch.sim.interleave(seed), driver_watch.sim.hold():
        for number, each in enumerate(streams):
            buffers[number].fill(number, stream=each)
        for buffer in buffers:
            buffer.close()
        check(driver.cuCtxSynchronize())  # an illegal address if the mapping went too early
    for each in streams:
        each.close()
    shared.close()


@pytest.mark.sim_only
def test_a_long_import_does_not_keep_the_streams_of_short_ones(driver_watch, device, shared):
    kept = shared.imported()
    before = _counters.live()["stream_handles"]
    with driver_watch.sim.hold():
        for _ in range(40):
            short = device.create_stream()
            buffer = shared.imported(short)
            if shared.there.device_id == 0:
                buffer.fill(1, stream=short)
            buffer.close()
            short.sync()
            short.close()
    assert _counters.live()["stream_handles"] <= before + 9
    kept.close()


def test_an_import_can_be_sent_on(shared):
    buffer = shared.imported()
    assert buffer.ipc_descriptor is not None
    assert payload_of(buffer.ipc_descriptor) == payload_of(shared.descriptor)
    third = opened(shared.there)
    further = Buffer.from_ipc_descriptor(third, buffer.ipc_descriptor, stream=shared.stream)
    buffer.close()
    write(further.handle, b"further")
    assert read(shared.buffer.handle, 7) == b"further"
    further.close()
    third.close()


def test_a_descriptor_is_made_once_and_keeps_nothing_alive(shared):
    descriptor = shared.descriptor
    assert shared.buffer.ipc_descriptor is descriptor
    assert descriptor.size == SIZE
    assert pickle.loads(pickle.dumps(descriptor)).__reduce__() == descriptor.__reduce__()
    assert shared.buffer.loans == 0
    assert shared.buffer.close() is CloseResult.DONE
    with pytest.raises(OwnershipError, match="has been closed"):
        shared.buffer.ipc_descriptor  # noqa: B018


def test_a_closed_import_can_still_be_pickled_and_a_closed_export_cannot(shared):
    shared.there.register(shared.resource.uuid)
    for how in (lambda buffer: buffer.close(), lambda buffer: Buffer.adopt(buffer.detach()).close()):
        buffer = shared.imported()
        how(buffer)
        assert buffer.is_closed
        back = pickle.loads(pickle.dumps(buffer))
        assert back.memory_resource is shared.there
        write(back.handle, b"back")
        assert read(shared.buffer.handle, 4) == b"back"
        back.close()
        with pytest.raises(OwnershipError):
            buffer.ipc_descriptor  # noqa: B018
            raise OwnershipError  # what was handed over may keep its name
    shared.buffer.close()
    with pytest.raises(OwnershipError, match="has been closed"):
        pickle.dumps(shared.buffer)


def test_a_closed_import_of_a_closed_pool_is_found_by_its_uuid(shared):
    first = opened(shared.resource)
    first.register(shared.resource.uuid)
    buffer = Buffer.from_ipc_descriptor(first, shared.descriptor, stream=shared.stream)
    buffer.close()
    first.close()
    data = pickle.dumps(buffer)
    with pytest.raises(RuntimeError, match="registered"):
        pickle.loads(data)
    shared.there.register(shared.resource.uuid)
    pickle.loads(data).close()
    nameless = shared.imported()
    del nameless
    other = opened(shared.resource)
    unnamed = Buffer.from_ipc_descriptor(other, shared.descriptor, stream=shared.stream)
    unnamed.close()
    other.close()
    with pytest.raises(RuntimeError, match="UUID"):
        pickle.dumps(unnamed)


def test_a_buffer_that_comes_home_is_an_import(shared):
    """Its own share, in a pool that is opened for it; the exporter's resource cannot import for itself."""
    home = Buffer.from_ipc_descriptor(shared.resource, shared.descriptor, stream=shared.stream)
    assert home.is_mapped
    assert home.memory_resource.is_mapped
    assert home.memory_resource.uuid == shared.resource.uuid
    write(home.handle, b"home")
    assert read(shared.buffer.handle, 4) == b"home"
    again = Buffer.from_ipc_descriptor(shared.resource, shared.descriptor, stream=shared.stream)
    assert again.handle == home.handle
    home.close()
    again.close()
    shared.resource.register(shared.resource.uuid)
    with pickle.loads(pickle.dumps(shared.buffer)) as back:
        assert back.is_mapped


def test_empty_buffers_travel_without_a_driver_call(driver_watch, shared):
    empty = shared.resource.allocate(0, stream=shared.stream)
    with driver_watch.no_call():
        descriptor = empty.ipc_descriptor
        there = Buffer.from_ipc_descriptor(shared.there, descriptor, stream=shared.stream)
        assert (there.size, there.handle, there.is_mapped) == (0, 0, True)
        assert there.close() is CloseResult.DONE
    with pytest.raises(OwnershipError):
        there.is_mapped  # noqa: B018
    empty.close()


def test_less_than_the_whole_can_be_imported(shared):
    part = IPCBufferDescriptor._init(payload_of(shared.descriptor), 100)
    whole, buffer = shared.imported(), Buffer.from_ipc_descriptor(shared.there, part, stream=shared.stream)
    assert (buffer.handle, buffer.size) == (whole.handle, 100)
    whole.close()
    write(buffer.handle, b"x" * 100)
    buffer.close()


def test_buffers_cannot_be_copied(shared):
    for thing in (shared.buffer, shared.resource, shared.there):
        for copied in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied"):
                copied(thing)


# --- handing over, lending ----------------------------------------------------------------------------------------


@pytest.mark.watched
def test_a_share_can_be_handed_over(driver_watch, shared):
    kept, given = shared.imported(), shared.imported()
    allocation = given.detach()
    assert given.transferred_to is TransferredTo.DETACHED
    with pytest.raises(OwnershipError, match="imported buffers"):
        shared.there.deallocate(allocation.handle, SIZE, stream=shared.stream)
    taken = Buffer.adopt(allocation)
    assert taken.is_mapped
    assert payload_of(taken.ipc_descriptor) == payload_of(shared.descriptor)
    second = opened(shared.resource)
    moved = taken.move_to(second)
    assert (moved.is_mapped, moved.memory_resource) == (True, second)
    assert frees(driver_watch, kept.close) == 0
    assert frees(driver_watch, moved.close) == 1
    second.close()


def test_foreign_code_gets_a_mapping_only_alone(shared):
    """It frees the address, and does not know of shares."""
    other, allocation = shared.imported(), shared.imported().detach()
    with pytest.raises(OwnershipError, match="other buffers"):
        allocation.handed_over()
    write(other.handle, b"other")
    other.close()
    address = allocation.handle
    allocation.handed_over()
    check(driver.cuMemFreeAsync(address, shared.stream.handle))
    shared.stream.sync()
    again = shared.imported()
    assert read(again.handle, 5) == b"other"
    again.close()


def test_what_foreign_code_has_freed_is_not_taken_for_what_comes_to_its_address(shared):
    """The same place in the pool is another allocation then, with another name."""
    allocation = shared.imported().detach()
    address = allocation.handle
    allocation.handed_over()
    check(driver.cuMemFreeAsync(address, shared.stream.handle))
    shared.buffer.close()
    shared.stream.sync()
    shared.buffer = shared.resource.allocate(2 * SIZE, stream=shared.stream)
    shared.stream.sync()
    first, second = shared.imported(), shared.imported()
    assert first.handle == second.handle == address
    assert first.size == 2 * SIZE
    write(first.handle, b"other")
    first.close()
    assert read(second.handle, 5) == read(shared.buffer.handle, 5) == b"other"
    second.close()


@pytest.mark.watched
def test_an_address_with_shares_is_freed_by_nobody_else(driver_watch, shared):
    buffer = shared.imported()
    with driver_watch.no_call():
        with pytest.raises(OwnershipError, match="imported"):
            shared.there.deallocate(buffer.handle, SIZE, stream=shared.stream)
        with pytest.raises(OwnershipError, match="imported"):
            Buffer.from_handle(buffer.handle, SIZE, shared.there, stream=shared.stream)
    buffer.close()


@pytest.mark.provokes_refusals  # at the host the driver itself refuses the second import
def test_an_address_that_was_imported_by_hand_has_its_owner(shared):
    data = driver.CUmemPoolPtrExportData()
    import ctypes

    ctypes.memmove(data.getPtr(), payload_of(shared.descriptor), 64)
    address = int(check(driver.cuMemPoolImportPointer(shared.there.handle, data)))
    owner = Buffer.from_handle(address, SIZE, shared.there, stream=shared.stream)
    with pytest.raises(OwnershipError, match="owner already"):
        shared.imported()
    write(address, b"mine")
    assert read(shared.buffer.handle, 4) == b"mine"
    owner.close()
    shared.imported().close()


@pytest.mark.watched
def test_loans_keep_the_share(driver_watch, shared):
    kept = shared.imported()
    buffer = shared.imported()
    part = buffer[0:16]
    assert buffer.close() is CloseResult.LENT
    assert frees(driver_watch, kept.close) == 0
    write(part.handle, b"part")
    assert frees(driver_watch, part.close) == 1


def test_closing_the_pool_leaves_its_imports_valid(shared):
    second = opened(shared.resource)
    buffer = Buffer.from_ipc_descriptor(second, shared.descriptor, stream=shared.stream)
    second.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        Buffer.from_ipc_descriptor(second, shared.descriptor, stream=shared.stream)
    write(buffer.handle, b"valid")
    assert read(shared.buffer.handle, 5) == b"valid"
    assert buffer.close() is CloseResult.DONE


def test_the_exporter_may_close_first(shared):
    """What was imported stays mapped: closing it is quiet, also when pool and resource are gone."""
    buffer = shared.imported()
    shared.buffer.close()
    shared.resource.close()
    shared.stream.sync()
    assert buffer.close() is CloseResult.DONE


# --- captures and the queue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [True, False], ids=["the last share", "one of two"])
def test_a_share_is_not_given_up_on_a_capturing_stream(device, shared, last):
    other = device.create_stream()
    kept = None if last else shared.imported()
    buffer, dropped = shared.imported(other), shared.imported(other)
    check(
        driver.cuStreamBeginCapture(other.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    )
    with pytest.raises(CUDAError, match="CAPTURE"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    buffer.close(shared.stream)
    with warnings_seen() as seen:
        del dropped  # a collection leaves it to the queue
        gc.collect()
        assert not drain(0.05)
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(other.handle))))
        assert drain(20)
    assert seen == []
    assert _counters.live().get("imports", 0) == (0 if last else 1)
    if kept is not None:
        kept.close()
    other.close()


@pytest.mark.sim_only
@pytest.mark.parametrize("seed", range(8))
def test_an_import_is_not_ended_by_a_pending_free_of_an_earlier_one(driver_watch, device, stream, seed):
    """Neither waits for the other: the driver gives the address again, as a new import (recorded on an H200)."""
    shared = Shared("device", stream)
    streams = [device.create_stream() for _ in range(3)]
    with driver_watch.sim.interleave(seed), driver_watch.sim.hold():
        for number, each in enumerate(streams):
            buffer = shared.imported(each)
            buffer.fill(number, stream=each)
            buffer.close()
            assert "imports" not in _counters.live()
        check(
            driver.cuCtxSynchronize()
        )  # an illegal address if one free took the mapping from under another's work
    assert drain(20)
    assert read(shared.buffer.handle, 4) in (b"\0" * 4, b"\1" * 4, b"\2" * 4)  # nobody has ordered them
    for each in streams:
        each.close()
    shared.close()


@pytest.mark.sim_only
def test_a_stream_that_python_keeps_alive_is_let_go(driver_watch, device, shared):
    """Where a share was closed on it that was not the last, it is held in C for a while."""

    class Foreign:
        def __init__(self):
            self.stream = device.create_stream()

        def __cuda_stream__(self):
            return self.stream.__cuda_stream__()

    kept = shared.imported()
    foreign = device.create_stream(Foreign())
    buffer = shared.imported(foreign)
    with driver_watch.sim.hold():
        if shared.there.device_id == 0:
            buffer.fill(1, stream=foreign)
        buffer.close()
        foreign.close()
        kept.close()
        shared.stream.sync()


# --- what is wrong with an import ---------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_before_any_driver_call(driver_watch, shared):
    good = shared.descriptor
    plain = DeviceMemoryResource(0, {})
    with driver_watch.no_call():
        for mr in (None, 5, "pool", object(), good):
            with pytest.raises(TypeError, match="mr must be"):
                Buffer.from_ipc_descriptor(mr, good, stream=shared.stream)
        for descriptor in (None, 5, b"x" * 64, good.__reduce__(), shared.buffer):
            with pytest.raises(TypeError, match="ipc_descriptor must be"):
                Buffer.from_ipc_descriptor(shared.there, descriptor, stream=shared.stream)
        for stream in (None, 5, "stream"):
            with pytest.raises(TypeError, match=r"(?i)stream"):
                Buffer.from_ipc_descriptor(shared.there, good, stream=stream)
        with pytest.raises(RuntimeError, match="IPC-enabled"):
            Buffer.from_ipc_descriptor(plain, good, stream=shared.stream)
        for payload in (b"", bytes(63), bytes(65), bytes(10**6)):
            with pytest.raises(ValueError, match=f"{len(payload)} bytes"):
                IPCBufferDescriptor._init(payload, 16)
        for payload in (None, "x" * 64, bytearray(64), memoryview(bytes(64)), 64):
            with pytest.raises(TypeError, match="must be bytes"):
                IPCBufferDescriptor._init(payload, 16)
        for size, error in (
            (-1, ValueError),
            (2**63, OverflowError),
            ("1", TypeError),
            (None, TypeError),
            (1.0, TypeError),
        ):
            with pytest.raises(error, match="size"):
                IPCBufferDescriptor._init(payload_of(good), size)
    plain.close()


@pytest.mark.watched
def test_ipc_06_forged_descriptors_are_refused_and_map_nothing(driver_watch, shared):
    """Any other bytes than those sent are found before the driver sees them: it would believe them, or crash."""
    make, (good, size, check_) = shared.descriptor.__reduce__()
    assert make(good, size, check_).size == SIZE
    forged = [(bytes(64), size, check_), (b"\xff" * 64, size, check_)]
    for place in range(64):
        for bit in (0x01, 0x80, 0xFF):
            forged.append((good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :], size, check_))
    forged += [(good, other, check_) for other in (0, 1, SIZE - 1, SIZE + 1, 2 * SIZE, 2**40, 2**63 - 1)]
    forged += [(good, size, wrong) for wrong in (0, check_ + 1, -check_, True, "x", b"", 1.0, 2**70)]
    with driver_watch.no_call():
        for arguments in forged:
            with pytest.raises(ValueError, match="not what its exporter has sent"):
                make(*arguments)
    assert "imports" not in _counters.live()
    shared.imported().close()


def test_ipc_06_a_size_beyond_the_memory_maps_nothing(shared):
    good = payload_of(shared.descriptor)
    for size in (SIZE + 1, 2 * SIZE, 2**40, 2**63 - 1):
        with pytest.raises(ValueError, match=f"size of {size} bytes, and {SIZE} bytes"):
            Buffer.from_ipc_descriptor(
                shared.there, IPCBufferDescriptor._init(good, size), stream=shared.stream
            )
    assert "imports" not in _counters.live()
    shared.imported().close()


@pytest.mark.provokes_refusals
def test_a_descriptor_of_another_pool_is_refused(shared):
    other = RawShare()
    with pytest.raises(ValueError, match="names no buffer"):
        Buffer.from_ipc_descriptor(
            shared.there, IPCBufferDescriptor._init(other.payload, SIZE), stream=shared.stream
        )
    other.close()


def test_a_refused_size_takes_nothing_from_another_share(shared):
    buffer = shared.imported()
    with pytest.raises(ValueError, match="size"):
        Buffer.from_ipc_descriptor(
            shared.there,
            IPCBufferDescriptor._init(payload_of(shared.descriptor), SIZE + 1),
            stream=shared.stream,
        )
    write(buffer.handle, b"still mapped")
    assert read(shared.buffer.handle, 12) == b"still mapped"
    buffer.close()


@pytest.mark.watched
def test_ipc_03_importing_and_closing_many_times_leaves_nothing(driver_watch, shared):
    live = _counters.live(), driver_watch.live()
    for round_ in range(300):
        buffer = shared.imported()
        if round_ % 2:
            buffer.close()
        del buffer
    assert (_counters.live(), driver_watch.live()) == live
