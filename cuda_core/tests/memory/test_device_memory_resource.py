# SPDX-License-Identifier: Apache-2.0
"""``DeviceMemoryResource``: which pool it uses, its options and attributes; what a device allocates from."""

import os

import pytest

from cuda.bindings import driver
from cuda.core import (
    CUDAError,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    MemoryResource,
    Ownership,
)
from python_resources import Plain
from support import check, child_output, free_memory, name_of, race

pytestmark = pytest.mark.usefixtures("device")


# --- which pool --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, "device"], ids=str)
def test_without_options_it_is_the_devices_current_pool(device, given, threshold):
    resource = DeviceMemoryResource(device if given == "device" else given)
    assert int(resource.handle) == int(check(driver.cuDeviceGetMemPool(0)))
    assert (resource.device_id, resource.is_handle_owned) == (0, False)
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, False)
    assert not resource.is_managed


@pytest.mark.two_devices
def test_a_pool_that_was_made_current_is_used(stream):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 1
    before = check(driver.cuDeviceGetMemPool(1))
    mine = check(driver.cuMemPoolCreate(properties))
    check(driver.cuDeviceSetMemPool(1, mine))
    try:
        resource = DeviceMemoryResource(1)
        assert int(resource.handle) == int(mine)
        buffer = resource.allocate(4096, stream=stream)
        assert buffer.device_id == 1
        buffer.close()
        resource.close()
        assert int(check(driver.cuDeviceGetMemPool(1))) == int(mine)
    finally:
        check(driver.cuDeviceSetMemPool(1, before))
        check(driver.cuMemPoolDestroy(mine))


@pytest.mark.parametrize("options", [{}, {"max_size": 4 << 20}, DeviceMemoryResourceOptions()], ids=str)
def test_with_options_it_is_a_pool_of_its_own(options, stream):
    first, second = DeviceMemoryResource(0, options), DeviceMemoryResource(0, options)
    assert len({int(first.handle), int(second.handle), int(check(driver.cuDeviceGetMemPool(0)))}) == 3
    assert first.is_handle_owned
    buffer = first.allocate(4096, stream=stream)
    assert (first.attributes.used_mem_current, second.attributes.used_mem_current) == (4096, 0)
    buffer.close()


@pytest.mark.provokes_refusals
def test_a_pool_takes_no_more_than_its_most(stream):
    resource = DeviceMemoryResource(0, {"max_size": 32 << 20})
    buffer = resource.allocate(24 << 20, stream=stream)
    with pytest.raises(CUDAError, match="OUT_OF_MEMORY"):
        resource.allocate(24 << 20, stream=stream)
    assert buffer.ownership is Ownership.OWNED
    buffer.close()
    resource.allocate(24 << 20, stream=stream).close()


def test_making_one_needs_no_context(stream):
    def make():
        assert int(check(driver.cuCtxGetCurrent())) == 0
        resource = DeviceMemoryResource(0, {})
        resource.allocate(4096, stream=stream).close()
        return resource.attributes.used_mem_current

    assert race(make) == [0]


def test_a_pool_returns_its_memory(stream):
    free = free_memory()
    resource = DeviceMemoryResource(0, {})
    buffer = resource.allocate(4096, stream=stream)
    assert free_memory() < free
    buffer.close()
    resource.close()
    stream.sync()
    assert free_memory() == free


# --- the release threshold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 64 << 20, 2**64 - 1])
def test_pool_02_a_threshold_that_somebody_has_set_is_left_alone(threshold, stream, value):
    threshold.set(value)
    resource = DeviceMemoryResource(0)
    resource.allocate(4096, stream=stream).close()
    resource.close()
    assert threshold.get() == value


def test_the_driver_s_threshold_is_raised_so_that_memory_is_kept(threshold):
    threshold.set(0)
    resource = DeviceMemoryResource(0)
    assert threshold.get() == resource.attributes.release_threshold == 2**64 - 1


