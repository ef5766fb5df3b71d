# SPDX-License-Identifier: Apache-2.0
"""The options of virtual memory: what is accepted, what each of them does, and that they are never changed."""

import inspect

import pytest

from cuda.bindings import driver
from cuda.core import Device, Ownership, VirtualMemoryResource, VirtualMemoryResourceOptions
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    fill_granules,
    free_memory,
    granules_hold,
    open_stretch,
    rights_of_granules,
)

FIELDS = (
    "allocation_type",
    "location_type",
    "handle_type",
    "granularity",
    "gpu_direct_rdma",
    "addr_hint",
    "addr_align",
    "peers",
    "self_access",
    "peer_access",
    "reserve_size",
    "growth",
    "numa_id",
    "wait_on_close",
)
DEFAULTS = (
    *("pinned", "device", "posix_fd", "recommended", False, 0, None, (), "rw", "rw", 0),
    *("exact", None, True),
)


def test_names_order_and_defaults():
    assert tuple(inspect.signature(VirtualMemoryResourceOptions).parameters) == FIELDS
    options = VirtualMemoryResourceOptions()
    assert tuple(getattr(options, field) for field in FIELDS) == DEFAULTS


def test_by_position_they_read_as_given():
    given = (
        *("pinned", "host_numa", None, "minimum", False, GRANULE, 4 * GRANULE, (1,), "r", "r", 3 * GRANULE),
        *("geometric", 0, False),
    )
    options = VirtualMemoryResourceOptions(*given)
    assert tuple(getattr(options, field) for field in FIELDS) == given


def test_equal_values_are_equal_options():
    assert VirtualMemoryResourceOptions() == VirtualMemoryResourceOptions()
    assert VirtualMemoryResourceOptions(reserve_size=1) != VirtualMemoryResourceOptions(reserve_size=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("location_type", "device"),
        ("location_type", "host_numa"),
        ("location_type", "host_numa_current"),
        ("handle_type", None),
        ("handle_type", "posix_fd"),
        ("handle_type", "fabric"),
        ("granularity", "minimum"),
        ("gpu_direct_rdma", True),
        ("addr_hint", None),
        ("addr_hint", 8 * GRANULE),
        ("addr_align", 1 << 30),
        ("addr_align", 1),
        ("peers", (0, 1)),
        ("peers", [1]),
        ("self_access", "r"),
        ("self_access", None),
        ("peer_access", "r"),
        ("peer_access", None),
        ("reserve_size", 0),
        ("reserve_size", 2**62),
        ("growth", "exact"),
        ("growth", "geometric"),
        ("numa_id", None),
        ("wait_on_close", False),
    ],
)
def test_good_values_are_accepted_given_and_assigned(option, value):
    given = VirtualMemoryResourceOptions(**{option: value})
    assigned = VirtualMemoryResourceOptions()
    setattr(assigned, option, value)
    assert getattr(given, option) == getattr(assigned, option)
    if not isinstance(value, list):
        assert getattr(given, option) == value


def test_memory_at_the_host_has_no_shareable_handle():
    """The driver refuses it, so the options do, whichever of the two is given last."""
    with pytest.raises(ValueError, match="handle_type"):
        VirtualMemoryResourceOptions(location_type="host")
    options = VirtualMemoryResourceOptions(location_type="host", handle_type=None)
    assert (options.location_type, options.handle_type) == ("host", None)
    with pytest.raises(ValueError, match="handle_type"):
        options.handle_type = "posix_fd"
    assert options.handle_type is None


def test_the_enumerations_of_the_typing_module_are_accepted():
    from cuda.core import typing

    options = VirtualMemoryResourceOptions(
        allocation_type=typing.VirtualMemoryAllocationType.PINNED,
        location_type=typing.VirtualMemoryLocationType.DEVICE,
        handle_type=typing.VirtualMemoryHandleType.POSIX_FD,
        granularity=typing.VirtualMemoryGranularityType.MINIMUM,
        self_access=typing.VirtualMemoryAccessType.READ_WRITE,
        peer_access=typing.VirtualMemoryAccessType.READ,
    )
    assert (options.location_type, options.granularity, options.peer_access) == ("device", "minimum", "r")


