# SPDX-License-Identifier: Apache-2.0
"""Everything that arrives from another process may be wrong: pickles with wrong bytes, and wrong values in each field.

Whatever arrives, this process goes on: what is wrong is an exception of a kind that says so, nothing stays mapped, no
descriptor is closed that was open before, and what is right works afterwards.
"""

import io
import multiprocessing
import os
import pickle
import uuid
from multiprocessing import popen_spawn_posix, resource_sharer

import hypothesis
import pytest
from hypothesis import strategies as st

from cuda.core import Buffer, Device, DeviceMemoryResource, Event, MemoryResource, PinnedMemoryResource
from cuda.core._event import _receive_event
from cuda.core._event_descriptor import IPCEventDescriptor
from cuda.core._memory import _counters, _shared_pool
from cuda.core._memory._ipc import IPCAllocationHandle, IPCBufferDescriptor, _reconstruct_allocation_handle
from shared_pools import SHARED_EVENT, SIZE, descriptors, make, opened, payload_of
from support import read, write
from wrong_pickles import damaged

pytestmark = [pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

# What says that an input is wrong. Nothing else may come out: no CUDAError, no AttributeError, no SystemError.
REFUSALS = (TypeError, ValueError, OverflowError, RuntimeError, OSError)
FUZZ = hypothesis.settings(
    max_examples=300,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


class World:
    """A shared buffer, registered as it would be in a process that has received it, and files that others have open."""

    def __init__(self, stream, tmp_path):
        self.stream = stream
        self.resource = make()
        self.buffer = self.resource.allocate(SIZE, stream=stream)
        self.event = stream.record(options=SHARED_EVENT)
        stream.sync()
        self.there = opened(self.resource)
        self.there.register(self.resource.uuid)
        self.pinned = opened(make("pinned"))
        self.pinned.register(uuid.uuid4())
        self.files = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(3)]
        write(self.buffer.handle, b"mine")
        self.before = _counters.live(), descriptors()

    def forms(self):
        """Return the pickles of everything that can be pickled."""
        imported = Buffer.from_ipc_descriptor(self.there, self.buffer.ipc_descriptor, stream=self.stream)
        imported.close()
        return [
            pickle.dumps(thing, protocol)
            for thing in (
                self.buffer,
                self.resource,
                self.there,
                self.pinned,
                imported,
                self.buffer.ipc_descriptor,
                self.event,
                self.event.ipc_descriptor,
            )
            for protocol in (2, pickle.HIGHEST_PROTOCOL)
        ]

    def is_whole(self):
        """Raise unless everything is as before, and what is right still works."""
        assert (_counters.live(), descriptors()) == self.before
        good = pickle.loads(pickle.dumps(self.buffer))
        assert read(good.handle, 4) == b"mine"
        good.close()
        assert (_counters.live(), descriptors()) == self.before

    def close(self):
        for number in self.files:
            os.close(number)
        for thing in (self.event, self.buffer, self.there, self.resource, self.pinned):
            thing.close()


@pytest.fixture
def world(stream, tmp_path):
    world = World(stream, tmp_path)
    yield world
    world.close()


def end(thing):
    """Close what a wrong input has become nevertheless."""
    if isinstance(thing, (Buffer, Event, IPCAllocationHandle)):
        thing.close()


class Reader(pickle.Unpickler):
    """Reads wrong pickles without running what has nothing to do with sharing."""

    def find_class(self, module, name):
        if module.startswith("cuda.core.") or module in ("uuid", "cuda.core"):
            return super().find_class(module, name)
        if (module, name) in (("builtins", "int"), ("_codecs", "encode")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that is sent")


@FUZZ
@hypothesis.given(data=st.data())
def test_pickles_with_wrong_bytes(world, data):
    form = damaged(data, data.draw(st.sampled_from(world.forms())))
    thing = None
    try:
        thing = Reader(io.BytesIO(form)).load()
    except Exception:
        pass  # a broken pickle raises anything; what counts is what is left
    end(thing)
    del thing
    world.is_whole()


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.floats(),
    st.binary(max_size=80),
    st.text(max_size=5),
    st.uuids(),
    st.just(object()),
    st.sampled_from(
        [int, Buffer, MemoryResource, DeviceMemoryResource, PinnedMemoryResource, IPCAllocationHandle]
    ),
)


def fields(world):
    """Strategies for values that are right in some place."""
    good = payload_of(world.buffer.ipc_descriptor)
    name = world.event.ipc_descriptor.__reduce__()[1][0]
    changed = st.builds(
        lambda payload, place, value: payload[:place] + bytes([value]) + payload[place + 1 :],
        st.sampled_from([good, name]),
        st.integers(0, 63),
        st.integers(0, 255),
    )
    return st.one_of(
        odd,
        changed,
        st.binary(min_size=64, max_size=64),
        st.sampled_from(
            [
                good,
                name,
                SIZE,
                SIZE + 1,
                2**63,
                world.resource.uuid,
                world.pinned.uuid,
                world.there,
                world.resource,
                world.pinned,
                world.buffer.ipc_descriptor,
                world.event.ipc_descriptor,
                world.files[0],
                Device.get_all_devices()[-1],
            ]
        ),
    )


TARGETS = {
    "buffer": (Buffer._reduce_helper, 2),
    "buffer's name": (IPCBufferDescriptor._init, 3),
    "event": (_receive_event, 2),
    "event's name": (IPCEventDescriptor._init, 3),
    "opened event": (Event.from_ipc_descriptor, 1),
    "pool": (_shared_pool._receive_pool, 4),
    "registered pool": (_shared_pool._find_pool, 2),
    "handle": (_reconstruct_allocation_handle, 3),
    "handle by hand": (IPCAllocationHandle._init, 2),
    "device pool": (DeviceMemoryResource.from_allocation_handle, 2),
    "pinned pool": (PinnedMemoryResource.from_allocation_handle, 1),
}


@pytest.mark.parametrize("target", TARGETS)
@hypothesis.settings(FUZZ, max_examples=120)
@hypothesis.given(data=st.data())
def test_wrong_values_in_each_field(world, target, data):
    function, count = TARGETS[target]
    arguments = [data.draw(fields(world)) for _ in range(count)]
    thing = None
    try:
        thing = function(*arguments)
    except REFUSALS:
        pass
    if isinstance(thing, MemoryResource):
        assert thing in (world.there, world.pinned), "a pool was opened of nothing"
    end(thing)
    del thing, arguments
    world.is_whole()


class Inheriting:
    """As in a process that is being started, when descriptors are inherited by their number."""

    def __enter__(self):
        multiprocessing.current_process()._inheriting = True

    def __exit__(self, *_):
        del multiprocessing.current_process()._inheriting


def test_a_number_in_a_message_is_never_taken_over(world):
    """It may be that of a file of somebody else, which closing the handle would close."""
    number = world.files[0]
    forged = [
        number,
        str(number),
        popen_spawn_posix._DupFd(number),
        type("DupFd", (), {"detach": lambda self: number})(),
        type("_DupFd", (), {"detach": lambda self: number})(),
        type(
            "Lies", (resource_sharer.DupFd,), {"__init__": lambda self: None, "detach": lambda self: number}
        )(),
    ]
    for each in forged:
        with pytest.raises(ValueError, match="has come along"):
            _reconstruct_allocation_handle(IPCAllocationHandle, each, world.resource.uuid)
    handle = IPCAllocationHandle._init(number, None)
    assert int(handle) != number
    handle.close()
    world.is_whole()
    with Inheriting():
        for each in forged[:2] + forged[3:]:
            with pytest.raises(ValueError, match="has come along"):
                _reconstruct_allocation_handle(IPCAllocationHandle, each, world.resource.uuid)
        # This is what a parent sends to the process that it starts.
        inherited = os.dup(number)
        _reconstruct_allocation_handle(IPCAllocationHandle, popen_spawn_posix._DupFd(inherited), None).close()
    assert inherited not in descriptors()
    world.is_whole()


def test_a_socket_that_is_named_wrongly_is_refused(world):
    for identity in (None, 5, ("nowhere", 1), (b"x", "y"), ("/nonexistent/socket", 7), ()):
        forged = resource_sharer.DupFd.__new__(resource_sharer.DupFd)
        forged._id = identity
        with pytest.raises(REFUSALS):
            _reconstruct_allocation_handle(IPCAllocationHandle, forged, None)
    with pytest.raises(REFUSALS):
        _reconstruct_allocation_handle(
            IPCAllocationHandle, resource_sharer.DupFd.__new__(resource_sharer.DupFd), None
        )
    world.is_whole()


def test_what_arrives_is_checked_before_the_descriptor_is_fetched(world):
    """A refused handle leaves nothing open here."""
    handle = world.resource.allocation_handle
    before = descriptors()
    for kind, key in ((int, None), (IPCAllocationHandle, "key"), (Buffer, world.resource.uuid)):
        duplicate = resource_sharer.DupFd(int(handle))
        with pytest.raises((TypeError, ValueError)):
            _reconstruct_allocation_handle(kind, duplicate, key)
        _reconstruct_allocation_handle(IPCAllocationHandle, duplicate, None).close()
    resource_sharer.stop()
    handle.close()
    assert len(descriptors()) <= len(before)