def test_a_pool_of_its_own_keeps_nothing_that_is_unused(stream):
    resource = DeviceMemoryResource(0, {})
    resource.allocate(4096, stream=stream).close()
    stream.sync()
    assert resource.attributes.release_threshold == 0
    assert resource.attributes.reserved_mem_current == 0


# --- attributes --------------------------------------------------------------------------------------------------

NAMES = (
    "release_threshold",
    "reserved_mem_current",
    "reserved_mem_high",
    "reuse_allow_internal_dependencies",
    "reuse_allow_opportunistic",
    "reuse_follow_event_dependencies",
    "used_mem_current",
    "used_mem_high",
)


def test_every_attribute_is_what_the_driver_says(stream):
    resource = DeviceMemoryResource(0, {})
    buffer, other = resource.allocate(1000, stream=stream), resource.allocate(500, stream=stream)
    other.close()
    attributes = resource.attributes
    for name in NAMES:
        asked = getattr(driver.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name.upper()}")
        value = getattr(attributes, name)
        assert type(value) is (bool if name.startswith("reuse") else int)
        assert value == int(check(driver.cuMemPoolGetAttribute(int(resource.handle), asked))), name
    assert (attributes.used_mem_current, attributes.used_mem_high) == (1000, 1500)
    assert attributes.reserved_mem_high >= attributes.reserved_mem_current >= 1000
    assert (
        repr(attributes)
        == "_MemPoolAttributes(" + ", ".join(f"{n}={getattr(attributes, n)}" for n in NAMES) + ")"
    )
    buffer.close()


@pytest.mark.parametrize("name", NAMES)
def test_attributes_cannot_be_set(name):
    attributes = DeviceMemoryResource(0, {}).attributes
    with pytest.raises(AttributeError):
        setattr(attributes, name, 1)


def test_attributes_come_from_a_resource():
    with pytest.raises(RuntimeError, match="cannot be made directly"):
        type(DeviceMemoryResource(0, {}).attributes)()


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), ValueError),
        ((99,), ValueError),
        (("0",), TypeError),
        ((0.0,), TypeError),
        ((None,), TypeError),
        ((), TypeError),
        ((0, 5), TypeError),
        ((0, "max_size"), TypeError),
        ((0, [("max_size", 1)]), TypeError),
        ((0, {"size": 1}), TypeError),
        ((0, {"max_size": -1}), ValueError),
        ((0, {"max_size": 1.5}), TypeError),
        ((0, {"max_size": "1"}), TypeError),
        ((0, {"max_size": None}), TypeError),
        ((0, {"max_size": True}), TypeError),
        ((0, {"max_size": 2**64}), OverflowError),
        ((0, {"ipc_enabled": 1}), TypeError),
        ((0, {"ipc_enabled": None}), TypeError),
    ],
    ids=name_of,
)
def test_odd_arguments_are_refused_and_make_no_pool(driver_watch, arguments, error):
    live = driver_watch.live()

    def make():
        with pytest.raises(error):
            DeviceMemoryResource(*arguments)

    calls = driver_watch.calls_of(make)
    assert set(calls) <= {"cuDeviceGetCount"}
    assert driver_watch.live() == live


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("max_size", -1, ValueError),
        ("max_size", "1", TypeError),
        ("max_size", 2**63, OverflowError),
        ("ipc_enabled", "yes", TypeError),
    ],
)
def test_options_are_checked_when_assigned(name, value, error):
    options = DeviceMemoryResourceOptions()
    before = repr(options)
    with pytest.raises(error, match=name):
        setattr(options, name, value)
    assert repr(options) == before == "DeviceMemoryResourceOptions(ipc_enabled=False, max_size=0)"


def test_the_options_that_were_given_stay_the_callers():
    options = DeviceMemoryResourceOptions(max_size=32 << 20)
    resource = DeviceMemoryResource(0, options)
    options.max_size = 0
    assert DeviceMemoryResource(0, options).handle != resource.handle


