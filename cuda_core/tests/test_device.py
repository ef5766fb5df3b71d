# SPDX-License-Identifier: Apache-2.0
"""Devices and their contexts, as far as memory needs them."""

import threading

import pytest

from cuda.bindings import driver
from cuda.core import Context, Device
from support import check, device_count


def test_there_is_one_object_for_each_device(devices):
    assert len(devices) == device_count()
    assert [device.device_id for device in devices] == list(range(len(devices)))
    assert [int(device) for device in devices] == list(range(len(devices)))
    for ordinal, device in enumerate(devices):
        assert Device(ordinal) == device
        assert hash(Device(ordinal)) == hash(device)
        assert Device(device).device_id == ordinal


def test_without_an_argument_it_is_the_current_device(device):
    assert Device().device_id == 0


@pytest.mark.parametrize(
    ("given", "error"), [(-1, ValueError), (10_000, ValueError), ("0", TypeError), (0.0, TypeError)]
)
def test_a_device_that_cannot_be_is_refused(given, error):
    with pytest.raises(error):
        Device(given)


def test_a_device_knows_itself(device):
    assert isinstance(device.name, str)
    assert device.name
    major, minor = device.compute_capability
    assert (major, minor) == (
        device.properties.compute_capability_major,
        device.properties.compute_capability_minor,
    )
    assert device.properties.virtual_memory_management_supported is True
    assert "Device" in repr(device)


def test_an_unknown_property_is_an_attribute_error(device):
    with pytest.raises(AttributeError, match="no_such_property"):
        device.properties.no_such_property  # noqa: B018


def test_set_current_makes_the_primary_context_current(device):
    context = check(driver.cuCtxGetCurrent())
    assert int(context) != 0
    assert int(check(driver.cuCtxGetDevice())) == 0
    assert isinstance(device.context, Context)
    assert int(device.context.handle) == int(context)


def test_the_current_device_belongs_to_the_thread(device):
    seen = []

    def look():
        seen.append(int(check(driver.cuCtxGetCurrent())))
        device.set_current()
        seen.append(int(check(driver.cuCtxGetCurrent())))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert seen == [0, int(check(driver.cuCtxGetCurrent()))]


@pytest.mark.two_devices
def test_changing_the_current_device(devices):
    devices[0].set_current()
    first = devices[0].context
    devices[1].set_current()
    assert Device().device_id == 1
    assert devices[1].context != first
    with pytest.raises(RuntimeError):
        devices[1].set_current(first)
    assert Device().device_id == 1
    devices[0].set_current(first)
    assert Device().device_id == 0


def test_making_a_device_current_again_and_again_retains_one_context(device, driver_watch):
    live = driver_watch.live()
    for _ in range(10):
        device.set_current()
    assert driver_watch.live() == live


def test_sync_returns_when_the_work_is_done(device):
    stream = device.create_stream()
    device.sync()
    assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.close()
