# SPDX-License-Identifier: Apache-2.0
"""``ManagedMemoryResource``: where its memory preferably lies, and its options."""

import pytest

from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    ManagedBuffer,
    ManagedMemoryResource,
    ManagedMemoryResourceOptions,
)
from cuda.core.typing import ManagedMemoryLocationType
from held_work import Gate
from support import check, name_of, race, still_allocated

pytestmark = pytest.mark.usefixtures("device")

DEVICE, HOST, HOST_NUMA = ManagedMemoryLocationType


@pytest.mark.parametrize(
    ("options", "preferred"),
    [
        (None, None),
        ({}, None),
        ({"preferred_location": 0}, (DEVICE, 0)),
        ({"preferred_location": -1}, (HOST, None)),
        ({"preferred_location": 0, "preferred_location_type": "device"}, (DEVICE, 0)),
        ({"preferred_location_type": HOST}, (HOST, None)),
        ({"preferred_location_type": "host_numa"}, (HOST_NUMA, 0)),
        ({"preferred_location": 0, "preferred_location_type": "host_numa"}, (HOST_NUMA, 0)),
        (ManagedMemoryResourceOptions(preferred_location=0), (DEVICE, 0)),
    ],
    ids=str,
)
def test_where_the_memory_preferably_lies(options, preferred, stream):
    resource = ManagedMemoryResource(options) if options is not None else ManagedMemoryResource()
    assert resource.preferred_location == preferred
    assert resource.device_id == (0 if preferred and preferred[0] == "device" else -1)
    assert (resource.is_handle_owned, resource.is_ipc_enabled) == (options is not None, False)
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (
        True,
        True,
        True,
    )
    buffer = resource.allocate(4096, stream=stream)
    assert (buffer.is_managed, buffer.device_id) == (True, resource.device_id)
    check(driver.cuMemsetD8Async(buffer.handle, 9, 4096, int(stream.handle)))
    stream.sync()
    with memoryview(buffer) as view:
        assert bytes(view) == bytes([9]) * 4096
        view[:2] = b"xy"
    buffer.close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (5, TypeError, "options must be"),
        ({"location": 0}, TypeError, "location"),
        ({"preferred_location": -2}, ValueError, "-2"),
        ({"preferred_location": 1.5}, TypeError, "1.5"),
        ({"preferred_location": "0"}, TypeError, "'0'"),
        ({"preferred_location": True}, TypeError, "True"),
        ({"preferred_location_type": "moon"}, ValueError, "moon"),
        ({"preferred_location_type": "host_numa_current"}, ValueError, "host_numa_current"),
        ({"preferred_location_type": 1}, TypeError, "1"),
        ({"preferred_location_type": "device"}, ValueError, "device ordinal.*None"),
        ({"preferred_location_type": "device", "preferred_location": -1}, ValueError, "device ordinal.*-1"),
        ({"preferred_location_type": "host", "preferred_location": 0}, ValueError, "must be None.*0"),
        ({"preferred_location_type": "host_numa", "preferred_location": -1}, ValueError, "NUMA node.*-1"),
    ],
    ids=name_of,
)
def test_man_01_odd_options_are_refused_before_any_call(driver_watch, options, error, text):
    with driver_watch.no_call(), pytest.raises(error, match=text):
        ManagedMemoryResource(options)


def test_man_01_a_device_that_is_not_there_is_refused(driver_watch):
    def make():
        with pytest.raises(ValueError, match="99"):
            ManagedMemoryResource({"preferred_location": 99})

    calls = driver_watch.calls_of(make)
    assert set(calls) <= {"cuDeviceGetCount"}


@pytest.mark.provokes_refusals
def test_man_01_a_node_that_is_not_there_is_refused_and_leaves_nothing(driver_watch):
    live = driver_watch.live()
    with pytest.raises(CUDAError, match="cuMemPoolCreate"):
        ManagedMemoryResource({"preferred_location": 77, "preferred_location_type": "host_numa"})
    assert driver_watch.live() == live


def test_the_nearest_node_is_that_of_the_current_device():
    (error,) = race(lambda: ManagedMemoryResource({"preferred_location_type": "host_numa"}))
    assert isinstance(error, RuntimeError)
    assert "no context is current" in str(error)


def test_options_are_checked_when_assigned_and_together_when_used():
    options = ManagedMemoryResourceOptions()
    for name, value, error in (
        ("preferred_location", -2, ValueError),
        ("preferred_location", "0", TypeError),
        ("preferred_location_type", "moon", ValueError),
    ):
        with pytest.raises(error, match=name):
            setattr(options, name, value)
    options.preferred_location_type = "host"
    assert options.preferred_location_type is HOST
    options.preferred_location = 0
    with pytest.raises(ValueError, match="must be None"):
        ManagedMemoryResource(options)
    options.preferred_location = None
    assert ManagedMemoryResource(options).preferred_location == (HOST, None)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_man_02_managed_memory_is_freed_on_its_stream(stream, device, how):
    """With work in flight that writes it: the write lands before the free."""
    resource = ManagedMemoryResource({})
    buffer = resource.allocate(4096, stream=stream)
    address = buffer.handle
    with Gate(stream) as gate:
        check(driver.cuMemsetD8Async(address, 1, 4096, int(stream.handle)))
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        del buffer
        assert not gate.is_open
    stream.sync()  # a write after the free would fail here
    assert not still_allocated(address)
    assert resource.attributes.used_mem_current == 0


@pytest.mark.parametrize("how", ["adopt", "adopt into another", "move_to"])
def test_what_takes_over_the_memory_is_a_managed_buffer_too(stream, how):
    resource, other = ManagedMemoryResource(), ManagedMemoryResource()
    buffer = resource.allocate(4096, stream=stream)
    if how == "move_to":
        taken = buffer.move_to(other)
    else:
        taken = Buffer.adopt(buffer.detach(), other if "another" in how else None)
    assert type(taken) is ManagedBuffer
    assert taken.memory_resource is (resource if how == "adopt" else other)
    assert taken.read_mostly is False
    assert taken.close() is CloseResult.DONE
