# SPDX-License-Identifier: Apache-2.0
"""What the released cuda-core does, unmodified, one scenario a process: ``python scenarios.py NAME``.

Each scenario checks what it did; what it leaves live or has refused is for the driver to say.
"""

import ctypes
import gc
import multiprocessing
import sys

import numpy
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    Event,
    EventOptions,
    GraphMemoryResource,
    Host,
    LegacyPinnedMemoryResource,
    ManagedBuffer,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    StreamOptions,
    VirtualMemoryResource,
)
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core.graph import GraphCompleteOptions
from cuda.core.utils import copy_batch, discard_batch, prefetch_batch

MIB = 1 << 20
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def check(answer):
    result, *values = answer
    assert result == driver.CUresult.CUDA_SUCCESS, result
    return values[0] if values else None


def bytes_of(buffer, stream, count=None):
    """Read memory of any kind through the driver. cuMemcpyDtoH would refuse memory of a host pool."""
    stream.sync()
    out = (ctypes.c_char * (buffer.size if count is None else count))()
    check(driver.cuMemcpy(ctypes.addressof(out), int(buffer.handle), len(out)))
    return bytes(out)


def host_view(buffer):
    """The buffer as a NumPy array, through DLPack and without a copy."""
    array = numpy.from_dlpack(buffer)
    assert array.ctypes.data == int(buffer.handle)
    return array.view(numpy.uint8)


def use(resource, stream, size=4096):
    """Allocate, fill, copy and close, as a program does."""
    first, second = resource.allocate(size, stream=stream), resource.allocate(size, stream=stream)
    assert first.size == size and int(first.handle) != int(second.handle)
    assert first.memory_resource is resource
    first.fill(0x41, stream=stream)
    second.fill(b"\x01\x02\x03\x04", stream=stream)
    assert bytes_of(first, stream, 8) == b"\x41" * 8
    assert bytes_of(second, stream, 8) == b"\x01\x02\x03\x04" * 2
    first.copy_from(second, stream=stream)
    assert bytes_of(first, stream) == b"\x01\x02\x03\x04" * (size // 4)
    third = first.copy_to(stream=stream)
    assert bytes_of(third, stream, 4) == b"\x01\x02\x03\x04"
    for buffer in (first, second, third):
        buffer.close(stream)
        assert buffer.is_closed
    stream.sync()


@scenario
def default_pool(device, stream):
    use(device.memory_resource, stream)
    buffer = device.allocate(100, stream=stream)
    assert buffer.is_device_accessible and not buffer.is_host_accessible
    buffer.close()


@scenario
def device_pool(device, stream):
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=64 * MIB))
    use(resource, stream)
    attributes = resource.attributes
    assert attributes.used_mem_current == 0 and attributes.used_mem_high >= 3 * 4096
    assert attributes.release_threshold == 0
    resource.peer_accessible_by = [Device(1)]
    assert [peer.device_id for peer in resource.peer_accessible_by] == [1]
    resource.close()


def grant_access(resource, device):
    """Let the device use a pool at the host: neither 1.2.2 nor the driver does so by itself."""
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device.device_id
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    check(driver.cuMemPoolSetAccess(resource.handle, [access], 1))


@scenario
def pinned_pool(device, stream):
    resource = PinnedMemoryResource(PinnedMemoryResourceOptions(numa_id=0))
    assert resource.is_host_accessible and resource.is_device_accessible
    grant_access(resource, device)
    use(resource, stream)
    resource.close()


@scenario
def pinned_pool_without_access(device, stream):
    buffer = PinnedMemoryResource(PinnedMemoryResourceOptions(numa_id=0)).allocate(64, stream=stream)
    host_view(buffer)[:] = 1
    try:
        buffer.fill(1, stream=stream)
    except CUDAError as error:
        assert "CUDA_ERROR_INVALID_VALUE" in str(error)
    else:
        raise AssertionError("the recorded driver refuses this")
    buffer.close()


@scenario
def managed_pool(device, stream):
    resource = ManagedMemoryResource()
    use(resource, stream)
    buffer = resource.allocate(MIB, stream=stream)
    assert isinstance(buffer, ManagedBuffer) and buffer.is_managed
    for advise in (
        lambda: setattr(buffer, "read_mostly", True),
        lambda: setattr(buffer, "preferred_location", device),
        lambda: buffer.accessed_by.add(device),
    ):
        try:
            advise()
        except CUDAError as error:
            assert "CUDA_ERROR_NOT_SUPPORTED" in str(error)
        else:
            raise AssertionError("the recorded driver refuses advice for memory of pools")
    buffer.prefetch(device, stream=stream)
    buffer.prefetch(Host(), stream=stream)
    buffer.discard_prefetch(device, stream=stream)
    buffer.fill(7, stream=stream)
    second = resource.allocate(MIB, stream=stream)
    prefetch_batch(stream, [buffer, second], [device, Host()])
    stream.sync()
    assert bytes(host_view(buffer)[:4]) == b"\x07" * 4
    discard_batch(stream, [buffer, second])
    buffer.close()
    second.close()
    stream.sync()
    resource.close()


