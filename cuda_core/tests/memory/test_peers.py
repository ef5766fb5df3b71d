# SPDX-License-Identifier: Apache-2.0
"""``peer_accessible_by``: a set whose truth is the driver's; one call for a change, never for the owner."""

import os

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError, Device, DeviceMemoryResource, PinnedMemoryResource
from shared_pools import RawShare, make
from support import attempt, check, child_output, race, read, write

pytestmark = [pytest.mark.two_devices, pytest.mark.usefixtures("device")]
NONE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def location(ordinal):
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = ordinal
    return place


def access(pool, ordinal):
    return check(driver.cuMemPoolGetAccess(pool, location(ordinal)))


def set_access(pool, ordinal, flags):
    description = driver.CUmemAccessDesc()
    description.location = location(ordinal)
    description.flags = flags
    check(driver.cuMemPoolSetAccess(pool, [description], 1))


@pytest.fixture(params=["own", "shared", "opened"])
def resource(request, device):
    if request.param == "opened":
        share = RawShare()
        resource = DeviceMemoryResource.from_allocation_handle(0, share.number)
    else:
        share = None
        resource = make() if request.param == "shared" else DeviceMemoryResource(0, {})
    yield resource
    resource.close()
    if share is not None:
        share.close()


def test_pool_01_new_pools_have_no_peers(device):
    for _ in range(3):
        resource = DeviceMemoryResource(0, {})
        assert set(resource.peer_accessible_by) == set()
        assert access(resource.handle, 1) == NONE
        resource.peer_accessible_by = [1]
        resource.close()


RECYCLED = """
from cuda.core import Device, DeviceMemoryResource
from shared_pools import RawShare, make
import cuda_driver_sim as sim
Device(0).set_current()
for number in range(2):
    old = DeviceMemoryResource(0, {})
    print(set(old.peer_accessible_by))
    old.peer_accessible_by = [1]
    old.close()
print(set(make().peer_accessible_by))
share = RawShare()
old = DeviceMemoryResource(0, {})
old.peer_accessible_by = [1]
old.close()
sim.reset()
opened = DeviceMemoryResource.from_allocation_handle(0, share.number)
print(set(opened.peer_accessible_by), sim.calls()["cuMemPoolSetAccess"], sim.refused().total)
"""


@pytest.mark.sim_only
def test_pool_01_rights_of_a_recycled_handle_are_withdrawn():
    """A driver may give the handle of a destroyed pool to a new one, with the rights that were granted to the old."""
    environment = {**os.environ, "CUDA_DRIVER_SIM_OLD_RIGHTS": "1"}
    assert child_output(RECYCLED, environment=environment) == "set()\n" * 3 + "set() 1 0\n"


def test_pool_01_the_state_is_the_drivers(resource):
    """Access that was changed through the bindings is seen, also by a view that was there before."""
    peers = resource.peer_accessible_by
    assert (len(peers), 1 in peers) == (0, False)
    set_access(resource.handle, 1, READ_WRITE)
    assert (len(peers), 1 in peers, list(peers)) == (1, True, [Device(1)])
    set_access(resource.handle, 1, NONE)
    assert (len(peers), 1 in peers, list(peers)) == (0, False, [])


def test_pool_01_one_checked_call_a_change_and_never_the_owner(driver_watch, resource):
    peers = resource.peer_accessible_by

    def assign(value):
        resource.peer_accessible_by = value

    changes = [
        (lambda: peers.add(1), 1, {1}),
        (lambda: peers.add(Device(1)), 0, {1}),
        (lambda: peers.add(0), 0, {1}),
        (lambda: peers.discard(0), 0, {1}),
        (lambda: peers.update([0, 1], [1]), 0, {1}),
        (lambda: peers.clear(), 1, set()),
        (lambda: peers.clear(), 0, set()),
        (lambda: assign([0, 1, Device(1)]), 1, {1}),
        (lambda: assign({1}), 0, {1}),
        (lambda: assign(()), 1, set()),
        (lambda: peers.__ior__({1}), 1, {1}),
        (lambda: peers.__isub__({0, 1}), 1, set()),
        (lambda: peers.symmetric_difference_update([0, 1]), 1, {1}),
        (lambda: peers.__iand__({1}), 0, {1}),
        (lambda: peers.intersection_update([1], [0]), 1, set()),
        (lambda: peers.__ixor__({1}), 1, {1}),
        (lambda: peers.difference_update([1], [0]), 1, set()),
        (lambda: peers.add(1), 1, {1}),
        (lambda: peers.remove(1), 1, set()),
    ]
    for change, calls, left in changes:
        done = driver_watch.calls_of(change)
        if driver_watch.sim:
            assert done.get("cuMemPoolSetAccess", 0) == calls
        assert {device.device_id for device in peers} == left
    assert driver_watch.refused() == []


