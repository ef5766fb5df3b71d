# SPDX-License-Identifier: Apache-2.0
"""Memory resources written in Python: asked once, with what they were told, and never trusted blindly."""

import gc
import weakref

import pytest

from cuda.core import (
    Buffer,
    CloseResult,
    CUDAWarning,
    MemoryResource,
    Ownership,
    VirtualMemoryResource,
)
from python_resources import (
    ClosesWhatItFrees,
    KeywordSignature,
    NoInitialiser,
    Plain,
    PositionalSignature,
    Refusing,
    Slow,
    WideSignature,
)
from support import GRANULE, race, read, warnings_seen, write

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("how", ["close", "with", "drop", "cycle"])
def test_a_resource_is_asked_once_with_the_size_of_the_allocation(how):
    plain = Plain()
    buffer = plain.allocate(1000)
    address = buffer.handle
    assert (buffer.ownership, buffer.size, buffer.memory_resource) == (Ownership.OWNED, 1000, plain)
    write(address, b"bytes")
    assert read(address, 5) == b"bytes"
    if how == "close":
        assert buffer.close() is CloseResult.DONE
        assert buffer.close() is CloseResult.NOTHING
    elif how == "with":
        with buffer:
            pass
    elif how == "cycle":
        cycle = [buffer]
        cycle.append(cycle)
        del cycle
    del buffer
    gc.collect()
    assert [entry[:2] for entry in plain.asked] == [(address, 1000)]
    assert all(type(entry[0]) is int and type(entry[1]) is int for entry in plain.asked)
    assert plain.held == {}


@pytest.mark.parametrize("kind", [KeywordSignature, PositionalSignature, WideSignature, NoInitialiser])
def test_every_signature_of_deallocate_is_called_alike(device, kind):
    resource = kind()
    stream = device.create_stream()
    address = resource.allocate(512).handle if kind is not NoInitialiser else None
    gc.collect()
    if kind is NoInitialiser:
        buffer = resource.allocate(512)
        address = buffer.handle
        assert buffer.close() is CloseResult.DONE
        assert resource.log == [("no initialiser", address, 512)]
        resource.buffers.clear()
    else:
        assert [entry[:2] for entry in resource.asked] == [(address, 512)]
    stream.close()


def test_the_recorded_stream_is_handed_to_deallocate(device):
    plain = Plain()
    stream = device.create_stream()
    plain.allocate(512, stream=stream).close()
    handed = plain.asked[0][2]
    assert int(handed.handle) == int(stream.handle)
    assert not handed.is_closed
    handed.sync()
    stream.close()


def test_the_stream_of_a_close_is_handed_to_deallocate(device):
    plain = Plain()
    first, second = device.create_stream(), device.create_stream()
    plain.allocate(512, stream=first).close(second)
    assert int(plain.asked[0][2].handle) == int(second.handle)
    plain.asked.clear()
    first.close()
    second.close()


def test_a_default_stream_is_recorded_when_none_is_given():
    """Authors synchronise what they are given: it is live and never None."""
    plain = Plain()
    plain.allocate(512).close()
    stream = plain.asked[0][2]
    assert stream is not None
    stream.sync()


def test_a_closed_stream_still_reaches_deallocate(device):
    plain = Plain()
    stream = device.create_stream()
    handle = int(stream.handle)
    buffer = plain.allocate(512, stream=stream)
    stream.close()
    buffer.close()
    handed = plain.asked[0][2]
    assert int(handed.handle) == handle
    handed.sync()
    plain.asked.clear()


# --- a deallocate that raises ------------------------------------------------------------------------------------


def test_a_close_raises_what_deallocate_raised_and_can_be_repeated():
    resource = Refusing(refusals=2)
    buffer = resource.allocate(512)
    address = buffer.handle
    for _ in range(2):
        with pytest.raises(LookupError, match="not now"):
            buffer.close()
        assert (buffer.ownership, buffer.is_closed) == (Ownership.OWNED, False)
        assert (buffer.handle, buffer.size, buffer.memory_resource) == (address, 512, resource)
    write(address, b"still there")
    assert buffer.close() is CloseResult.DONE
    assert resource.asked[:2] == ["refused", "refused"]
    assert resource.asked[2][:2] == (address, 512)
    assert buffer.ownership is Ownership.RELEASED


def test_leaving_with_raises_it_too():
    resource = Refusing(refusals=1)
    with pytest.raises(LookupError, match="not now"):
        with resource.allocate(512) as buffer:
            pass
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


def test_leaving_with_never_tries_again_after_a_failed_close():
    """Nobody knows what the first attempt left; only an explicit close asks again."""
    resource = Refusing(refusals=1)
    with warnings_seen() as seen:
        with resource.allocate(512) as buffer:
            with pytest.raises(LookupError, match="not now"):
                buffer.close()
    assert seen == []
    assert buffer.ownership is Ownership.OWNED
    assert resource.asked == ["refused"]
    assert buffer.close() is CloseResult.DONE


def test_leaving_with_adds_a_note_to_an_exception_that_passes():
    resource = Refusing(refusals=1)
    with pytest.raises(KeyError, match="first") as info:
        with resource.allocate(512) as buffer:
            raise KeyError("first")
    if hasattr(info.value, "add_note"):  # Python 3.11 and later
        assert any("not now" in note for note in info.value.__notes__)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("how", ["drop", "cycle"])
def test_a_collection_reports_it_once_and_never_asks_again(how):
    resource = Refusing(refusals=100)
    buffer = resource.allocate(512)
    address = buffer.handle
    if how == "cycle":
        cycle = [buffer]
        cycle.append(cycle)
        del cycle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert f"{address:x}" in str(seen[0].message).lower()
    assert "not now" in str(seen[0].message)
    assert resource.asked == ["refused"]
    resource.give_back(address)


