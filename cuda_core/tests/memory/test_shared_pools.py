# SPDX-License-Identifier: Apache-2.0
"""Pools for other processes: handles, the registry, opening; what is not shared says so."""

import gc
import os
import pickle
import sys
import threading
import uuid
import weakref
from multiprocessing import resource_sharer

import pytest

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CUDAError,
    DeviceMemoryResource,
    ManagedMemoryResource,
    PinnedMemoryResource,
)
from cuda.core._memory import _counters, _ipc
from cuda.core._memory._ipc import IPCAllocationHandle, IPCBufferDescriptor
from cuda.core._memory._queue import drain
from shared_pools import KINDS, SIZE, RawShare, descriptors, make, open_number, opened
from support import check, child_output, in_context, race, read, write

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=KINDS)
def shared(request, device):
    resource = make(request.param)
    yield resource
    resource.close()


@pytest.fixture
def there(shared):
    """The shared pool as another process would have it."""
    resource = opened(shared)
    yield resource
    resource.close()


def test_what_a_shared_pool_says_of_itself(shared, there):
    assert (shared.is_ipc_enabled, there.is_ipc_enabled) == (True, True)
    assert (shared.is_mapped, there.is_mapped) == (False, True)
    assert isinstance(shared.uuid, uuid.UUID)
    assert there.uuid is None
    assert there.is_handle_owned
    assert there.device_id == shared.device_id
    assert (there.is_device_accessible, there.is_host_accessible) == (
        shared.is_device_accessible,
        shared.is_host_accessible,
    )
    assert make().uuid != shared.uuid


def test_the_handle_is_made_once_and_again_when_it_was_closed(shared):
    handle = shared.allocation_handle
    assert shared.allocation_handle is handle
    assert handle.uuid == shared.uuid
    assert int(handle) == handle.handle
    assert not handle.is_closed
    number = int(handle)
    assert number in descriptors()
    assert not os.get_inheritable(number)
    handle.close()
    handle.close()
    assert number not in descriptors()
    assert (handle.is_closed, handle.handle) == (True, -1)
    with pytest.raises(ValueError, match="closed"):
        int(handle)
    with pytest.raises(RuntimeError, match="closed"):
        shared.from_allocation_handle(*((0,) if shared.device_id == 0 else ()), handle)
    again = shared.allocation_handle
    assert again is not handle
    assert not again.is_closed


def test_a_handle_closes_its_descriptor_once(shared):
    """Its number may be another file's the moment it is closed."""
    handle = shared.allocation_handle
    number = int(handle)
    handle.close()
    other = os.open("/dev/null", os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)
    handle.close()
    del handle
    shared.close()
    gc.collect()
    assert descriptors()[number] == "/dev/null"
    os.close(number)


def test_descriptors_go_with_the_last_that_holds_them(shared):
    before = descriptors()
    resources = [make() for _ in range(5)]
    kept = [resource.allocation_handle for resource in resources]
    mapped = [opened(resource) for resource in resources]
    for resource in (*resources, *mapped):
        resource.close()
    assert all(not handle.is_closed for handle in kept)
    del resource, resources, mapped
    kept.clear()
    gc.collect()
    assert descriptors() == before


def test_an_opened_pool_can_be_passed_on(shared, there, stream):
    """The driver does not export what was imported: the descriptor that came in goes out."""
    third = opened(there)
    buffer = shared.allocate(SIZE, stream=stream)
    seen = Buffer.from_ipc_descriptor(third, buffer.ipc_descriptor, stream=stream)
    assert seen.is_mapped
    there.allocation_handle.close()
    assert not there.allocation_handle.is_closed
    seen.close()
    third.close()
    buffer.close()