@pytest.mark.parametrize(
    "config",
    [None, {}, VirtualMemoryResourceOptions(), {"granularity": "minimum"}, {"handle_type": None}],
    ids=["none", "empty dict", "options", "minimum", "no handle type"],
)
def test_a_resource_takes_options_a_dict_or_nothing(device, config):
    resource = VirtualMemoryResource(device, config)
    assert isinstance(resource.config, VirtualMemoryResourceOptions)
    assert resource.device is device
    assert resource.device_id == 0
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, False)
    with resource.allocate(GRANULE) as buffer:
        fill_granules(buffer)
        assert granules_hold(buffer, 1)


def test_a_resource_takes_an_ordinal_or_a_device(device):
    for given in (0, device, Device(0)):
        resource = VirtualMemoryResource(given)
        assert resource.device_id == 0
        assert resource.device.device_id == 0
        resource.allocate(1).close()


def test_allocating_and_growing_leave_the_options_alone(device):
    config = VirtualMemoryResourceOptions(reserve_size=2 * GRANULE)
    resource = VirtualMemoryResource(device, config)
    before = repr(resource.config)
    buffer = resource.allocate(GRANULE)
    buffer = resource.modify_allocation(buffer, 5 * GRANULE, config={"self_access": "r", "reserve_size": 0})
    assert repr(resource.config) == before
    buffer.close()


def test_addr_hint_places_the_buffer(device):
    base = open_stretch(4)
    resource = VirtualMemoryResource(device, {"addr_hint": base})
    first = resource.allocate(2 * GRANULE)
    assert first.handle == base
    second = resource.allocate(GRANULE)  # the hint is taken; the driver chooses
    assert second.handle != base
    first.close()
    second.close()


@pytest.mark.parametrize("align", [GRANULE, 16 * GRANULE, 1 << 30])
def test_addr_align_aligns_the_buffer_also_when_it_moves(device, align):
    resource = VirtualMemoryResource(device, {"addr_align": align})
    buffer = resource.allocate(GRANULE)
    assert buffer.handle % align == 0
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    assert buffer.handle % align == 0
    fill_granules(buffer)
    assert granules_hold(buffer, 2)
    buffer.close()


@pytest.mark.parametrize(("access", "rights"), [("rw", 3), ("r", 1)])
def test_self_access_decides_what_the_device_may_do(device, access, rights):
    resource = VirtualMemoryResource(device, {"self_access": access})
    buffer = resource.allocate(2 * GRANULE)
    assert rights_of_granules(buffer) == [rights, rights]
    buffer.close()


@pytest.mark.provokes_refusals
def test_read_only_memory_refuses_a_write(device):
    buffer = VirtualMemoryResource(device, {"self_access": "r"}).allocate(GRANULE)
    assert driver.cuMemsetD8(buffer.handle, 1, 16)[0] != driver.CUresult.CUDA_SUCCESS
    buffer.close()


def test_no_access_at_all_makes_no_rights(device):
    resource = VirtualMemoryResource(device, {"self_access": None})
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    assert rights_of_granules(buffer) == [0]
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    assert rights_of_granules(buffer) == [0, 0]
    buffer.close()
    assert free_memory() == free


@pytest.mark.parametrize("handle_type", [None, "posix_fd"])
@pytest.mark.parametrize("location", ["host", "host_numa", "host_numa_current"])
def test_memory_at_the_host_allocates_and_closes_or_is_refused_whole(device, location, handle_type):
    """Each combination either works or is refused when the resource is made."""
    options = {"location_type": location, "handle_type": handle_type}
    resource, error = attempt(lambda: VirtualMemoryResource(device, options), (ValueError, RuntimeError))
    if error is not None:
        assert location in str(error)
        return
    assert (resource.device_id, resource.device) == (-1, None)
    assert resource.is_host_accessible
    buffer = resource.allocate(GRANULE)
    address = buffer.handle
    assert buffer.ownership is Ownership.OWNED
    with blocked(buffer):
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    moved_to = buffer.handle
    buffer.close()
    assert address_free(address, GRANULE)
    assert address_free(moved_to, 2 * GRANULE)


def test_a_reservation_ahead_needs_no_more_than_it_says(device):
    base = open_stretch(12)
    resource = VirtualMemoryResource(device, {"addr_hint": base, "reserve_size": 6 * GRANULE})
    buffer = resource.allocate(GRANULE)
    assert buffer.handle == base
    assert not address_free(base + 5 * GRANULE, GRANULE)
    assert address_free(base + 6 * GRANULE, 6 * GRANULE)
    buffer.close()


def test_repr_says_what_it_is(device):
    resource = VirtualMemoryResource(device)
    assert "VirtualMemoryResource" in repr(resource)
    assert "reserve_size" in repr(resource.config)