def test_a_collection_never_frees_what_a_failed_close_left():
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with pytest.raises(LookupError):
        buffer.close()
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert resource.asked == ["refused"]
    assert all(warning.category is CUDAWarning for warning in seen)
    assert len(seen) <= 1  # the close has already raised
    resource.give_back(address)


def test_a_loop_of_failing_frees_gives_as_many_reports():
    """Python shows equal warnings of one place once; each allocation has its own report all the same."""
    import warnings

    resource = Refusing(refusals=100)
    address = resource.take(512)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(5):
            buffer = Buffer.from_handle(address, 512, resource)
            del buffer
            gc.collect()
    assert len([warning for warning in seen if warning.category is CUDAWarning]) == 5
    resource.give_back(address)


def test_an_exception_out_of_a_deallocate_keeps_nothing_alive():
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    with pytest.raises(LookupError):
        buffer.close()
    buffer.close()
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None


# --- a deallocate that comes back into the library ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "with"])
def test_a_deallocate_may_close_the_buffer_that_it_frees(device, how):
    resource = ClosesWhatItFrees(VirtualMemoryResource(device))
    buffer = resource.allocate(512)
    address = buffer.handle
    if how == "close":
        assert buffer.close() is CloseResult.DONE
    else:
        with buffer:
            pass
    assert [entry[:2] for entry in resource.asked] == [(address, 512)]
    assert resource.inner == [CloseResult.NOTHING, GRANULE]
    assert buffer.ownership is Ownership.RELEASED


def test_a_deallocate_sees_the_buffer_owned(device):
    seen = []

    class Looks(Plain):
        def deallocate(self, ptr, size, *, stream=None):
            seen.append((holder[0].ownership, holder[0].is_closed))
            super().deallocate(ptr, size, stream=stream)

    holder = [Looks().allocate(512)]
    holder[0].close()
    assert seen == [(Ownership.OWNED, False)]


def test_a_close_meanwhile_says_in_progress():
    resource = Slow()
    buffer = resource.allocate(512)

    def second():
        assert resource.entered.wait(60)
        try:
            return buffer.close()
        finally:
            resource.let_go.set()

    assert race(buffer.close, second) == [CloseResult.DONE, CloseResult.IN_PROGRESS]
    assert len(resource.asked) == 1


def test_a_use_of_a_buffer_that_is_being_released_is_refused(device):
    from cuda.core import OwnershipError

    resource = Slow()
    buffer = resource.allocate(512)
    stream = device.create_stream()

    def second():
        assert resource.entered.wait(60)
        try:
            buffer.set_deallocation_stream(stream)
        finally:
            resource.let_go.set()

    first, refused = race(buffer.close, second)
    assert first is CloseResult.DONE
    assert isinstance(refused, OwnershipError)
    resource.asked.clear()
    stream.close()


# --- what authors write ------------------------------------------------------------------------------------------


def test_a_resource_in_a_cycle_with_its_buffers_is_whole_when_it_is_asked():
    resource = NoInitialiser()
    log = resource.log
    addresses = {resource.allocate(512).handle for _ in range(3)}
    assert log == []
    with warnings_seen() as seen:
        del resource
    assert seen == []
    assert {entry[1] for entry in log} == addresses
    assert len(log) == 3
    assert {entry[0] for entry in log} == {"no initialiser"}


def test_attributes_of_the_resource_are_the_buffers_own():
    class Other(Plain):
        device_id = 0
        is_device_accessible = False
        is_host_accessible = True

    buffer = Other().allocate(512)
    assert (buffer.device_id, buffer.is_device_accessible, buffer.is_host_accessible) == (0, False, True)
    assert (buffer.is_managed, buffer.is_mapped) == (False, False)
    buffer.close()


def test_a_resource_may_count_references_of_one_address():
    """Each owning buffer of one address asks once; the resource frees with the last."""

    class Counting(Plain):
        def deallocate(self, ptr, size, *, stream=None):
            self.asked.append((ptr, size))
            if len(self.asked) == 2:
                self.give_back(ptr)

    for order in ((0, 1), (1, 0)):
        resource = Counting()
        address = resource.take(512)
        buffers = [Buffer.from_handle(address, 512, resource) for _ in range(2)]
        for index in order:
            assert buffers[index].close() is CloseResult.DONE
        assert resource.asked == [(address, 512)] * 2
        assert resource.held == {}


def test_a_virtual_resource_may_be_subclassed_and_wrapped(device):
    class Tracking(MemoryResource):
        def __init__(self, inner):
            self.inner, self.parts = inner, {}

        def allocate(self, size, *, stream=None):
            part = self.inner.allocate(size)
            self.parts[part.handle] = part
            return Buffer.from_handle(part.handle, part.size, self)

        def deallocate(self, ptr, size, *, stream=None):
            part = self.parts.pop(ptr)
            assert part.size == size
            part.close()

        is_device_accessible = True
        is_host_accessible = False
        device_id = 0

    outer = Tracking(VirtualMemoryResource(device))
    buffer = outer.allocate(GRANULE)
    write(buffer.handle, b"through two layers")
    assert buffer.close() is CloseResult.DONE
    assert outer.parts == {}


def test_the_base_class_says_what_to_override():
    for use in (
        lambda r: r.allocate(1, stream=None),
        lambda r: r.deallocate(0, 1, stream=None),
        lambda r: r.device_id,
    ):
        with pytest.raises((TypeError, NotImplementedError), match=r"MemoryResource"):
            use(MemoryResource())