def test_an_opened_pool_does_not_allocate(driver_watch, there, stream):
    with driver_watch.no_call(), pytest.raises(TypeError, match="another process"):
        there.allocate(16, stream=stream)
    with pytest.raises(TypeError, match="another process"):
        there.allocate(0, stream=stream)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (2**31, ValueError),
        (2**70, ValueError),
        (True, TypeError),
        (2.5, TypeError),
        ("3", TypeError),
        (None, TypeError),
        (object(), TypeError),
    ],
    ids=["negative", "too large", "huge", "bool", "float", "text", "None", "object"],
)
@pytest.mark.parametrize("kind", [DeviceMemoryResource, PinnedMemoryResource])
def test_a_wrong_number_is_refused(driver_watch, kind, value, error):
    before = descriptors()

    def refused():
        with pytest.raises(error, match="file descriptor"):
            open_number(kind, value)

    assert "cuMemPoolImportFromShareableHandle" not in driver_watch.calls_of(refused)
    assert descriptors() == before


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", [DeviceMemoryResource, PinnedMemoryResource])
def test_a_descriptor_of_something_else_is_refused_and_stays_open(kind, tmp_path):
    numbers = [*os.pipe(), os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDWR)]
    before = descriptors()
    for number in numbers:
        with pytest.raises(ValueError, match=f"file descriptor {number} is none of a memory pool"):
            open_number(kind, number)
    assert descriptors() == before
    for number in numbers:
        os.close(number)
    with pytest.raises(OSError, match=str(number)):
        open_number(kind, number)


@pytest.mark.two_devices
def test_a_pool_of_another_device_or_kind_is_refused(device):
    there, pinned = RawShare(device=1), make("pinned")
    with pytest.raises(ValueError, match="none of device 0"):
        DeviceMemoryResource.from_allocation_handle(0, there.number)
    with pytest.raises(ValueError, match="none of device 0"):
        DeviceMemoryResource.from_allocation_handle(0, int(pinned.allocation_handle))
    DeviceMemoryResource.from_allocation_handle(1, there.number).close()
    there.close()
    pinned.close()


def test_a_pool_of_a_device_is_no_pinned_pool(stream):
    share = RawShare()
    resource = PinnedMemoryResource.from_allocation_handle(share.number)
    descriptor = IPCBufferDescriptor._init(share.payload, SIZE)
    with pytest.raises(ValueError, match="memory of device 0"):
        Buffer.from_ipc_descriptor(resource, descriptor, stream=stream)
    resource.close()
    share.close()


def refuses_to_share(resource, buffer, stream, match):
    for attempt in (
        lambda: resource.allocation_handle,
        lambda: resource.register(uuid.uuid4()),
        lambda: pickle.dumps(resource),
        lambda: buffer.ipc_descriptor,
        lambda: pickle.dumps(buffer),
        lambda: Buffer.from_ipc_descriptor(resource, IPCBufferDescriptor._init(bytes(64), 64), stream=stream),
    ):
        with pytest.raises(RuntimeError, match=match):
            attempt()


def test_ipc_05_what_cannot_be_shared_says_so(driver_watch, device, stream, threshold):
    """Export, register and pickle: an error each, and every descriptor of the process still open."""
    before = descriptors()
    for resource in (
        DeviceMemoryResource(0),
        DeviceMemoryResource(0, {}),
        PinnedMemoryResource(),
        PinnedMemoryResource({}),
    ):
        buffer = resource.allocate(64, stream=stream)
        assert (resource.uuid, resource.is_ipc_enabled, resource.is_mapped) == (None, False, False)
        with driver_watch.no_call():
            refuses_to_share(resource, buffer, stream, "IPC-enabled")
        buffer.close()
        resource.close()
    managed = ManagedMemoryResource()
    buffer = managed.allocate(64, stream=stream)
    assert (managed.is_ipc_enabled, managed.is_mapped) == (False, False)
    with pytest.raises(RuntimeError, match="IPC-enabled"):
        buffer.ipc_descriptor  # noqa: B018
    buffer.close()
    managed.close()
    stream.sync()
    assert descriptors() == before


