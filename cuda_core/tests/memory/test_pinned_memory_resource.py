# SPDX-License-Identifier: Apache-2.0
"""``PinnedMemoryResource``: where its pool lies, who may use it, and its options."""

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError, PinnedMemoryResource, PinnedMemoryResourceOptions
from support import check, name_of, race

pytestmark = pytest.mark.usefixtures("device")

LOCATION = driver.CUmemLocationType


def rights_of(resource, ordinal):
    location = driver.CUmemLocation()
    location.type = LOCATION.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return int(check(driver.cuMemPoolGetAccess(int(resource.handle), location)))


@pytest.mark.parametrize(
    ("options", "node", "owned", "shareable"),
    [
        (None, -1, False, False),
        ({}, -1, True, False),
        ({"max_size": 1 << 20}, -1, True, False),
        ({"numa_id": 0}, 0, True, False),
        ({"ipc_enabled": True}, 0, True, True),
        ({"ipc_enabled": True, "numa_id": 0}, 0, True, True),
        (PinnedMemoryResourceOptions(numa_id=0), 0, True, False),
    ],
    ids=str,
)
def test_where_the_memory_lies(options, node, owned, shareable, stream):
    resource = PinnedMemoryResource(options) if options is not None else PinnedMemoryResource()
    assert (resource.numa_id, resource.device_id) == (node, -1)
    assert (resource.is_handle_owned, resource.is_ipc_enabled, resource.uuid is not None) == (
        owned,
        shareable,
        shareable,
    )
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (
        True,
        True,
        False,
    )
    buffer = resource.allocate(4096, stream=stream)
    stream.sync()
    assert buffer.device_id == -1
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert int(check(driver.cuPointerGetAttributes(1, [attribute], buffer.handle))[0]) == 1
    with memoryview(buffer) as view:
        view[:5] = b"hello"
        assert bytes(view[:5]) == b"hello"
    buffer.close()


@pytest.mark.parametrize("options", [None, {}, {"numa_id": 0}], ids=str)
def test_every_device_may_use_it(options, devices, stream):
    """The driver lets none until it is granted."""
    resource = PinnedMemoryResource(options)
    for device in devices:
        if device.properties.host_memory_pools_supported:
            assert rights_of(resource, device.device_id) == 3
    buffer = resource.allocate(4096, stream=stream)
    check(driver.cuMemsetD8Async(buffer.handle, 7, 4096, int(stream.handle)))
    stream.sync()
    with memoryview(buffer) as view:
        assert bytes(view) == bytes([7]) * 4096
    buffer.close()


def test_rights_that_somebody_has_given_to_the_current_pool_stay(driver_watch):
    PinnedMemoryResource().close()
    calls = driver_watch.calls_of(PinnedMemoryResource)
    assert "cuMemPoolSetAccess" not in calls


@pytest.mark.provokes_refusals
def test_a_node_that_is_not_there_is_refused_and_leaves_nothing(driver_watch):
    live = driver_watch.live()
    with pytest.raises(CUDAError, match="cuMemPoolCreate"):
        PinnedMemoryResource({"numa_id": 77})
    assert driver_watch.live() == live


def test_the_nearest_node_is_that_of_the_current_device():
    (error,) = race(lambda: PinnedMemoryResource({"ipc_enabled": True}))
    assert isinstance(error, RuntimeError)
    assert "no context is current" in str(error)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (5, TypeError),
        ("numa", TypeError),
        ({"node": 0}, TypeError),
        ({"numa_id": -1}, ValueError),
        ({"numa_id": 2**31}, ValueError),
        ({"numa_id": "0"}, TypeError),
        ({"numa_id": 0.0}, TypeError),
        ({"numa_id": True}, TypeError),
        ({"max_size": -1}, ValueError),
        ({"max_size": 1.0}, TypeError),
        ({"ipc_enabled": "yes"}, TypeError),
    ],
    ids=name_of,
)
def test_odd_options_are_refused_before_any_call(driver_watch, options, error):
    with driver_watch.no_call(), pytest.raises(error):
        PinnedMemoryResource(options)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("numa_id", -1, ValueError),
        ("numa_id", "0", TypeError),
        ("max_size", -1, ValueError),
        ("ipc_enabled", 1, TypeError),
    ],
)
def test_options_are_checked_when_assigned(name, value, error):
    options = PinnedMemoryResourceOptions()
    with pytest.raises(error, match=name):
        setattr(options, name, value)
    assert repr(options) == "PinnedMemoryResourceOptions(ipc_enabled=False, max_size=0, numa_id=None)"
