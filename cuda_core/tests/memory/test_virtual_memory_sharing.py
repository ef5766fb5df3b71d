# SPDX-License-Identifier: Apache-2.0
"""Virtual memory between processes: all chunks of a buffer, as one range there (ipc-07)."""

import copy
import gc
import pickle
import struct
from multiprocessing import resource_sharer, resource_tracker

import pytest

from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from cuda.core._memory import _counters
from cuda.core._memory._virtual_descriptor import VirtualBufferDescriptor
from peer_process import Peer
from shared_pools import Shared, descriptors
from support import (
    GRANULE,
    attempt,
    child_output,
    fill_granules,
    free_memory,
    granules_hold,
    race,
    read,
    rights_of_granules,
    simulated,
    warnings_seen,
    write,
)

METHODS = ("spawn", "forkserver")
CHUNKS = (1, 3, 2)  # granules of each


def grown(resource, chunks=CHUNKS, **keywords):
    """Return a buffer of unequal chunks."""
    total = chunks[0]
    buffer = resource.allocate(total * GRANULE, **keywords)
    for granules in chunks[1:]:
        total += granules
        buffer = resource.modify_allocation(buffer, total * GRANULE)
    return buffer


def words(seed, granules):
    return [struct.pack("<I", (0x9E3779B1 * (seed + index + 1)) & 0xFFFFFFFF) for index in range(granules)]


# --- in one process -----------------------------------------------------------------------------------------------


@pytest.fixture
def buffer(resource):
    buffer = grown(resource)
    fill_granules(buffer)
    buffer.ipc_descriptor.close()  # the simulated driver opens a file for a chunk that is exported, as long as it lives
    yield buffer
    buffer.close()


def imported(buffer, stream, options=None):
    with buffer.ipc_descriptor as descriptor:
        resource = VirtualMemoryResource(0, options)
        return Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)


def is_taken(free):
    """Tell whether the memory of the chunks is still taken; the simulated driver counts it where it was made only."""
    return simulated() or free_memory() == free - sum(CHUNKS) * GRANULE


def test_what_a_descriptor_says(buffer):
    before = descriptors()
    descriptor = buffer.ipc_descriptor
    assert isinstance(descriptor, VirtualBufferDescriptor)
    assert descriptor.size == buffer.size
    assert descriptor.chunk_sizes == tuple(granules * GRANULE for granules in CHUNKS)
    assert len(descriptors()) == len(before) + len(CHUNKS)
    assert "chunks=3" in repr(descriptor)
    assert not descriptor.is_closed
    other = buffer.ipc_descriptor
    assert other is not descriptor, "each has descriptors of its own to close"
    descriptor.close()
    descriptor.close()
    assert descriptor.is_closed
    assert "closed" in repr(descriptor)
    assert not other.is_closed
    with other:
        pass
    assert other.is_closed
    dropped = buffer.ipc_descriptor
    assert len(descriptors()) > len(before)
    del dropped
    assert descriptors() == before
    assert buffer.loans == 0


def test_an_import_is_one_range_with_the_same_memory(buffer, stream):
    before = descriptors()
    there = imported(buffer, stream)
    assert "descriptors" not in _counters.live()
    assert (there.size, there.mapped_size, there.ownership) == (buffer.size, buffer.size, Ownership.OWNED)
    assert there.handle != buffer.handle
    assert (there.is_mapped, buffer.is_mapped) == (True, False)
    assert there.owner is None
    assert there[: 1 << 10].is_mapped
    assert granules_hold(there, sum(CHUNKS))
    write(there.handle + 2 * GRANULE + 5, b"seen by both")
    assert read(buffer.handle + 2 * GRANULE + 5, 12) == b"seen by both"
    write(buffer.handle + 5 * GRANULE, b"both ways")
    assert read(there.handle + 5 * GRANULE, 9) == b"both ways"
    assert there.close() is CloseResult.DONE
    assert descriptors() == before


def test_a_copy_runs_across_the_seams(buffer, stream, resource):
    there = imported(buffer, stream)
    copied = resource.allocate(there.size)
    copied.copy_from(there, stream=stream)
    stream.sync()
    assert granules_hold(copied, sum(CHUNKS))
    copied.close()
    there.close()