def test_handles_and_descriptors_are_not_made_by_hand(shared):
    for kind in (IPCAllocationHandle, IPCBufferDescriptor):
        with pytest.raises(RuntimeError, match="cannot be made directly"):
            kind()
    with pytest.raises(TypeError, match="multiprocessing"):
        pickle.dumps(shared.allocation_handle)


# --- the registry -------------------------------------------------------------------------------------------------


def test_a_registered_pool_is_found_by_its_uuid(shared, there):
    with pytest.raises(RuntimeError, match=str(shared.uuid)):
        type(shared).from_registry(shared.uuid)
    assert there.register(shared.uuid) is there
    assert there.uuid == shared.uuid
    assert there.register(shared.uuid) is there
    assert type(shared).from_registry(shared.uuid) is there
    second = opened(shared)
    assert second.register(shared.uuid) is there
    assert second.uuid is None
    second.close()


def test_the_registry_checks_what_it_is_given(shared, there):
    other = PinnedMemoryResource if isinstance(shared, DeviceMemoryResource) else DeviceMemoryResource
    key = shared.uuid
    there.register(key)
    for value in ("x", key.bytes, int(key), None):
        with pytest.raises(TypeError, match=r"uuid\.UUID"):
            there.register(value)
        with pytest.raises(TypeError, match=r"uuid\.UUID"):
            type(shared).from_registry(value)
    for resource in (shared, there):
        with pytest.raises(ValueError, match=str(key)):
            resource.register(uuid.uuid4())
    with pytest.raises(TypeError, match=type(shared).__name__):
        other.from_registry(key)
    foreign = opened(make("pinned" if other is PinnedMemoryResource else "device"))
    with pytest.raises(TypeError, match=type(shared).__name__):
        foreign.register(key)
    assert foreign.uuid is None
    foreign.close()


def test_a_handle_with_a_registered_uuid_gives_the_registered_pool(shared):
    arguments = () if shared.device_id < 0 else (0,)
    handle = shared.allocation_handle
    first = type(shared).from_allocation_handle(*arguments, handle)
    assert type(shared).from_allocation_handle(*arguments, handle) is first
    assert first.uuid == shared.uuid
    assert not handle.is_closed
    first.close()
    second = type(shared).from_allocation_handle(*arguments, handle)
    assert second is not first
    second.close()


@pytest.mark.two_devices
def test_a_registered_pool_of_another_device_is_not_given_out(device):
    shared = make()
    first = DeviceMemoryResource.from_allocation_handle(0, shared.allocation_handle)
    with pytest.raises(ValueError, match="device 1"):
        DeviceMemoryResource.from_allocation_handle(1, shared.allocation_handle)
    first.close()
    shared.close()


def test_the_registry_forgets_what_is_closed_or_gone(shared):
    for end in (lambda box: box.pop().close(), lambda box: box.clear()):
        box = [opened(shared)]
        box[0].register(shared.uuid)
        gone = weakref.ref(box[0])
        end(box)
        gc.collect()
        assert gone() is None
        with pytest.raises(RuntimeError, match="registered"):
            type(shared).from_registry(shared.uuid)
    # nothing_left counts the entries, too


def test_of_racing_registrations_one_wins(shared):
    for _ in range(20):
        opened_ = [opened(shared) for _ in range(4)]
        found = race(*(lambda resource=resource: resource.register(shared.uuid) for resource in opened_))
        assert len(set(map(id, found))) == 1
        assert found[0] in opened_
        for resource in opened_:
            resource.close()


@pytest.mark.parametrize("is_opened", [False, True], ids=["own", "opened"])
def test_a_closed_pool_refuses_and_says_so(shared, is_opened):
    resource = opened(shared) if is_opened else make()
    key = resource.uuid or uuid.uuid4()
    resource.close()
    assert (resource.is_ipc_enabled, resource.is_mapped, resource.uuid) == (False, False, None)
    for attempt in (
        lambda: resource.allocation_handle,
        lambda: resource.register(key),
        lambda: pickle.dumps(resource),
    ):
        with pytest.raises(RuntimeError, match="has been closed"):
            attempt()


