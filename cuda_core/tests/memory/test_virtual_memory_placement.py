# SPDX-License-Identifier: Apache-2.0
"""Where virtual memory lies: the device, the host, a node of the host. What is accepted allocates."""

import itertools
import os

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError, Host, Ownership, VirtualMemoryResource, VirtualMemoryResourceOptions
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    check,
    child_output,
    fill_granules,
    free_memory,
    granules_hold,
)


@pytest.mark.parametrize("kind", ["managed", "pageable"])
def test_val_01_no_driver_makes_managed_virtual_memory(driver_watch, kind):
    with driver_watch.no_call():
        with pytest.raises(ValueError, match=f"allocation_type.*{kind}"):
            VirtualMemoryResourceOptions(allocation_type=kind)


COMBINATIONS = list(
    itertools.product(
        ("device", "host", "host_numa", "host_numa_current"), (None, "posix_fd"), ((), (0,)), (None, 0, 99)
    )
)


@pytest.mark.provokes_refusals
@pytest.mark.parametrize(("location", "handle", "peers", "node"), COMBINATIONS, ids=str)
def test_val_03_what_is_accepted_allocates_grows_and_closes(
    device, driver_watch, location, handle, peers, node
):
    options = {"location_type": location, "handle_type": handle, "peers": peers, "numa_id": node}
    live, free = driver_watch.live(), free_memory()
    resource, error = attempt(lambda: VirtualMemoryResource(device, options), ValueError)
    assert driver_watch.live() == live, "a constructor leaves nothing"
    if error is not None:
        assert any(repr(value) in str(error) for value in (node, handle, location) if value is not None)
        assert (node is not None and location != "host_numa") or node == 99 or location == "host"
        return
    assert node != 99
    buffer = resource.allocate(GRANULE)
    address = buffer.handle
    at_host = location != "device"
    assert (buffer.is_host_accessible, buffer.device_id) == (at_host, -1 if at_host else 0)
    if at_host:
        memoryview(buffer)[:6] = b"host's"
        assert resource.get_access(buffer, Host()) == "rw"
    assert resource.get_access(buffer, device) == ("rw" if peers or not at_host else None)
    resource.set_access(buffer, device, "rw")
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    if at_host:
        assert bytes(memoryview(buffer)[:6]) == b"host's"
        assert free_memory() == free, "none of it is the device's"
    moved = buffer.handle
    buffer.close()
    assert address_free(address, GRANULE)
    assert address_free(moved, 2 * GRANULE)


def test_val_03_memory_lies_at_the_node_that_is_named(device):
    resource = VirtualMemoryResource(device, {"location_type": "host_numa", "numa_id": 0})
    buffer = resource.allocate(GRANULE)
    chunk = check(driver.cuMemRetainAllocationHandle(buffer.handle))
    place = check(driver.cuMemGetAllocationPropertiesFromHandle(chunk)).location
    check(driver.cuMemRelease(chunk))
    assert (place.type, place.id) == (driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)
    resource.set_access(buffer, device, "rw")
    fill_granules(buffer)
    assert granules_hold(buffer, 1)
    buffer.close()


@pytest.mark.provokes_refusals
def test_val_03_a_node_that_is_not_there_is_refused_by_name(device):
    with pytest.raises(ValueError, match="numa_id=99"):
        VirtualMemoryResource(device, {"location_type": "host_numa", "numa_id": 99})
    resource = VirtualMemoryResource(device, {"location_type": "host_numa"})
    resource.config.numa_id = 99
    with pytest.raises(ValueError, match="numa_id=99"):
        resource.allocate(GRANULE)
    resource.config.numa_id = 0
    buffer = resource.allocate(GRANULE)
    with blocked(buffer):
        with pytest.raises(CUDAError):
            resource.modify_allocation(
                buffer, 2 * GRANULE, config={"location_type": "host_numa", "numa_id": 99}
            )
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


@pytest.mark.parametrize(("first", "second"), [("numa_id", "location_type"), ("location_type", "numa_id")])
def test_node_and_location_are_checked_whichever_is_assigned_last(first, second):
    values = {"numa_id": 0, "location_type": "host_numa"}
    options = VirtualMemoryResourceOptions()
    if first == "numa_id":
        with pytest.raises(ValueError, match="numa_id"):
            options.numa_id = 0
        assert options.numa_id is None
        return
    setattr(options, first, values[first])
    setattr(options, second, values[second])
    with pytest.raises(ValueError, match="numa_id"):
        options.location_type = "device"
    assert (options.location_type, options.numa_id) == ("host_numa", 0)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
def test_every_call_of_making_a_resource_at_the_host_fails(device, driver_watch, sticky):
    from support import calls_in_order, warnings_seen

    def make():
        return VirtualMemoryResource(device, {"location_type": "host_numa", "numa_id": 0})

    live = driver_watch.live()
    _, calls = calls_in_order(driver_watch, make)
    for name, n in calls:
        with driver_watch.fail(name, nth=n, sticky=sticky), warnings_seen():
            resource, error = attempt(make, CUDAError)
        assert error is None or name in str(error)
        if resource is not None:
            resource.allocate(GRANULE).close()  # what could not be returned goes at the next use
        del resource
        assert driver_watch.live() == live, f"{name} {n} of {calls}"


RDMA = """
import cuda_driver_sim
cuda_driver_sim.activate()
from cuda.core import Device, VirtualMemoryResource
device = Device(0)
device.set_current()
print(device.properties.gpu_direct_rdma_supported, device.properties.gpu_direct_rdma_with_cuda_vmm_supported)
calls = dict(cuda_driver_sim.calls())
try:
    resource = VirtualMemoryResource(device, {"gpu_direct_rdma": True})
except RuntimeError as error:
    print(error)
else:
    print(resource.allocate(1).close().name)
print(cuda_driver_sim.calls().get("cuMemCreate", 0))
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("able", [True, False])
def test_val_04_the_attribute_for_virtual_memory_decides(able):
    environment = dict(os.environ)
    if not able:
        environment["CUDA_DRIVER_SIM_VIRTUAL_MEMORY_RDMA"] = "0"
    output = child_output(RDMA, environment=environment).splitlines()
    if able:
        assert output == ["True True", "DONE", "1"]
    else:
        assert output == [
            "True False",
            "GPU Direct RDMA is not supported for virtual memory on device 0",
            "0",
        ]