def test_the_rights_are_the_importers(resource, stream):
    buffer = resource.allocate(GRANULE)
    buffer = resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
    for options, expected in (
        ({"self_access": "r"}, [1, 1]),
        ({"self_access": "rw"}, [3, 3]),
        ({"self_access": None}, [0, 0]),
    ):
        there = imported(buffer, stream, options)
        assert rights_of_granules(there) == expected
        assert rights_of_granules(buffer) == [3, 1]
        there.close()
    buffer.close()


@pytest.mark.parametrize("first", ["exporter", "importer"])
def test_either_side_may_end_first(resource, stream, first):
    free = free_memory()
    buffer = grown(resource)
    there = imported(buffer, stream)
    fill_granules(buffer, seed=7)
    one, other = (buffer, there) if first == "exporter" else (there, buffer)
    assert one.close() is CloseResult.DONE
    assert is_taken(free)
    assert granules_hold(other, sum(CHUNKS), seed=7)
    assert other.close() is CloseResult.DONE
    assert free_memory() == free


def test_an_open_descriptor_keeps_the_memory(resource, stream):
    free = free_memory()
    buffer = grown(resource)
    fill_granules(buffer, seed=3)
    descriptor = buffer.ipc_descriptor
    buffer.close()
    for _ in range(2):  # it can be imported again
        there = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
        assert granules_hold(there, sum(CHUNKS), seed=3)
        there.close()
    assert is_taken(free)
    descriptor.close()
    assert free_memory() == free


def test_ipc_01_imports_of_one_buffer_are_counted_by_the_driver(buffer, stream):
    """Each is a range of its own: ending one takes nothing from the other."""
    one, other = imported(buffer, stream), imported(buffer, stream)
    assert one.handle != other.handle
    assert _counters.live()["ranges"] == 3
    one.close()
    write(other.handle, b"still here")
    assert read(buffer.handle, 10) == b"still here"
    other.close()
    assert _counters.live()["ranges"] == 1


def test_what_the_exporter_does_later_is_not_in_an_import(resource, stream):
    buffer = grown(resource)
    fill_granules(buffer)
    descriptor = buffer.ipc_descriptor
    there = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    buffer = resource.modify_allocation(buffer, 9 * GRANULE)
    assert granules_hold(there, sum(CHUNKS))
    again = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    assert again.size == sum(CHUNKS) * GRANULE
    descriptor.close()
    whole = imported(buffer, stream)
    assert whole.size == 9 * GRANULE
    # A pause takes the exporter's part of the memory away, and the resume gives it other memory.
    resource.pause(buffer)
    assert granules_hold(there, sum(CHUNKS))
    resource.resume(buffer)
    write(buffer.handle, b"mine alone")
    assert granules_hold(there, sum(CHUNKS))
    for each in (there, again, whole, buffer):
        each.close()


def test_a_buffer_with_memory_behind_its_size_is_shared(device, stream):
    """What was mapped ahead, and what a shrink has left of a chunk, is mapped there as well."""
    resource = VirtualMemoryResource(device, {"growth": "geometric"})
    buffer = resource.modify_allocation(resource.allocate(4 * GRANULE), 5 * GRANULE)
    fill_granules(buffer)
    there = imported(buffer, stream)
    assert (there.size, there.mapped_size) == (buffer.size, buffer.mapped_size)
    assert granules_hold(there, 5)
    there.close()
    buffer = resource.shrink(buffer, GRANULE)
    there = imported(buffer, stream)
    assert (there.size, there.mapped_size) == (GRANULE, 4 * GRANULE)
    there.memory_resource.set_access(there, 0, "r")
    assert rights_of_granules(there) == [1]
    assert rights_of_granules(buffer) == [3]
    there.close()
    buffer.close()


def test_an_empty_buffer_can_be_shared(resource, stream):
    buffer = resource.allocate(0)
    there = imported(buffer, stream)
    assert (there.size, there.is_mapped) == (0, True)
    there.close()
    buffer.close()


def test_memory_at_the_host_can_be_shared(device, stream):
    resource = VirtualMemoryResource(device, {"location_type": "host_numa"})
    buffer = grown(resource)
    memoryview(buffer)[:5] = b"hello"
    there = imported(buffer, stream, {"location_type": "host_numa"})
    assert bytes(memoryview(there)[:5]) == b"hello"
    memoryview(there)[6 * GRANULE - 1] = 77
    assert memoryview(buffer)[6 * GRANULE - 1] == 77
    there.close()
    buffer.close()


