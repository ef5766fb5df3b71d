# SPDX-License-Identifier: Apache-2.0
"""A close that a capture refuses has done nothing, so a collection returns the memory all the same, when it is over."""

import gc

import pytest

from buffer_kinds import SOURCES
from captures import capture, capturing, end_capture
from cuda.core import CUDAError, CUDAWarning, LegacyPinnedMemoryResource, Ownership
from cuda.core._memory._queue import drain
from python_resources import Plain
from support import attempt, still_allocated, warnings_seen

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.provokes_refusals]

BUILT_IN = {name: kind for name, kind in SOURCES.items() if kind.built_in}
# A call that a release of this kind makes.
FREES = {"virtual": "cuMemUnmap", "pinned": "cuMemFreeHost", "device": "cuMemFree"}


def refuse(buffer, how="close"):
    with pytest.raises(CUDAError, match="being captured"):
        if how == "with":
            with buffer:
                pass
        elif how == "twice":
            assert attempt(buffer.close, CUDAError)[1] is not None
            buffer.close()
        else:
            buffer.close(wait=how == "close")
    assert buffer.ownership is Ownership.OWNED


@pytest.mark.parametrize("end", ["drop", "cycle"])
@pytest.mark.parametrize("how", ["close", "close without waiting", "with", "twice"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_what_is_dropped_then_is_returned_behind_the_capture(device, kind, how, end):
    source = BUILT_IN[kind](device)
    stream = device.create_stream()
    box = [source.allocate(stream=stream)]
    with warnings_seen() as seen:
        with capturing(stream):
            refuse(box[0], how)
            if end == "cycle":
                box.append(box)
            del box
            gc.collect()
        assert drain(20)
    assert [str(one.message) for one in seen] == []
    stream.close()  # and nothing is left: the end of each test looks


@pytest.mark.watched
@pytest.mark.parametrize("first", ["the failure", "the capture"])
@pytest.mark.parametrize("kind", FREES)
def test_another_failure_counts_whether_it_comes_before_or_behind(device, driver_watch, kind, first):
    """What a failed close has left is not freed by a collection."""
    source = BUILT_IN[kind](device)
    stream = device.create_stream()
    buffer = source.allocate(stream=stream)

    def fail(buffer):
        with driver_watch.fail(FREES[kind], result="CUDA_ERROR_UNKNOWN"):
            with pytest.raises(CUDAError, match=FREES[kind]):
                buffer.close()

    if first == "the failure":
        fail(buffer)
    with capturing(stream):
        refuse(buffer)
    if first == "the capture":
        fail(buffer)
    address, size = buffer.handle, buffer.size
    with warnings_seen() as seen:
        del buffer
        gc.collect()
        assert drain(20)
    assert [one.category for one in seen] == [CUDAWarning]
    assert "dropped after a close that failed" in str(seen[0].message)
    source.resource.deallocate(address, size, stream=stream)  # it is there still
    stream.close()


class Nested(Plain):
    """Frees by closing a buffer of another resource."""

    inner = None

    def allocate(self, size, *, stream=None):
        self.inner = LegacyPinnedMemoryResource().allocate(size, stream=stream)
        return super().allocate(size, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size, stream))
        self.inner.close()
        self.give_back(ptr)


def test_the_code_of_an_author_is_not_asked_again_by_a_collection(device):
    """It may have done something before it closed what the capture has refused."""
    resource = Nested()
    stream = device.create_stream()
    buffer = resource.allocate(64, stream=stream)
    capture(stream)
    refuse(buffer)
    end_capture(stream)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert [one.category for one in seen] == [CUDAWarning]
    assert "dropped after a close that failed" in str(seen[0].message)
    assert len(resource.asked) == 1
    assert still_allocated(address)
    resource.deallocate(address, 64)
    stream.close()
