# SPDX-License-Identifier: Apache-2.0
"""Pools beside captures: none is disturbed, and no memory is taken or given back in one."""

import pytest

from buffer_kinds import POOL_TYPES, POOLS, end, used
from captures import capture, end_capture
from cuda.core import (
    CloseResult,
    CUDAError,
    DeviceMemoryResource,
    Ownership,
)
from cuda.core._memory._queue import drain
from support import (
    child_output,
    fill,
    holds,
    still_allocated,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=POOLS.values(), ids=POOLS)
def source(request, device):
    return request.param(device)


# --- captures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_gr_04_an_allocation_on_a_capturing_stream_is_refused(source, stream, mode):
    capture(stream, mode)
    with pytest.raises(RuntimeError, match=r"captured.*GraphMemoryResource"):
        source.resource.allocate(4096, stream=stream)
    end_capture(stream)
    assert used(source.resource) == 0


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
@pytest.mark.parametrize("how", ["recorded", "given", "one of several"])
def test_gr_03_a_close_on_a_capturing_stream_is_refused_before_anything_happens(
    source, device, stream, mode, how
):
    other = device.create_stream()
    buffer = source.resource.allocate(4096, stream=stream if how == "recorded" else other)
    if how == "one of several":
        buffer.record_stream(stream)
    fill(buffer.handle, 4096, seed=3)
    capture(stream, mode)
    with pytest.raises(CUDAError, match=r"STREAM_CAPTURE_UNSUPPORTED.*being captured"):
        buffer.close(stream) if how == "given" else buffer.close()
    with pytest.raises(CUDAError, match="being captured"):
        buffer.close(stream, wait=False)
    assert buffer.ownership is Ownership.OWNED
    end_capture(stream)
    assert holds(buffer.handle, 4096, seed=3)
    assert buffer.close() is CloseResult.DONE
    other.close()


@pytest.mark.parametrize("how", ["drop", "cycle", "last loan"])
def test_gr_05_a_collection_during_a_capture_goes_to_the_queue(source, device, stream, how):
    box = [source.resource.allocate(4096, stream=stream)]
    address = box[0].handle
    part = box[0][:16] if how == "last loan" else None
    capture(stream)
    if how == "last loan":
        assert box[0].close() is CloseResult.LENT
        part.close()
    with warnings_seen() as seen:
        end(box, how)
    assert seen == []
    assert drain(0.1) is False
    assert still_allocated(address)
    end_capture(stream)
    assert drain(20)
    device.sync()
    assert not still_allocated(address)


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
@pytest.mark.parametrize("kind", POOLS)
def test_gr_01_pools_disturb_no_capture(device, stream, threshold, mode, kind):
    """Making a pool, reading it, allocating, returning and destroying, while another stream is captured."""
    mine, third = device.create_stream(), device.create_stream()
    capture(stream, mode)
    resource = POOLS[kind](device).resource
    current = POOL_TYPES[kind]() if kind != "pool" else DeviceMemoryResource(device)
    for one in (resource, current):
        assert one.attributes.used_mem_current == 0
        buffer = one.allocate(4096, stream=mine)
        buffer.record_stream(third)
        buffer.close()
        one.allocate(4096, stream=mine).close()
        one.close()
    end_capture(stream)
    for other in (mine, third):
        other.sync()
        other.close()


FIRST = """
from support import check, driver
from cuda.core import Device, DeviceMemoryResource
device = Device(0)
device.set_current()
stream, mine = device.create_stream(), device.create_stream()
check(driver.cuStreamBeginCapture(int(stream.handle), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
buffer = device.memory_resource.allocate(4096, stream=mine)
print(check(driver.cuStreamIsCapturing(int(stream.handle))).name)
print(int(check(driver.cuStreamEndCapture(int(stream.handle)))) != 0)
buffer.close()
"""


def test_gr_01_the_first_touch_of_the_default_pool_during_a_capture():
    assert child_output(FIRST).splitlines() == ["CU_STREAM_CAPTURE_STATUS_ACTIVE", "True"]
