# SPDX-License-Identifier: Apache-2.0
"""Pools, buffers and events between processes that ``multiprocessing`` has started with spawn or forkserver."""

import gc
import pickle
import time
import uuid
from multiprocessing import resource_tracker

import pytest

from cuda.core import CloseResult, Device, DeviceMemoryResource, Event
from cuda.core._memory import _counters
from peer_process import Peer, PeerFailed
from shared_pools import KINDS, SHARED_EVENT, SIZE, descriptors, make
from support import fill, read, watched_end, write

METHODS = ("spawn", "forkserver")


@pytest.fixture(scope="module", params=METHODS)
def process(request, devices):
    """One process for many tests; each looks that it leaves there what was there before."""
    peer = Peer(request.param)
    peer.call("start")
    for kind in KINDS:  # once each way: what multiprocessing opens for itself stays open
        theirs = peer.call("export", "warm up", kind, b"")
        peer.call("keep", "back", theirs)
        theirs.memory_resource.close()
        theirs.close()
        peer.call("drop", "back")
        peer.call("drop", "warm up")
        peer.call("drop", "warm up pool")
    event = peer.call("record", "warm up")  # a process keeps a file open for the events that it shares
    stream = Device(0).create_stream()
    mine = stream.record(options=SHARED_EVENT)
    peer.call("keep", "back", mine)
    for name in ("back", "warm up"):
        peer.call("close_thing", name)
    for thing in (event, mine, stream):
        thing.close()
    del theirs
    gc.collect()
    yield peer
    assert peer.end() == 0


@pytest.fixture
def peer(process, device):
    before = process.call("held")
    yield process
    for _ in range(100):  # what its own threads give back may be on its way
        held = process.call("held")
        if held == before:
            break
        time.sleep(0.02)
    assert held == before, "live in the other process after the test, and before it"


@pytest.fixture(params=KINDS)
def shared(request, stream):
    """A buffer of a shareable pool."""
    resource = make(request.param)
    buffer = resource.allocate(SIZE, stream=stream)
    stream.sync()
    yield buffer
    buffer.close()
    resource.close()


def test_a_buffer_is_sent_as_it_is(peer, shared):
    fill(shared.handle, SIZE, seed=1)
    peer.call("keep", "buffer", shared)
    assert peer.call("says", "buffer") == (True, SIZE, True, "OWNED")
    assert peer.call("seen", "buffer", SIZE) == read(shared.handle, SIZE)
    peer.call("put", "buffer", b"from there")
    assert read(shared.handle, 10) == b"from there"
    assert peer.call("close", "buffer") == "DONE"
    assert read(shared.handle, 10) == b"from there"


def test_one_message_opens_a_pool_once(peer, shared, stream):
    more = [shared.memory_resource.allocate(64, stream=stream) for _ in range(3)]
    peer.call("keep", "buffers", more)
    assert peer.call("resources_of", "buffers") == 1
    peer.call("drop", "buffers")
    for buffer in more:
        buffer.close()


def test_what_is_sent_twice_is_one_mapping_there(peer, shared):
    peer.call("keep", "one", shared)
    peer.call("keep", "two", shared)
    assert peer.call("same_mapping", "one", "two")
    assert peer.call("same_resource", "one", "two")
    peer.call("drop", "one")
    peer.call("put", "two", b"still")
    assert read(shared.handle, 5) == b"still"
    peer.call("drop", "two")


def test_a_resource_is_sent_once_and_then_found_by_plain_pickles(peer, shared):
    peer.call("keep", "resource", shared.memory_resource)
    peer.call("unpickle", "buffer", pickle.dumps(shared))
    assert peer.call("seen", "buffer", 8) == read(shared.handle, 8)
    peer.call("drop", "buffer")
    peer.call("drop", "resource")
    kind, text = peer.call("refusal", "unpickle", "buffer", pickle.dumps(shared))
    assert (kind, str(shared.memory_resource.uuid) in text) == ("RuntimeError", True)


def test_descriptors_by_themselves(peer, shared):
    peer.call("import_buffer", "buffer", shared.memory_resource, shared.ipc_descriptor)
    write(shared.handle, b"by name")
    assert peer.call("seen", "buffer", 7) == b"by name"
    assert peer.call("close", "buffer") == "DONE"


def test_a_handle_that_is_sent_is_the_receivers(peer, shared):
    handle = shared.memory_resource.allocation_handle
    before = descriptors()
    peer.call("keep", "handle", handle)
    assert not handle.is_closed
    peer.call("close_thing", "handle")
    deadline = time.monotonic() + 10
    while descriptors() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread of multiprocessing that has sent it closes its duplicate
    assert descriptors() == before