def test_an_import_is_handed_over_like_any_buffer(buffer, stream, resource):
    there = imported(buffer, stream)
    moved = there.move_to(VirtualMemoryResource(0))
    assert moved.is_mapped
    allocation = moved.detach()
    back = Buffer.adopt(allocation)
    assert back.is_mapped
    assert granules_hold(back, sum(CHUNKS))
    with pytest.raises(RuntimeError, match="imported from another process"):
        _ = back.ipc_descriptor
    with back[:GRANULE] as part:
        assert part.is_mapped
        assert back.close() is CloseResult.LENT
        assert read(part.handle, 4) == words(0, 1)[0]


# --- refusals -----------------------------------------------------------------------------------------------------


def test_an_import_is_not_grown_paused_or_exported(buffer, stream, driver_watch):
    there = imported(buffer, stream)
    resource = there.memory_resource
    with driver_watch.no_call():
        assert resource.modify_allocation(there, 3) is there
        with pytest.raises(OwnershipError, match="cannot be grown"):
            resource.modify_allocation(there, 20 * GRANULE)
        with pytest.raises(OwnershipError, match="cannot be shrunk"):
            resource.shrink(there, GRANULE)
        with pytest.raises(OwnershipError, match="cannot be trimmed"):
            resource.trim(there)
        with pytest.raises(OwnershipError, match="cannot be paused"):
            resource.pause(there)
        with pytest.raises(RuntimeError, match="exports no import"):
            _ = there.ipc_descriptor
        with pytest.raises(RuntimeError, match="exports no import"):
            pickle.dumps(there)
    there.close()
    with pytest.raises(RuntimeError, match="exports no import"):
        pickle.dumps(there)


def test_ipc_05_what_cannot_be_shared_says_so(device, resource, stream):
    before = descriptors()
    private = VirtualMemoryResource(device, {"handle_type": None})
    buffer = private.allocate(GRANULE)
    for share in (lambda: buffer.ipc_descriptor, lambda: pickle.dumps(buffer)):
        with pytest.raises(RuntimeError, match="handle_type=None"):
            share()
    buffer.close()
    mixed = resource.allocate(GRANULE)
    mixed = resource.modify_allocation(mixed, 2 * GRANULE, config={"handle_type": None})
    with pytest.raises(RuntimeError, match="handle_type=None"):
        _ = mixed.ipc_descriptor
    assert "descriptors" not in _counters.live()
    mixed.close()
    assert descriptors() == before
    with pytest.raises(OwnershipError, match="has been closed"):
        _ = mixed.ipc_descriptor
    whole = grown(resource)
    with whole[:GRANULE] as part, pytest.raises(RuntimeError, match="of no resource"):
        _ = part.ipc_descriptor
    resource.pause(whole)
    with pytest.raises(OwnershipError, match="is paused"):
        _ = whole.ipc_descriptor
    whole.close()
    assert descriptors() == before


@pytest.mark.provokes_refusals
def test_fabric_handles_where_the_process_may_not_make_them(device):
    """As on an H200 without an IMEX channel (recorded): the device has them, and the driver refuses the process."""
    resource = VirtualMemoryResource(device, {"handle_type": "fabric"})
    buffer, error = attempt(lambda: resource.allocate(GRANULE), CUDAError)
    if error is None:  # a machine with a channel: then it can be shared
        with buffer.ipc_descriptor as descriptor:
            assert pickle.loads(pickle.dumps(descriptor)).size == GRANULE
        buffer.close()
    else:
        assert "NOT_PERMITTED" in str(error)
        assert "needs an IMEX channel" in str(error)


def test_a_descriptor_of_another_kind_is_refused(buffer, stream, driver_watch):
    shared = Shared("device", stream)
    name, descriptor = shared.descriptor, buffer.ipc_descriptor
    with driver_watch.no_call():
        for resource, given in ((shared.there, descriptor), (buffer.memory_resource, name)):
            with pytest.raises(TypeError, match="ipc_descriptor must be"):
                Buffer.from_ipc_descriptor(resource, given, stream=stream)
        for given in (None, 5, b"x" * 64, int(descriptor.chunk_sizes[0])):
            with pytest.raises(TypeError, match="ipc_descriptor must be"):
                Buffer.from_ipc_descriptor(buffer.memory_resource, given, stream=stream)
        descriptor.close()
        with pytest.raises(RuntimeError, match="has been closed"):
            Buffer.from_ipc_descriptor(buffer.memory_resource, descriptor, stream=stream)
    shared.close()


