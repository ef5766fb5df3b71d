# SPDX-License-Identifier: Apache-2.0
"""Who may use live memory: rights belong to chunks, change while the buffer is in use, and travel with a move."""

import pytest

from captures import capturing
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    Host,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from cuda.core.typing import VirtualMemoryAccessType
from support import (
    GRANULE,
    attempt,
    blocked,
    calls_in_order,
    check,
    fill_granules,
    granules_hold,
    place,
    race,
    rights_of_granules,
)

RIGHTS = {"rw": 3, "r": 1, None: 0}


@pytest.mark.parametrize("access", RIGHTS)
@pytest.mark.parametrize("before", RIGHTS)
def test_vmm_15_set_access_changes_every_chunk_and_travels(device, before, access):
    buffer, resource = place(device, GRANULE, stretch=8, self_access=before)
    buffer = resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
    assert rights_of_granules(buffer) == [RIGHTS[before], 1]
    resource.set_access(buffer, device, access)
    assert rights_of_granules(buffer) == [RIGHTS[access]] * 2
    assert resource.get_access(buffer, device) == access
    buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert rights_of_granules(buffer) == [RIGHTS[access]] * 2 + [RIGHTS[before]]
    with blocked(buffer):
        moved = resource.modify_allocation(buffer, 4 * GRANULE)
    assert rights_of_granules(moved) == [RIGHTS[access]] * 2 + [RIGHTS[before]] * 2
    moved.close()


@pytest.mark.two_devices
def test_vmm_15_a_peer_is_granted_and_withdrawn_on_live_memory(devices, device):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(2 * GRANULE)
    fill_granules(buffer)
    for peer, access in ((1, "r"), (devices[1], "rw"), (1, VirtualMemoryAccessType.READ)):
        resource.set_access(buffer, peer, access)
        assert rights_of_granules(buffer, device=1) == [RIGHTS[str(access)]] * 2
        assert resource.get_access(buffer, 1) == access
        assert rights_of_granules(buffer) == [3, 3], "the device's own rights are what they were"
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert rights_of_granules(buffer, device=1) == [1, 1, 0]
    assert resource.get_access(buffer, 1) is None, "the least of all chunks"
    resource.set_access(buffer, 1, None)
    assert rights_of_granules(buffer, device=1) == [0] * 3
    assert granules_hold(buffer, 2)
    buffer.close()


@pytest.mark.two_devices
def test_peers_of_the_options_can_be_withdrawn(device):
    resource = VirtualMemoryResource(device, {"peers": (1,), "peer_access": "r"})
    buffer, other = resource.allocate(GRANULE), resource.allocate(GRANULE)
    assert resource.get_access(buffer, 1) == "r"
    resource.set_access(buffer, 1, None)
    assert rights_of_granules(buffer, device=1) == [0]
    assert rights_of_granules(other, device=1) == [1], "chunks of one configuration share a list, and no fate"
    with blocked(other):
        other = resource.modify_allocation(other, 2 * GRANULE)
    assert rights_of_granules(other, device=1) == [1, 1]
    buffer.close()
    other.close()


def test_one_driver_call_however_many_chunks(resource, driver_watch):
    buffer = resource.allocate(GRANULE)
    for granules in range(2, 6):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    calls = driver_watch.calls_of(lambda: resource.set_access(buffer, 0, "rw"))
    if driver_watch.sim:
        assert calls == {"cuMemSetAccess": 1}
    with driver_watch.no_call():
        assert resource.get_access(buffer, 0) == "rw"
    buffer.close()


def test_memory_of_the_host_and_the_device(device):
    resource = VirtualMemoryResource(device, {"location_type": "host", "handle_type": None})
    buffer = resource.allocate(GRANULE)
    assert resource.get_access(buffer, Host()) == "rw"
    assert resource.get_access(buffer, device) is None
    resource.set_access(buffer, device, "rw")
    fill_granules(buffer)
    assert granules_hold(buffer, 1)
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    assert rights_of_granules(buffer) == [3, 0]
    buffer.close()


def test_memory_made_elsewhere_is_asked_of_the_driver(resource):
    from buffer_kinds import raw_virtual_memory

    buffer = Buffer.from_handle(raw_virtual_memory(GRANULE), GRANULE, resource)
    assert resource.get_access(buffer, 0) == "rw"
    resource.set_access(buffer, 0, "r")
    assert rights_of_granules(buffer) == [1]
    buffer.close()


def test_an_empty_buffer_has_no_rights_to_give(resource, driver_watch):
    buffer = resource.allocate(0)
    with driver_watch.no_call():
        resource.set_access(buffer, 0, "r")
        assert resource.get_access(buffer, 0) is None
    buffer.close()


# --- what is refused ---------------------------------------------------------------------------------------------

