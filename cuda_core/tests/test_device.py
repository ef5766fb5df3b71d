# SPDX-License-Identifier: Apache-2.0
"""Devices and their contexts, as far as memory needs them."""

import pickle
import re
import threading

import numpy
import pytest

from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, Context, CUDAError, Device
from cuda.core import _device as device_module
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from support import check, device_count, race


def test_there_is_one_object_for_each_device(devices):
    assert len(devices) == device_count()
    assert [device.device_id for device in devices] == list(range(len(devices)))
    assert [int(device) for device in devices] == list(range(len(devices)))
    for ordinal, device in enumerate(devices):
        assert Device(ordinal) == device
        assert hash(Device(ordinal)) == hash(device)
        assert Device(device).device_id == ordinal


def test_a_subclass_gives_the_same_object(device):
    """Before, the first that a thread made of a subclass was everybody's ``Device(0)`` there."""

    class Sub(Device):
        pass

    def uses():
        first = Sub(0)
        return type(first), type(Device(0)), Sub(0) is Device(0), type(Sub.get_all_devices()[0])

    assert race(uses) == [(Device, Device, True, Device)]


def test_without_an_argument_it_is_the_current_device(device):
    assert Device().device_id == 0


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (-1, ValueError, "device_id must be >= 0, got -1"),
        (10_000, ValueError, r"device_id must be within \[0, \d+\), got 10000"),
        ("0", TypeError, "'0'"),
        (0.0, TypeError, "0.0"),
    ],
)
def test_a_device_that_cannot_be_is_refused(device, given, error, text):
    with pytest.raises(error, match=text):
        Device(given)
    with pytest.raises(error, match=text):
        device.can_access_peer(given)


def test_any_integer_names_a_device(device):
    assert Device(numpy.int64(0)) is device
    assert _SynchronousMemoryResource(numpy.int32(0)).device_id == 0


def test_a_device_knows_itself(device):
    assert isinstance(device.name, str)
    assert device.name
    major, minor = device.compute_capability
    assert (major, minor) == (
        device.properties.compute_capability_major,
        device.properties.compute_capability_minor,
    )
    assert device.properties.virtual_memory_management_supported is True
    assert repr(device) == f"<Device 0 ({device.name})>"
    assert re.fullmatch(r"[0-9A-Fa-f]+:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]", device.pci_bus_id)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device.uuid)
    assert device.arch == f"{major}{minor}"
    assert device.can_access_peer(device) is True


@pytest.mark.two_devices
def test_a_device_says_which_peers_it_reaches(devices):
    first, second = devices[:2]
    able = check(driver.cuDeviceCanAccessPeer(0, 1))
    assert first.can_access_peer(second) is first.can_access_peer(1) is bool(able)
    assert first.uuid != second.uuid


@pytest.mark.parametrize(
    "name",
    [
        "create_context",
        "create_mipmapped_array",
        "create_opaque_array",
        "create_surface_object",
        "create_texture_object",
        "resources",
        "to_system_device",
    ],
)
def test_what_this_build_lacks_says_so(device, name):
    with pytest.raises(AttributeError, match=f"Device.{name} is not in this build"):
        getattr(device, name)
    assert not hasattr(device, name)


def test_an_unknown_name_is_an_ordinary_attribute_error(device):
    with pytest.raises(AttributeError, match="'Device' object has no attribute 'no_such_name'"):
        device.no_such_name  # noqa: B018


def test_a_device_is_pickled_by_its_number(device):
    assert pickle.loads(pickle.dumps(device)) is device


def test_a_thread_without_a_context_is_told(device):
    def uses():
        for use in (device.create_stream, device.create_event, device.sync, lambda: device.context):
            with pytest.raises(CUDAError, match=r"Device 0 is not yet initialized.*set_current\(\)"):
                use()
        with pytest.raises(RuntimeError, match="no context"):
            LEGACY_DEFAULT_STREAM.context  # noqa: B018
        assert Device().device_id == 0
        return "told"

    assert race(uses) == ["told"]


def test_each_thread_has_its_own_object(device):
    assert race(lambda: Device(0) is device, lambda: Device(0) == device) == [False, True]
    assert device_module._tls.devices[0] is device


# --- contexts -------------------------------------------------------------------------------------------------------


def test_a_context_is_closed_only_while_it_is_not_current(device):
    context = device.context
    with pytest.raises(RuntimeError, match="is current on this thread"):
        context.close()
    assert not context.is_closed
    assert race(context.close) == [None]
    assert context.is_closed
    assert context.handle is None
    context.close()
    with pytest.raises(ValueError, match="closed"):
        device.set_current(context)


def test_a_context_is_made_by_nobody_and_makes_no_streams(device):
    with pytest.raises(RuntimeError, match=r"Device.context"):
        Context()
    with pytest.raises(RuntimeError, match=r"Context.create_stream\(\) is for green contexts"):
        device.context.create_stream()
    assert device.context.is_green is False
    with pytest.raises(AttributeError, match=r"Context.resources is not in this build"):
        device.context.resources  # noqa: B018
    with pytest.raises(TypeError, match="int: 3"):
        device.set_current(3)
    assert device.context == device.context
    assert hash(device.context) == hash(device.context)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("cuCtxGetCurrent", lambda device: device.context),
        ("cuCtxSynchronize", lambda device: device.sync()),
        ("cuCtxSetCurrent", lambda device: device.set_current()),
        ("cuDeviceGetName", lambda device: device.name),
        ("cuDeviceGetUuid", lambda device: device.uuid),
        ("cuDeviceGetPCIBusId", lambda device: device.pci_bus_id),
        ("cuDeviceGetCount", lambda device: Device(0)),
        ("cuStreamCreateWithPriority", lambda device: device.create_stream()),
        ("cuEventCreate", lambda device: device.create_event()),
    ],
)
def test_a_refused_call_is_named_and_nothing_is_left(device, driver_watch, function, use):
    live = driver_watch.live()
    with driver_watch.fail(function, result="CUDA_ERROR_UNKNOWN") as failure:
        with pytest.raises(CUDAError, match=f"CUDA_ERROR_UNKNOWN.*{function}") as caught:
            use(device)
    assert failure.fired == 1
    assert (caught.value.result_name, caught.value.function) == ("CUDA_ERROR_UNKNOWN", function)
    assert driver_watch.live() == live
    made = use(device)
    if hasattr(made, "close") and not isinstance(made, Context):
        made.close()


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