def test_a_buffer_goes_there_and_back(peer, shared):
    """What comes home is an import of this process's own memory."""
    peer.call("keep", "buffer", shared)
    home = peer.call("get", "buffer")
    assert home.is_mapped
    write(home.handle, b"home")
    assert peer.call("seen", "buffer", 4) == b"home"
    assert read(shared.handle, 4) == b"home"
    peer.call("drop", "buffer")
    write(home.handle, b"and on")
    assert read(shared.handle, 6) == b"and on"
    assert home.close() is CloseResult.DONE


def test_an_import_is_sent_on_and_a_closed_one_too(peer, shared):
    third = Peer("spawn")
    try:
        peer.call("keep", "buffer", shared)
        first = peer.call("get", "buffer")
        third.call("keep", "buffer", first)
        first.close()
        third.call("keep", "closed", first)
        assert third.call("same_mapping", "buffer", "closed")
        third.call("put", "closed", b"third")
        assert peer.call("seen", "buffer", 5) == b"third"
        peer.call("drop", "buffer")
    finally:
        assert third.end() == 0
    assert read(shared.handle, 5) == b"third"


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_process_exports(peer, stream, kind):
    buffer = peer.call("export", "theirs", kind, b"theirs")
    assert buffer.is_mapped
    assert read(buffer.handle, 6) == b"theirs"
    write(buffer.handle, b"mine")
    assert peer.call("seen", "theirs", 4) == b"mine"
    resource = buffer.memory_resource
    buffer.close()
    again = pickle.loads(pickle.dumps(buffer))  # a closed import has its name still
    assert again.memory_resource is resource
    again.close()
    resource.close()
    assert peer.call("close", "theirs") == "DONE"
    peer.call("close_thing", "theirs pool")


def test_an_exported_buffer_is_closed_at_once(peer, shared):
    """The name keeps nothing alive, and does not stop the close; what is closed is sent no more."""
    assert shared.ipc_descriptor.size == SIZE
    assert shared.close() is CloseResult.DONE
    with pytest.raises(RuntimeError, match="has been closed"):
        peer.call("keep", "buffer", shared)


@pytest.mark.two_devices
def test_ipc_03_unpickling_leaves_the_current_device_alone_in_both_orders(driver_watch, peer, stream):
    Device(1).set_current()
    there = DeviceMemoryResource(1, {"ipc_enabled": True})
    other = Device(1).create_stream()
    theirs = there.allocate(64, stream=other)
    Device(0).set_current()
    here = make()
    mine = here.allocate(64, stream=stream)
    peer.call("keep", "resources", [here, there])
    for order in ((mine, theirs), (theirs, mine)):
        for current in (0, 1, None):
            assert peer.call("unpickle_on", current, [pickle.dumps(buffer) for buffer in order]), current
    peer.call("drop", "resources")
    for thing in (mine, theirs, here, there, other):
        thing.close()


def test_ipc_03_nothing_is_made_current_by_what_a_process_is_started_with(stream):
    resource = make()
    buffer = resource.allocate(64, stream=stream)
    event = stream.record(options=SHARED_EVENT)
    for method in METHODS:
        peer = Peer(method, "current_context")
        peer.end()
        with_things = Peer(method, "count", [buffer, resource, event, resource.allocation_handle])
        assert with_things.first == 4
        assert with_things.call("current_context") == peer.first == 0
        assert with_things.end() == 0
    for thing in (event, buffer, resource):
        thing.close()


def test_ipc_03_importing_many_times_leaves_nothing_there(peer, shared):
    peer.call("keep", "first", shared)
    before = peer.call("held"), descriptors()
    for _ in range(30):
        assert peer.call("read_once", shared, 4) == read(shared.handle, 4)
    assert (peer.call("held"), descriptors()) == before
    peer.call("drop", "first")


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["end", "kill", "end_at_once"])
def test_the_importer_ends_first(shared, how):
    shared.memory_resource.allocation_handle  # noqa: B018 - it is made once, and kept
    resource_tracker.ensure_running()  # the first process of all starts it, and its pipe stays open
    live, before = _counters.live(), descriptors()
    peer = Peer("spawn", "keep", "buffer", shared)
    peer.call("put", "buffer", b"last words")
    if how == "end":
        assert peer.end() == 0
    else:
        if how == "end_at_once":
            peer.ask(how)
            peer.process.join(60)
        peer.kill()
    assert read(shared.handle, 10) == b"last words"
    gc.collect()
    assert (_counters.live(), descriptors()) == (live, before)