@scenario
def legacy_pinned(device, stream):
    resource = LegacyPinnedMemoryResource()
    use(resource, stream)
    buffer = resource.allocate(64)
    view = host_view(buffer)
    view[:] = range(64)
    assert bytes_of(buffer, stream) == bytes(range(64))
    del view
    buffer.close()


@scenario
def pinned_to_numpy(device, stream):
    pool = PinnedMemoryResource()
    grant_access(pool, device)
    for resource in (pool, LegacyPinnedMemoryResource()):
        buffer = resource.allocate(256, stream=stream)
        view = host_view(buffer)
        buffer.fill(9, stream=stream)
        stream.sync()
        assert (view == 9).all()
        view[:] = numpy.arange(256, dtype=numpy.uint8)
        on_device = device.allocate(256, stream=stream)
        on_device.copy_from(buffer, stream=stream)
        assert bytes_of(on_device, stream) == bytes(range(256))
        # A buffer of the device is of no use to NumPy.
        try:
            numpy.from_dlpack(on_device)
        except (BufferError, RuntimeError, TypeError):
            pass
        else:
            raise AssertionError("NumPy took device memory")
        del view
        gc.collect()
        on_device.close()
        buffer.close()
        stream.sync()


@scenario
def virtual_memory(device, stream):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(2 * MIB)
    buffer.fill(3, stream=stream)
    assert bytes_of(buffer, stream, 16) == b"\x03" * 16
    buffer.close()


@scenario
def virtual_memory_grown(device, stream):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(2 * MIB)
    buffer.fill(3, stream=stream)
    stream.sync()
    # Something behind the buffer makes the grow move it.
    behind = int(check(driver.cuMemAddressReserve(2 * MIB, 0, int(buffer.handle) + 2 * MIB, 0)))
    grown = resource.modify_allocation(buffer, 4 * MIB)
    assert bytes_of(grown, stream, 16) == b"\x03" * 16
    del buffer
    grown.close()
    check(driver.cuMemAddressFree(behind, 2 * MIB))


@scenario
def graph_memory(device, stream):
    resource = GraphMemoryResource(device)
    out = LegacyPinnedMemoryResource().allocate(64)
    view = host_view(out)
    builder = stream.create_graph_builder().begin_building()
    buffer = resource.allocate(4096, stream=builder)
    buffer.fill(0x55, stream=builder)
    inner = Buffer.from_handle(buffer.handle, 64)
    out.copy_from(inner, stream=builder)
    buffer.close(builder)
    graph = builder.end_building().complete(GraphCompleteOptions(auto_free_on_launch=True))
    assert (view != 0x55).any()
    for _ in range(2):
        view[:] = 0
        graph.launch(stream)
        stream.sync()
        assert (view == 0x55).all()
    assert resource.attributes.reserved_mem_current > 0
    graph.close()
    builder.close()
    resource.trim()
    assert resource.attributes.reserved_mem_current == 0
    del view
    out.close()
    stream.sync()


@scenario
def streams_and_events(device, stream):
    other = device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    assert other.is_nonblocking and other.priority == -1 and other.device.device_id == 0
    start = device.create_event(options=EventOptions(timing_enabled=True))
    end = device.create_event(options=EventOptions(timing_enabled=True))
    buffer = device.allocate(MIB, stream=stream)
    stream.record(start)
    buffer.fill(1, stream=stream)
    other.wait(stream)
    buffer.fill(2, stream=other)
    other.record(end)
    end.sync()
    assert start.is_done and end.is_done and end - start >= 0
    stream.wait(end)
    assert bytes_of(buffer, stream, 4) == b"\x02" * 4
    buffer.close()
    for thing in (start, end, other):
        thing.close()
    default = device.default_stream
    default.sync()
    stream.sync()


@scenario
def copies_between_resources(device, stream):
    pinned = PinnedMemoryResource()
    grant_access(pinned, device)
    resources = [
        device.memory_resource,
        pinned,
        ManagedMemoryResource(),
        LegacyPinnedMemoryResource(),
        VirtualMemoryResource(device),
    ]
    buffers = [resource.allocate(2 * MIB, stream=stream) for resource in resources]
    for value, source in enumerate(buffers, 1):
        source.fill(value, stream=stream)
        for target in buffers:
            if target is not source:
                source.copy_to(target, stream=stream)
                assert bytes_of(target, stream, 4) == bytes([value]) * 4
    for buffer in buffers:
        buffer.close()
    stream.sync()