def test_it_is_a_set_of_devices(resource):
    one, other = Device(0), Device(1)
    peers = resource.peer_accessible_by
    peers.add(1)
    assert peers == {other}
    assert resource.peer_accessible_by == peers
    assert peers | {one} == {one, other}
    assert type(peers | {one}) is set
    assert (peers & {other}, peers - {other}, peers ^ {one, other}) == ({other}, set(), {one})
    assert peers <= {one, other}
    assert peers.isdisjoint({one})
    assert repr(peers) == f"PeerAccessibleBySetProxy({{{other!r}}})"
    assert peers.pop() is other
    with pytest.raises(KeyError):
        peers.pop()
    with pytest.raises(KeyError):
        peers.remove(1)
    with pytest.raises(TypeError):
        hash(peers)


def test_what_is_no_device_is_in_no_set_and_cannot_be_added(driver_watch, resource):
    peers = resource.peer_accessible_by
    peers.add(1)
    for value, error in (
        (None, TypeError),
        ("1", TypeError),
        (1.0, TypeError),
        (object(), TypeError),
        (-1, ValueError),
        (99, ValueError),
        (2**70, ValueError),
    ):
        assert value not in peers
        peers.discard(value)
        for change in (
            peers.add,
            lambda value: peers.update([0, value]),
            lambda value: setattr(resource, "peer_accessible_by", [value]),
            lambda value: peers.symmetric_difference_update([value]),
        ):
            with pytest.raises(error, match="device_id"):
                change(value)
        with pytest.raises(KeyError):
            peers.remove(value)
    for value in (None, 1):
        with pytest.raises(TypeError):
            resource.peer_accessible_by = value
    assert set(peers) == {Device(1)}


def test_a_peer_uses_the_memory_and_no_longer_when_it_is_taken_away(driver_watch, device, stream):
    resource = DeviceMemoryResource(0, {})
    buffer = resource.allocate(64, stream=stream)
    stream.sync()
    there = Device(1)
    there.set_current()
    other = there.create_stream()
    resource.peer_accessible_by = [there]
    buffer.fill(5, stream=other)
    other.sync()
    device.set_current()
    assert read(buffer.handle, 4) == b"\5" * 4
    resource.peer_accessible_by = []
    assert access(resource.handle, 1) == NONE
    assert access(resource.handle, 0) == READ_WRITE
    write(buffer.handle, b"mine")
    other.close()
    buffer.close()
    resource.close()


def test_the_devices_own_pool_can_be_shared_and_is_left_as_it_is(device):
    resource = DeviceMemoryResource(0)
    before = set(resource.peer_accessible_by)
    resource.peer_accessible_by.add(1)
    assert Device(1) in DeviceMemoryResource(0).peer_accessible_by
    resource.peer_accessible_by = before
    resource.close()


def test_a_closed_resource_refuses(driver_watch, device):
    resource = DeviceMemoryResource(0, {})
    peers = resource.peer_accessible_by
    resource.close()
    with driver_watch.no_call():
        for use in (
            lambda: len(peers),
            lambda: list(peers),
            lambda: repr(peers),
            lambda: resource.peer_accessible_by,
            lambda: setattr(resource, "peer_accessible_by", []),
        ):
            with pytest.raises(RuntimeError, match="has been closed"):
                use()


def test_only_pools_of_a_device_have_peers():
    assert not hasattr(PinnedMemoryResource, "peer_accessible_by")


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
def test_every_call_fails(driver_watch, resource, sticky):
    def change():
        resource.peer_accessible_by = [1]

    def read_them():
        return set(resource.peer_accessible_by)

    for operation in (change, read_them):
        resource.peer_accessible_by = []
        with driver_watch.sim.logged() as log:
            operation()
        counts = {}
        for call in log.calls:
            counts[call.name] = counts.get(call.name, 0) + 1
        for name, total in counts.items():
            for nth in range(1, total + 1):
                resource.peer_accessible_by = []
                with driver_watch.fail(name, nth=nth, sticky=sticky) as failure:
                    _, error = attempt(operation, CUDAError)
                assert failure.fired, f"{name} {nth} did not fail"
                if error is None:  # giving the capture mode back
                    assert name == "cuThreadExchangeStreamCaptureMode"
                else:
                    assert name in str(error)
                    assert set(resource.peer_accessible_by) in (set(), {Device(1)})
                check(
                    driver.cuThreadExchangeStreamCaptureMode(
                        driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
                    )
                )
    assert access(resource.handle, 0) == READ_WRITE


def test_changes_from_threads_leave_what_one_of_them_asked_for(resource):
    peers = resource.peer_accessible_by

    def toggle():
        for _ in range(50):
            peers.add(1)
            peers.discard(1)

    assert race(toggle, toggle, lambda: [set(peers) for _ in range(50)] and None) == [None] * 3
    assert set(peers) <= {Device(1)}


def test_no_capture_is_disturbed(device, resource, stream):
    check(
        driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    )
    resource.peer_accessible_by = [1]
    assert set(resource.peer_accessible_by) == {Device(1)}
    resource.peer_accessible_by.clear()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