def test_memory_of_another_place_is_refused(buffer, stream, device):
    before = descriptors()
    with buffer.ipc_descriptor as descriptor:
        there = VirtualMemoryResource(device, {"location_type": "host_numa"})
        with pytest.raises(ValueError, match="device 0, which is not where"):
            Buffer.from_ipc_descriptor(there, descriptor, stream=stream)
    assert descriptors() == before


@pytest.mark.two_devices
def test_memory_of_another_device_is_refused(buffer, stream):
    with buffer.ipc_descriptor as descriptor, pytest.raises(ValueError, match="device 0, which is not where"):
        Buffer.from_ipc_descriptor(VirtualMemoryResource(1), descriptor, stream=stream)


def test_a_descriptor_is_neither_made_nor_copied_nor_pickled_by_hand(buffer):
    with pytest.raises(RuntimeError, match="cannot be made directly"):
        VirtualBufferDescriptor(5)
    with buffer.ipc_descriptor as descriptor:
        for spread in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied"):
                spread(descriptor)
        for thing in (descriptor, buffer):
            with pytest.raises(TypeError, match="only be sent through multiprocessing"):
                pickle.dumps(thing)


def test_a_closed_resource_or_stream_leaks_nothing(buffer, device):
    gone = device.create_stream()
    gone.close()
    with buffer.ipc_descriptor as descriptor, pytest.raises(RuntimeError):
        Buffer.from_ipc_descriptor(buffer.memory_resource, descriptor, stream=gone)


# --- other processes ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=METHODS)
def process(request, devices):
    peer = Peer(request.param)
    peer.call("start")
    warm = VirtualMemoryResource(0).allocate(GRANULE)  # what multiprocessing opens for itself stays open
    peer.call("keep", "warm up", warm)
    peer.call("drop", "warm up")
    warm.close()
    yield peer
    assert peer.end() == 0


@pytest.fixture
def peer(process, device):
    before, here = process.call("held"), len(descriptors())
    yield process
    assert process.call("held") == before, "live in the other process after the test, and before it"
    gc.collect()
    assert len(descriptors()) == here


def test_ipc_07_a_grown_buffer_arrives_as_one_range(peer, resource):
    free = free_memory()
    buffer = grown(resource)
    fill_granules(buffer, seed=1)
    peer.call("keep", "buffer", buffer)
    size = sum(CHUNKS) * GRANULE
    assert peer.call("says_of_virtual", "buffer") == (True, size, size, "OWNED", [3] * sum(CHUNKS))
    assert peer.call("pattern_of_granules", "buffer") == words(1, sum(CHUNKS))
    peer.call("fill_all", "buffer", 50)
    assert granules_hold(buffer, sum(CHUNKS), seed=50)
    fill_granules(buffer, seed=90)
    assert peer.call("pattern_of_granules", "buffer") == words(90, sum(CHUNKS))
    assert buffer.close() is CloseResult.DONE
    assert peer.call("pattern_of_granules", "buffer") == words(90, sum(CHUNKS)), (
        "the exporter has closed first"
    )
    assert peer.call("close", "buffer") == "DONE"
    assert free_memory() == free


def test_ipc_07_the_rights_are_those_of_the_other_process(peer, buffer):
    with buffer.ipc_descriptor as descriptor:
        peer.call("import_virtual", "buffer", descriptor, {"self_access": "r"})
    size = sum(CHUNKS) * GRANULE
    assert peer.call("says_of_virtual", "buffer") == (True, size, size, "OWNED", [1] * sum(CHUNKS))
    assert peer.call("pattern_of_granules", "buffer") == words(0, sum(CHUNKS))
    assert rights_of_granules(buffer) == [3] * sum(CHUNKS)
    peer.call("close", "buffer")


def test_a_buffer_that_is_sent_twice_arrives_twice(peer, buffer):
    peer.call("keep", "one", buffer)
    peer.call("keep", "other", buffer)
    peer.call("put", "one", b"through one")
    peer.call("close", "one")
    assert peer.call("seen", "other", 11) == b"through one"
    peer.call("close", "other")
    assert read(buffer.handle, 11) == b"through one"


