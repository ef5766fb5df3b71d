# SPDX-License-Identifier: Apache-2.0
"""Every property of a device says what the driver says."""

import re

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError
from cuda.core._device_properties import DeviceProperties
from support import check

NAMES = sorted(name for name in vars(DeviceProperties) if not name.startswith("_"))


def test_there_are_as_many_as_in_the_released_package():
    assert len(NAMES) == 143


@pytest.mark.parametrize("name", NAMES)
def test_a_property_is_the_attribute_of_its_name(device, name):
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name.upper()}")
    error, value = driver.cuDeviceGetAttribute(attribute, device.device_id)
    meaning = getattr(DeviceProperties, name).__doc__
    kind = {"int": int, "bool": bool}[meaning.split(":")[0]]
    if error != driver.CUresult.CUDA_SUCCESS:  # an older driver
        with pytest.raises(AttributeError, match=name):
            getattr(device.properties, name)
        return
    found = getattr(device.properties, name)
    assert type(found) is kind
    assert int(found) == int(value)
    assert re.fullmatch(r"(int|bool): [^\n]+\.", meaning)


def test_a_property_is_asked_for_once(device, driver_watch):
    properties = DeviceProperties._init(device.device_id)
    assert properties.warp_size == 32
    with driver_watch.no_call():
        assert properties.warp_size == 32


def test_they_are_read_and_never_set(device):
    with pytest.raises(AttributeError, match="'warp_size' to 3"):
        device.properties.warp_size = 3
    with pytest.raises(AttributeError, match="no_such_property"):
        device.properties.no_such_property = 3
    with pytest.raises(RuntimeError, match=r"Device.properties"):
        DeviceProperties(0)
    assert repr(device.properties) == "<DeviceProperties of device 0>"


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_refusal_is_an_error_and_is_not_kept(device, driver_watch):
    properties = DeviceProperties._init(device.device_id)
    with driver_watch.fail("cuDeviceGetAttribute", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError, match=r"CUDA_ERROR_UNKNOWN.*warp_size.*cuDeviceGetAttribute"):
            properties.warp_size  # noqa: B018
    assert properties.warp_size == check(
        driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0)
    )