def test_a_handle_may_be_closed_while_it_is_sent(shared):
    """The number of a closed descriptor can be another file's at once; what is sent must never be that."""
    stop = threading.Event()
    link = os.readlink(f"/proc/self/fd/{int(shared.allocation_handle)}")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    before = descriptors()

    def swap():
        while not stop.is_set():
            shared.allocation_handle.close()
            with open("/dev/null"), open("/dev/null"):
                pass

    def send():
        sent = []
        for _ in range(300):
            try:
                rebuild, arguments = _ipc._reduce_allocation_handle(shared.allocation_handle)
            except RuntimeError as error:
                assert "IPCAllocationHandle has been closed" in str(error)  # noqa: PT017
                continue
            handle = rebuild(*arguments)
            sent.append(os.readlink(f"/proc/self/fd/{int(handle)}"))
            handle.close()
        stop.set()
        return set(sent)

    try:
        assert race(swap, send) == [None, {link}]
    finally:
        sys.setswitchinterval(interval)
    resource_sharer.stop()
    assert len(descriptors()) <= len(before)


@pytest.mark.provokes_refusals
def test_a_subclass_is_shared_like_its_base(stream):
    class Own(DeviceMemoryResource):
        def __init__(self):
            raise AssertionError("not called for what was opened")

        def deallocate(self, ptr, size, *, stream):
            freed.append((ptr, size))
            super().deallocate(ptr, size, stream=stream)

    freed = []
    shared = make()
    there = Own.from_allocation_handle(0, int(shared.allocation_handle))
    assert type(there) is Own
    buffer = shared.allocate(SIZE, stream=stream)
    imports = [Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream) for _ in range(2)]
    address = imports[0].handle
    imports.pop().close()
    write(address, b"still there")
    assert read(buffer.handle, 11) == b"still there"
    imports.pop().close()
    assert freed == [(address, SIZE)] * 2
    assert driver.cuMemFreeAsync(address, 0)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    buffer.close()
    there.close()
    shared.close()


def test_opening_disturbs_no_capture(device, shared, stream):
    other = device.create_stream()
    buffer = shared.allocate(SIZE, stream=stream)
    check(driver.cuStreamBeginCapture(other.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    there = opened(shared)
    seen = Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream)
    again = Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream)
    again.close()
    with pytest.raises(CUDAError, match="CAPTURE"):
        seen.close(other)
    seen.close()
    there.close()
    graph = check(driver.cuStreamEndCapture(other.handle))
    check(driver.cuGraphDestroy(graph))
    buffer.close()
    other.close()


MANY_POOLS = """
import gc, resource
from cuda.core import CUDAError, Device
from shared_pools import descriptors, make
Device(0).set_current()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
kept = [make("device"), make("pinned")]
[each.allocation_handle for each in kept]
before = len(descriptors())
for number in range(600):
    pool = make(("device", "pinned")[number % 2])
    pool.allocation_handle
    if number % 3 == 0:
        pool.close()
    del pool
gc.collect()
assert len(descriptors()) == before, (len(descriptors()), before)
try:
    for number in range(200):
        kept.append(make("device"))
        kept[-1].allocation_handle
except CUDAError as error:
    print("refused")
stream = Device(0).create_stream()
kept.pop().close()
kept.pop().close()
buffer = kept[0].allocate(64, stream=stream)
assert buffer.ipc_descriptor.size == 64
buffer.close()
for each in kept:
    each.close()
kept.clear()
gc.collect()
assert len(descriptors()) <= before - 2
"""


@pytest.mark.sim_only
def test_ipc_04_hundreds_of_pools_return_their_descriptors_and_a_limit_is_an_error():
    assert child_output(MANY_POOLS) == "refused\n"