WRONG = [
    (0, "rwx", ValueError),
    (0, "", ValueError),
    (0, 3, TypeError),
    (0, b"r", TypeError),
    (99, "r", ValueError),
    (-1, "r", ValueError),
    (2**70, "r", ValueError),
    ("0", "r", TypeError),
    (None, "r", TypeError),
    (0.0, "r", TypeError),
    (True, "r", TypeError),
    (Host(), "r", ValueError),
    (Host(0), "r", ValueError),
]


@pytest.mark.parametrize(("place_", "access", "error"), WRONG, ids=str)
def test_arguments_that_set_access_refuses(resource, driver_watch, place_, access, error):
    buffer = resource.allocate(GRANULE)
    with driver_watch.no_call():
        with pytest.raises(error, match=r"access|device"):
            resource.set_access(buffer, place_, access)
        if access == "r":
            with pytest.raises(error, match="device"):
                resource.get_access(buffer, place_)
    assert rights_of_granules(buffer) == [3]
    buffer.close()


def test_buffers_that_set_access_refuses(device, resource, driver_watch):
    closed, open_ = resource.allocate(GRANULE), resource.allocate(GRANULE)
    closed.close()
    borrowed = Buffer.from_handle(open_.handle, GRANULE)
    foreign = VirtualMemoryResource(device).allocate(GRANULE)
    with driver_watch.no_call():
        for thing, error in (
            (None, TypeError),
            (closed, OwnershipError),
            (borrowed, OwnershipError),
            (foreign, ValueError),
        ):
            with pytest.raises(error):
                resource.set_access(thing, 0, "r")
            with pytest.raises(error):
                resource.get_access(thing, 0)
    open_.close()
    foreign.close()


def test_withdrawing_is_refused_for_a_captured_stream_and_granting_is_not(device, resource, stream):
    buffer = resource.allocate(GRANULE, stream=stream)
    with capturing(stream):
        with pytest.raises(CUDAError, match="captured"):
            resource.set_access(buffer, 0, "r")
        assert resource.get_access(buffer, 0) == "rw"
        resource.set_access(buffer, 0, "rw")
    resource.set_access(buffer, 0, "r")
    assert rights_of_granules(buffer) == [1]
    buffer.close()


@pytest.mark.sim_only
def test_withdrawing_waits_for_the_recorded_stream(resource, stream, driver_watch):
    from cuda.bindings import driver

    buffer = resource.allocate(GRANULE, stream=stream)
    with driver_watch.sim.hold():
        check(driver.cuMemsetD32Async(buffer.handle, 7, GRANULE // 4, int(stream.handle)))
        resource.set_access(buffer, 0, None)
    stream.sync()  # a write after the rights were gone would have made it fail
    resource.set_access(buffer, 0, "rw")
    buffer.close()


def test_loans_go_on_while_rights_change(resource):
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    with buffer[:16] as part:
        resource.set_access(buffer, 0, "r")
        assert buffer.loans == 1
        assert part.size == 16
    assert granules_hold(buffer, 1)
    buffer.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
def test_every_call_of_set_access_fails(device, driver_watch, sticky):
    def prepared():
        buffer, resource = place(device, GRANULE, stretch=6)
        buffer.set_deallocation_stream(LEGACY_DEFAULT_STREAM)
        return resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"}), resource

    buffer, resource = prepared()
    _, calls = calls_in_order(driver_watch, lambda: resource.set_access(buffer, 0, None))
    buffer.close()
    assert ("cuMemSetAccess", 1) in calls
    for name, n in calls:
        buffer, resource = prepared()
        with driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            _, error = attempt(lambda b=buffer, r=resource: r.set_access(b, 0, None), CUDAError)
        assert failure.fired
        if error is not None:
            assert name in str(error)
            assert rights_of_granules(buffer) == [3, 1]
            assert resource.get_access(buffer, 0) == "r"
        assert buffer.ownership is Ownership.OWNED
        resource.set_access(buffer, 0, "rw")
        assert rights_of_granules(buffer) == [3, 3]
        buffer.close()


def test_threads_that_change_rights_and_grow(resource):
    for _ in range(20):
        buffer = resource.allocate(GRANULE)
        outcomes = race(
            lambda b=buffer: resource.set_access(b, 0, "r"),
            lambda b=buffer: resource.modify_allocation(b, 2 * GRANULE),
            lambda b=buffer: resource.get_access(b, 0),
        )
        assert not any(isinstance(o, Exception) and not isinstance(o, OwnershipError) for o in outcomes), (
            outcomes
        )
        grown = outcomes[1]
        if isinstance(grown, OwnershipError):
            grown = resource.modify_allocation(buffer, 2 * GRANULE)
        assert rights_of_granules(grown)[1] == 3
        grown.close()