@pytest.mark.parametrize("how", ["end", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exporter_ends_first(stream, kind, how):
    """What was imported goes on until it is closed here, quietly."""
    peer = Peer("spawn")
    buffer = peer.call("export", "theirs", kind, b"left behind")
    assert peer.end() == 0 if how == "end" else peer.kill() is None
    assert read(buffer.handle, 11) == b"left behind"
    resource = buffer.memory_resource
    assert buffer.close() is CloseResult.DONE
    resource.close()


# --- events -------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
def test_an_event_is_waited_for_by_the_other_process(driver_watch, peer, device, stream):
    with driver_watch.sim.hold():
        event = stream.record(options=SHARED_EVENT)
        peer.call("keep", "event", event)
        assert peer.call("event_state", "event") == (True, False, None, None)
        assert not peer.call("event_done", "event")
        stream.sync()
    assert peer.call("wait_for", "event")
    assert "recorded once" in peer.call("record_again", "event")
    peer.call("close_thing", "event")
    peer.call("open_event", "event", event.ipc_descriptor)
    assert peer.call("wait_for", "event")
    peer.call("close_thing", "event")
    event.close()


def test_an_event_of_the_other_process_is_waited_for(peer, stream):
    event = peer.call("record", "theirs")
    assert event.is_ipc_enabled
    assert (event.device, event.context) == (None, None)
    assert repr(event).startswith("<Event")
    stream.wait(event)
    stream.sync()
    event.sync()
    assert event.is_done
    again = Event.from_ipc_descriptor(event.ipc_descriptor)
    event.close()
    again.close()
    peer.call("close_thing", "theirs")


@pytest.mark.provokes_refusals
def test_an_event_that_is_gone_is_not_opened(driver_name, peer):
    """Or it is some event: a device's driver keeps what a name stands for, even when the process has ended.

    It may stand for a later event of any process by then, so that there is nothing to say about its work.
    """
    event = peer.call("record", "theirs")
    name = event.ipc_descriptor
    event.close()
    peer.call("close_thing", "theirs")
    if driver_name == "sim":
        with pytest.raises(ValueError, match="names no event"):
            Event.from_ipc_descriptor(name)
        return
    again = Event.from_ipc_descriptor(name)
    assert not again.is_closed
    again.close()
    assert again.is_closed


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_every_call_of_opening_an_event_fails(driver_watch, peer):
    event = peer.call("record", "theirs")
    name = event.ipc_descriptor
    for result, error in (
        ("CUDA_ERROR_OUT_OF_MEMORY", Exception),
        ("CUDA_ERROR_INVALID_HANDLE", ValueError),
        ("CUDA_ERROR_INVALID_VALUE", ValueError),
    ):
        live = driver_watch.live()
        with driver_watch.fail("cuIpcOpenEventHandle", result=result) as failure:
            with pytest.raises(error):
                Event.from_ipc_descriptor(name)
        assert failure.fired
        assert driver_watch.live() == live
    event.close()
    peer.call("close_thing", "theirs")


# --- what is wrong ------------------------------------------------------------------------------------------------


def test_what_cannot_be_sent_is_refused_here(peer, stream):
    plain = DeviceMemoryResource(0, {})
    buffer = plain.allocate(64, stream=stream)
    for thing in (plain, buffer, stream.record()):
        with pytest.raises(RuntimeError, match="IPC-enabled"):
            peer.call("keep", "thing", thing)
    buffer.close()
    plain.close()


def test_a_failure_there_is_an_exception_there(peer, shared):
    with pytest.raises(PeerFailed, match="KeyError"):
        peer.call("seen", "nothing", 4)
    kind, text = peer.call("refusal", "import_buffer", "buffer", None, shared.ipc_descriptor)
    assert kind == "TypeError"
    assert "mr must be" in text


def test_a_uuid_does_not_open_a_pool(peer, shared):
    """A plain pickle of a resource that was never sent names it, and brings nothing along."""
    resource = make()
    kind, text = peer.call("refusal", "unpickle", "x", pickle.dumps(resource))
    assert kind == "RuntimeError"
    assert str(resource.uuid) in text
    assert resource.uuid != uuid.UUID(int=0)
    resource.close()


@pytest.mark.sim_only
def test_a_process_that_ends_with_an_open_import_is_refused_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing
from cuda.core import Device, DeviceMemoryResource

def work(buffer):
    print(buffer.is_mapped)

if __name__ == "__main__":
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pool = DeviceMemoryResource(device, {"ipc_enabled": True, "max_size": 64 << 20})
    buffer = pool.allocate(4096, stream=stream)
    stream.sync()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(buffer,))
    process.start()
    process.join()
    print(process.exitcode)
    buffer.close()
    stream.sync()
    pool.close()
    stream.close()
"""
    )
    code, said = watched_end(program)
    assert code == 1, said
    assert "refused" not in said
    assert "left live: 1 memory pool, 1 pool allocation" in said  # of the process that left them