IN_A_FORK = """
import gc, os, sys, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
from cuda.core import Buffer, Device, Ownership
from shared_pools import SHARED_EVENT, descriptors, make, opened
from support import check, read, write
sim = sys.modules.get("cuda_driver_sim")
device = Device(0)
device.set_current()
stream = device.create_stream()
pool = make()
buffer = pool.allocate(64, stream=stream)
there = opened(pool)
there.register(pool.uuid)
imported = [Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream) for _ in range(2)]
event = stream.record(options=SHARED_EVENT)
handle = pool.allocation_handle
number = int(handle)
write(buffer.handle, b"parent")

def refused(use):
    try:
        use()
    except Exception as error:
        return type(error).__name__
    raise AssertionError("accepted")

def in_the_child():
    global pool, buffer, there, imported, event, handle
    calls = dict(sim.calls()) if sim else None
    assert all(each.ownership is Ownership.RELEASED for each in (buffer, *imported))
    assert (handle.is_closed, handle.handle) == (True, -1)
    handle.close()
    refused(lambda: int(handle))
    refused(lambda: buffer.ipc_descriptor)
    refused(lambda: imported[0].is_mapped)
    for each in imported:
        each.close()
    before = descriptors()
    pool = buffer = there = imported = handle = None
    gc.collect()
    assert descriptors() == before  # the numbers may be somebody else's by now
    assert number in before
    assert calls is None or dict(sim.calls()) == calls

sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        in_the_child()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert read(imported[0].handle, 6) == b"parent"
assert not handle.is_closed
for thing in (*imported, there, buffer, event, pool):
    thing.close()
print("whole")
"""


def test_in_the_child_of_a_fork_everything_is_lost_and_nothing_is_closed():
    assert child_output(IN_A_FORK) == "whole\n"


def test_one_of_two_openings_ends_while_the_other_has_buffers(shared, stream):
    """The driver gives one handle for both, and refuses to give up either while something is imported."""
    buffer = shared.allocate(SIZE, stream=stream)
    pools = _counters.live()["pools"]
    first, second = opened(shared), opened(shared)
    assert int(first.handle) == int(second.handle)
    assert _counters.live()["pools"] == pools + 1
    seen = Buffer.from_ipc_descriptor(second, buffer.ipc_descriptor, stream=stream)
    first.close()
    assert first.is_closed
    write(seen.handle, b"still mapped")
    assert read(buffer.handle, 12) == b"still mapped"
    third = opened(shared)
    second.close()
    seen.close()
    assert not third.is_closed
    third.close()
    stream.sync()
    assert drain(20)
    assert _counters.live()["pools"] == pools
    buffer.close()


@pytest.mark.provokes_refusals  # an opening that comes while another ends may make that wait
def test_opening_and_closing_one_pool_in_threads(shared, stream):
    """An opening may find the pool that another thread is just giving up."""
    buffer = shared.allocate(SIZE, stream=stream)
    write(buffer.handle, b"as it was")
    descriptor, pools = buffer.ipc_descriptor, _counters.live()["pools"]

    def open_look_and_close():
        for _ in range(20):
            there = opened(shared)
            seen = Buffer.from_ipc_descriptor(there, descriptor, stream=stream)
            assert read(seen.handle, 9) == b"as it was"
            seen.close()
            there.close()

    assert race(*[in_context(open_look_and_close)] * 4) == [None] * 4
    stream.sync()
    assert drain(20)
    assert _counters.live()["pools"] == pools
    buffer.close()


@pytest.mark.sim_only
def test_an_opened_pool_ends_when_the_free_of_its_last_import_has_run(driver_watch, shared, stream):
    buffer = shared.allocate(SIZE, stream=stream)
    stream.sync()
    there = opened(shared)
    seen = Buffer.from_ipc_descriptor(there, buffer.ipc_descriptor, stream=stream)
    pools = _counters.live()["pools"]
    with driver_watch.sim.hold():
        buffer.fill(1, stream=stream)
        seen.close()
        there.close()
        assert _counters.live()["pools"] == pools
    stream.sync()
    assert drain(20)
    assert _counters.live()["pools"] == pools - 1
    buffer.close()
