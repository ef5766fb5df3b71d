# SPDX-License-Identifier: Apache-2.0
"""A second call of a constructor is refused: buffers and consumers depend on what the object is."""

import numpy
import pytest

from cuda.core import (
    DeviceMemoryResource,
    ManagedMemoryResource,
    PinnedMemoryResource,
    VirtualMemoryResource,
    utils,
)
from support import GRANULE

RESOURCES = {
    "virtual": (VirtualMemoryResource, (0,), (1,)),
    "device pool": (DeviceMemoryResource, (0, {}), (1,)),
    "current pool": (DeviceMemoryResource, (0,), (1, {})),
    "pinned pool": (PinnedMemoryResource, ({},), ()),
    "managed pool": (ManagedMemoryResource, ({},), ()),
}


@pytest.mark.two_devices
@pytest.mark.parametrize("name", RESOURCES)
def test_a_resource_is_made_once(device, stream, name):
    """Before, its open buffers said that they were on the other device, and grew there."""
    kind, arguments, other = RESOURCES[name]
    resource = kind(*arguments)
    # Of the current pool nothing, since that keeps what it has taken from the device.
    size = 0 if name == "current pool" else GRANULE
    with resource.allocate(size, stream=stream) as buffer:
        where = buffer.device_id
        with pytest.raises(RuntimeError, match=rf"this {kind.__name__} was made already"):
            resource.__init__(*other)
        assert buffer.device_id == where
        resource.allocate(size, stream=stream).close()
    if name != "virtual":
        resource.close()
        with pytest.raises(RuntimeError, match="was made already"):
            resource.__init__(*other)


def test_a_resource_whose_constructor_failed_can_be_made(device):
    resource = VirtualMemoryResource.__new__(VirtualMemoryResource)
    with pytest.raises(ValueError, match="device_id"):
        resource.__init__(-1)
    resource.__init__(0)
    resource.allocate(GRANULE).close()


def test_a_view_is_made_once(device):
    """A consumer in C is told shape and strides by address, so they must stay."""
    array = numpy.arange(6, dtype="i4")
    view = utils.StridedMemoryView.from_dlpack(array, stream_ptr=-1)
    with pytest.raises(RuntimeError, match="was made already"):
        view.__init__(numpy.zeros((2, 3)), -1)
    assert view.shape == (6,)


@pytest.mark.parametrize("use", ["device", "device_id", "is_host_accessible", "is_device_accessible"])
def test_a_subclass_that_forgot_the_constructor_is_told_so(use):
    class Forgetful(VirtualMemoryResource):
        def __init__(self):
            pass

    resource = Forgetful()
    with pytest.raises(RuntimeError, match=r"Forgetful.__init__ was not called"):
        getattr(resource, use)
    assert "not called" in repr(resource)