def test_a_buffer_of_an_import_cannot_be_sent_back(peer, buffer):
    peer.call("keep", "buffer", buffer)
    kind, text = peer.call("refusal", "get_pickled", "buffer")
    assert (kind, "exports no import" in text) == ("RuntimeError", True)
    peer.call("close", "buffer")


@pytest.mark.parametrize("method", METHODS)
def test_a_process_is_started_with_a_buffer(method, resource, device):
    """The buffer is among the arguments of the process, and closed here before that has read it."""
    resource_tracker.ensure_running()
    buffer = grown(resource)
    fill_granules(buffer, seed=5)
    peer = Peer(method, "keep_and_tell", "buffer", buffer)
    assert peer.first == words(5, sum(CHUNKS))
    buffer.close()
    assert peer.call("pattern_of_granules", "buffer") == words(5, sum(CHUNKS))
    peer.call("close", "buffer")
    assert peer.end() == 0
    assert not _counters.live().get("descriptors")


def test_the_importer_is_killed(resource, device):
    free = free_memory()
    buffer = grown(resource)
    fill_granules(buffer, seed=2)
    peer = Peer("spawn", "keep_and_tell", "buffer", buffer)
    assert peer.first == words(2, sum(CHUNKS))
    peer.kill()
    assert granules_hold(buffer, sum(CHUNKS), seed=2)
    buffer.close()
    assert free_memory() == free


def test_the_first_thing_that_a_program_sends_may_be_a_buffer():
    """Nothing was exported before, and multiprocessing is imported last."""
    assert child_output(FIRST_OF_ALL).split() == [str(6 << 20)]


FIRST_OF_ALL = """
from cuda.core import Device, VirtualMemoryResource

Device(0).set_current()
resource = VirtualMemoryResource(0)
buffer = resource.modify_allocation(resource.allocate(2 << 20), 6 << 20)
import pickle
from multiprocessing import resource_sharer, set_start_method
from multiprocessing.reduction import ForkingPickler

set_start_method("spawn")
there = pickle.loads(ForkingPickler.dumps(buffer))
print(there.size)
there.close()
buffer.close()
resource_sharer.stop()
"""


def test_threads_import_and_close_one_buffer(buffer, stream):
    descriptor = buffer.ipc_descriptor
    resource = VirtualMemoryResource(0)

    def work():
        for _ in range(15):
            there = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
            assert rights_of_granules(there) == [3] * sum(CHUNKS)
            there.close()
        return True

    def export():
        for _ in range(15):
            made, error = attempt(lambda: buffer.ipc_descriptor, OwnershipError)
            assert error is None or "another call" in str(error)  # that exports at this very moment
            if error is None:
                made.close()
        return True

    assert race(work, work, export, export) == [True] * 4
    descriptor.close()


def test_a_warning_where_workers_are_forked(buffer):
    """As for pools: a forked process cannot use what is sent."""
    from multiprocessing.reduction import ForkingPickler

    with warnings_seen() as seen:
        form = bytes(ForkingPickler.dumps(buffer))
    assert len(seen) <= 1
    there = pickle.loads(form)
    assert granules_hold(there, sum(CHUNKS))
    there.close()
    resource_sharer.stop()


def test_unpickling_makes_nothing_current(buffer):
    from multiprocessing.reduction import ForkingPickler

    from cuda.bindings import driver
    from support import check

    form = bytes(ForkingPickler.dumps(buffer))
    context = check(driver.cuCtxPopCurrent())
    try:
        there = pickle.loads(form)
        assert int(check(driver.cuCtxGetCurrent())) == 0
    finally:
        check(driver.cuCtxSetCurrent(context))
    assert there.memory_resource.device_id == 0
    there.close()
    resource_sharer.stop()


def test_sharing_at_exit_is_silent():
    output = child_output(
        """
from cuda.core import Buffer, Device, VirtualMemoryResource
device = Device(0)
device.set_current()
resource = VirtualMemoryResource(device)
kept = resource.allocate(4 << 20)
kept = resource.modify_allocation(kept, 8 << 20)
descriptor = kept.ipc_descriptor
there = Buffer.from_ipc_descriptor(resource, descriptor, stream=device.default_stream)
print(there.size)
"""
    )
    assert output.strip() == str(8 << 20)