def test_a_shareable_pool(stream):
    resource = DeviceMemoryResource(0, {"ipc_enabled": True})
    assert (resource.is_ipc_enabled, resource.is_mapped) == (True, False)
    assert resource.uuid == resource.uuid is not None
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    descriptor = check(driver.cuMemPoolExportToShareableHandle(int(resource.handle), kind, 0))
    os.close(int(descriptor))
    resource.allocate(4096, stream=stream).close()
    resource.close()
    assert (resource.is_ipc_enabled, resource.uuid) == (False, None)


# --- what a device allocates from --------------------------------------------------------------------------------


def test_a_device_allocates_from_its_current_pool(device, stream, threshold):
    device._memory_resource = None
    resource = device.memory_resource
    assert type(resource) is DeviceMemoryResource
    assert device.memory_resource is resource
    assert (resource.device_id, resource.is_handle_owned) == (0, False)
    buffer = device.allocate(4096, stream=stream)
    assert (buffer.memory_resource, buffer.size, buffer.device_id) == (resource, 4096, 0)
    buffer.close()


def test_the_resource_of_a_device_can_be_set(device, stream, threshold):
    before = device.memory_resource
    mine = Plain()
    try:
        for resource in (DeviceMemoryResource(0, {}), LegacyPinnedMemoryResource(), mine):
            device.memory_resource = resource
            assert device.memory_resource is resource
            buffer = device.allocate(4096, stream=stream)
            assert buffer.memory_resource is resource
            buffer.close()
        assert len(mine.asked) == 1
        mine.asked.clear()
    finally:
        device.memory_resource = before


@pytest.mark.parametrize("wrong", [None, 5, "pool", MemoryResource, object()], ids=name_of)
def test_what_is_no_resource_is_refused(device, threshold, wrong):
    before = device.memory_resource
    with pytest.raises(TypeError, match="memory_resource must be a MemoryResource"):
        device.memory_resource = wrong
    assert device.memory_resource is before


def test_a_device_allocates_on_a_stream_that_is_given(device, threshold):
    device.memory_resource  # noqa: B018 - made before, so that nothing below has to be
    with pytest.raises(TypeError, match="stream is required"):
        device.allocate(4096, stream=None)
    with pytest.raises(TypeError, match="stream"):
        device.allocate(4096)
    with pytest.raises(ValueError):
        device.allocate(-1, stream=device.default_stream)
    device.allocate(4096, stream=device.default_stream).close()


@pytest.mark.two_devices
def test_a_device_that_is_not_current_does_not_allocate(devices, stream):
    with pytest.raises(CUDAError, match=r"Device 1.*set_current"):
        devices[1].allocate(4096, stream=stream)


WITHOUT_POOLS = """
from cuda.core import Device, DeviceMemoryResource, PinnedMemoryResource
device = Device(0)
device.set_current()
stream = device.create_stream()
print(device.properties.memory_pools_supported, type(device.memory_resource).__name__, device.memory_resource.device_id)
buffer = device.allocate(4096, stream=stream)
print(buffer.size, buffer.device_id, buffer.close().name)
for make in (lambda: DeviceMemoryResource(0), lambda: DeviceMemoryResource(0, {}), PinnedMemoryResource):
    try:
        make()
    except Exception as error:
        print(type(error).__name__, str(error).split(":")[0])
"""


@pytest.mark.sim_only
def test_a_device_without_pools_allocates_plain_memory():
    environment = os.environ | {"CUDA_DRIVER_SIM_POOLS": "0"}
    assert child_output(WITHOUT_POOLS, environment=environment).splitlines() == [
        "False _SynchronousMemoryResource 0",
        "4096 0 DONE",
        "CUDAError CUDA_ERROR_NOT_SUPPORTED",
        "CUDAError CUDA_ERROR_NOT_SUPPORTED",
        "RuntimeError no device supports memory pools at the host; LegacyPinnedMemoryResource allocates without a pool",
    ]