@scenario
def batched_copies(device, stream):
    sources = [device.allocate(64, stream=stream) for _ in range(3)]
    targets = [device.allocate(64, stream=stream) for _ in range(3)]
    for value, source in enumerate(sources, 1):
        source.fill(value, stream=stream)
    copy_batch(stream, sources, targets)
    assert [bytes_of(target, stream, 2) for target in targets] == [b"\1\1", b"\2\2", b"\3\3"]
    for buffer in (*sources, *targets):
        buffer.close()
    stream.sync()


@scenario
def two_devices(device, stream):
    there = Device(1)
    there.set_current()
    other_stream = there.create_stream()
    theirs = there.allocate(4096, stream=other_stream)
    theirs.fill(8, stream=other_stream)
    other_stream.sync()
    device.set_current()
    ours = device.allocate(4096, stream=stream)
    there.memory_resource.peer_accessible_by = [device]
    ours.copy_from(theirs, stream=stream)
    assert bytes_of(ours, stream, 4) == b"\x08" * 4
    there.memory_resource.peer_accessible_by = []
    ours.close()
    theirs.close(other_stream)
    stream.sync()
    other_stream.sync()
    other_stream.close()


def in_child(resource, buffer, event, pipe):
    """Use what the parent has sent: the buffer is open already, in this process's own context."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    if resource.device_id != 0:
        grant_access(resource, device)
    event.sync()
    pipe.send(bytes_of(buffer, stream, 4))
    buffer.fill(0x22, stream=stream)
    stream.sync()
    pipe.send((buffer.size, resource.is_mapped, buffer.is_mapped))
    buffer.close(stream)
    stream.sync()
    stream.close()


def between_processes(resource, device, stream):
    ours, theirs = multiprocessing.Pipe()
    buffer = resource.allocate(4096, stream=stream)
    buffer.fill(0x11, stream=stream)
    event = stream.record(options=EventOptions(ipc_enabled=True))
    process = multiprocessing.Process(target=in_child, args=(resource, buffer, event, theirs))
    process.start()
    theirs.close()
    assert ours.poll(60) and ours.recv() == b"\x11" * 4
    assert ours.poll(60) and ours.recv() == (4096, True, True)
    process.join(60)
    assert process.exitcode == 0
    assert bytes_of(buffer, stream) == b"\x22" * 4096
    buffer.close(stream)
    event.close()
    stream.sync()
    resource.close()


@scenario
def device_pool_between_processes(device, stream):
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=32 * MIB, ipc_enabled=True))
    between_processes(resource, device, stream)


@scenario
def pinned_pool_between_processes(device, stream):
    resource = PinnedMemoryResource(
        PinnedMemoryResourceOptions(ipc_enabled=True, max_size=32 * MIB, numa_id=0)
    )
    grant_access(resource, device)
    between_processes(resource, device, stream)


def sends_back(pipe):
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=32 * MIB, ipc_enabled=True))
    buffer = resource.allocate(64, stream=stream)
    buffer.fill(0x33, stream=stream)
    event = stream.record(options=EventOptions(ipc_enabled=True))
    pipe.send((resource, buffer.ipc_descriptor, event.ipc_descriptor))
    assert pipe.recv() == "read"
    assert bytes_of(buffer, stream) == b"\x44" * 64
    buffer.close(stream)
    stream.sync()
    event.close()
    resource.close()
    stream.close()


@scenario
def child_sends_a_buffer_and_an_event(device, stream):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=sends_back, args=(theirs,))
    process.start()
    theirs.close()
    resource, buffer_descriptor, event_descriptor = ours.recv()
    event = Event.from_ipc_descriptor(event_descriptor)
    stream.wait(event)
    buffer = Buffer.from_ipc_descriptor(resource, buffer_descriptor, stream=stream)
    assert bytes_of(buffer, stream) == b"\x33" * 64
    buffer.fill(0x44, stream=stream)
    stream.sync()
    buffer.close(stream)
    stream.sync()
    event.close()
    resource.close()
    ours.send("read")
    process.join(60)
    assert process.exitcode == 0


@scenario
def what_other_frameworks_see(device, stream):
    buffer = LegacyPinnedMemoryResource().allocate(8)
    assert buffer.__dlpack_device__()[0] in (1, 3)
    assert device.allocate(8, stream=stream).__dlpack_device__() == (2, 0)
    foreign = ctypes.create_string_buffer(b"abcdefgh", 8)
    borrowed = Buffer.from_handle(ctypes.addressof(foreign), 8, owner=foreign)
    buffer.copy_from(borrowed, stream=stream)
    stream.sync()
    assert bytes(host_view(buffer)) == b"abcdefgh"
    gc.collect()
    buffer.close()
    borrowed.close()
    stream.sync()


def main():
    multiprocessing.set_start_method("spawn")
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    SCENARIOS[sys.argv[1]](device, stream)
    gc.collect()
    stream.sync()
    stream.close()
    print("done")


if __name__ == "__main__":
    main()
