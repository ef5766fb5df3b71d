# SPDX-License-Identifier: Apache-2.0
"""Events for other processes: how they are made, what their names are, and what is refused. See also test_processes."""

import gc
import pickle

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError, Event, EventOptions
from cuda.core._event_descriptor import IPCEventDescriptor
from shared_pools import SHARED_EVENT
from support import attempt, check

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def event(stream):
    event = stream.record(options=SHARED_EVENT)
    yield event
    event.close()


def test_an_event_for_others_is_made_where_it_is_recorded(event, device):
    assert event.is_ipc_enabled
    assert not event.is_timing_enabled
    assert not event.is_blocking_sync
    assert event.device is device
    event.sync()
    assert event.is_done


@pytest.mark.parametrize("as_", [EventOptions, dict])
def test_the_options_are_checked_before_an_event_is_made(driver_watch, device, stream, as_):
    shared, timed = as_(ipc_enabled=True), as_(ipc_enabled=True, timing_enabled=True)
    for make, match in (
        (lambda: device.create_event(shared), r"Stream\.record"),
        (lambda: device.create_event(timed), r"Stream\.record"),
        (lambda: stream.record(options=timed), "timing"),
    ):
        calls = driver_watch.calls_of(lambda make=make, match=match: refused(make, match))
        assert not {"cuEventCreate", "cuEventRecord"} & set(calls)


def refused(make, match):
    with pytest.raises(TypeError, match=match):
        make()


def test_it_is_recorded_once(driver_watch, event, stream):
    with driver_watch.no_call(), pytest.raises(TypeError, match="recorded once"):
        stream.record(event)


def test_its_name_is_made_once_and_can_be_pickled(event):
    name = event.ipc_descriptor
    assert event.ipc_descriptor is name
    copy = pickle.loads(pickle.dumps(name))
    assert copy == name
    assert copy.__reduce__() == name.__reduce__()
    assert name != 3
    assert name != IPCEventDescriptor._init(bytes(64), False)
    with pytest.raises(TypeError):
        hash(name)


def test_a_blocking_event_stays_one(stream):
    event = stream.record(options=EventOptions(ipc_enabled=True, blocking_sync=True))
    assert event.is_blocking_sync
    assert event.ipc_descriptor.__reduce__()[1][1] is True
    event.close()


def test_only_an_event_for_others_has_a_name(stream, event):
    plain = stream.record()
    for use in (lambda: plain.ipc_descriptor, lambda: pickle.dumps(plain)):
        with pytest.raises(RuntimeError, match="IPC-enabled"):
            use()
    plain.close()
    event.close()
    for use in (lambda: event.ipc_descriptor, lambda: pickle.dumps(event), lambda: event.is_ipc_enabled):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.parametrize("payload", [b"", bytes(63), bytes(65)], ids=len)
def test_a_payload_of_another_length_is_refused(payload):
    with pytest.raises(ValueError, match=f"{len(payload)} bytes; expected 64"):
        IPCEventDescriptor._init(payload, False)


def test_a_name_of_something_else_is_refused():
    for payload in (None, "x" * 64, bytearray(64), 64):
        with pytest.raises(TypeError, match="must be bytes"):
            IPCEventDescriptor._init(payload, False)
    for flag in (None, 1, "True"):
        with pytest.raises(TypeError, match="is_blocking_sync"):
            IPCEventDescriptor._init(bytes(64), flag)
    with pytest.raises(RuntimeError, match="cannot be made directly"):
        IPCEventDescriptor()
    for value in (None, bytes(64), 5):
        with pytest.raises(TypeError, match="ipc_descriptor must be"):
            Event.from_ipc_descriptor(value)


@pytest.mark.watched
def test_a_forged_name_opens_nothing(driver_watch, event):
    """Any other bytes than those sent are found before the driver sees them: it would believe them, or crash."""
    make, (good, blocking, check_) = event.ipc_descriptor.__reduce__()
    assert make(good, blocking, check_) == event.ipc_descriptor
    forged = [(bytes(64), blocking, check_), (b"\xff" * 64, blocking, check_), (good, not blocking, check_)]
    forged += [
        (good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :], blocking, check_)
        for place in range(64)
    ]
    forged += [(good, blocking, wrong) for wrong in (0, check_ + 1, False, "x", b"", 1.0)]
    with driver_watch.no_call():
        for arguments in forged:
            with pytest.raises(ValueError, match="not what its exporter has sent"):
                make(*arguments)


@pytest.mark.provokes_refusals
def test_what_names_no_event_is_refused(device):
    for payload in (bytes(64), b"\xff" * 64):
        with pytest.raises(ValueError, match="names no event"):
            Event.from_ipc_descriptor(IPCEventDescriptor._init(payload, False))


@pytest.mark.provokes_refusals
def test_an_event_of_this_process_is_not_opened(event):
    with pytest.raises(ValueError, match="another process") as caught:
        Event.from_ipc_descriptor(event.ipc_descriptor)
    assert isinstance(caught.value.__cause__, CUDAError)
    with pytest.raises(ValueError, match="another process"):
        pickle.loads(pickle.dumps(event))


def test_opening_needs_a_current_context(event):
    name = event.ipc_descriptor
    context = check(driver.cuCtxGetCurrent())
    check(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    try:
        with pytest.raises(RuntimeError, match="current"):
            Event.from_ipc_descriptor(name)
    finally:
        check(driver.cuCtxSetCurrent(context))


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_every_call_of_making_and_naming_one_fails(driver_watch, stream):
    def make():
        event = stream.record(options=SHARED_EVENT)
        return event, event.ipc_descriptor

    with driver_watch.sim.logged() as log:
        event, _ = make()
    event.close()
    names = [call.name for call in log.calls]
    assert "cuIpcGetEventHandle" in names
    for name in sorted(set(names) - {"cuCtxPopCurrent"}):
        for nth in range(1, names.count(name) + 1):
            live = driver_watch.live()
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                _, error = attempt(make, CUDAError)
            assert failure.fired
            assert name in str(error)
            del error
            gc.collect()
            assert driver_watch.live() == live
