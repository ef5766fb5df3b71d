# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside the operations of sharing fails in turn, once and for good.

What is called is found by running the operation once. After each failure nothing is left: no mapping, no pool, no file
descriptor; and the same operation works.
"""

import gc
import pickle

import pytest

from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, CUDAWarning, Device, Ownership
from cuda.core._memory import _counters
from cuda.core._memory._ipc import IPCBufferDescriptor
from cuda.core._memory._queue import drain
from shared_pools import KINDS, SIZE, Shared, descriptors, make, opened, payload_of
from support import attempt, calls_in_order, check, read, warnings_seen, write

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
EXCHANGE = "cuThreadExchangeStreamCaptureMode"
# What undoes a step that has had its effect. Where one of these is refused the operation has succeeded.
UNDOING = {"cuCtxPopCurrent", "cuEventDestroy", "cuStreamDestroy"}
# What is asked after a share was given up, to forget its streams early.
ASIDE = {
    "cuStreamQuery",
    "cuStreamIsCapturing",
    "cuCtxGetId",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    EXCHANGE,
    *UNDOING,
}


@pytest.fixture(params=KINDS)
def shared(request, stream):
    shared = Shared(request.param, stream)
    assert shared.descriptor  # made once, before anything fails
    yield shared
    shared.close()


@pytest.fixture(autouse=True)
def the_mode_of_the_thread(device):
    """Where giving the capture mode back is what fails, the thread keeps the one it was lent."""
    yield
    give_mode_back()


def give_mode_back():
    check(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))


def held(watch):
    gc.collect()
    assert drain(20)
    Device().create_event().close()  # with it those go that were refused
    # A pool remembers a few streams, and events, of its last frees. They are looked at when all is closed.
    remembered = ("stream", "event", "stream_handles")
    live = [
        {name: n for name, n in of.items() if name not in remembered}
        for of in (watch.live(), _counters.live())
    ]
    return live, descriptors()


def go_through(watch, operation, undo, sticky):
    """Let each call of an operation fail; what it left must be what was before, and it must work after that."""
    result, calls = calls_in_order(watch, operation)
    undo(result)
    del result
    before = held(watch)
    assert calls
    for call, n in calls:
        with warnings_seen() as seen, watch.fail(call, nth=n, sticky=sticky) as failure:
            result, error = attempt(operation, CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        if error is None:
            assert call in UNDOING | {EXCHANGE}, f"{call} {n} was swallowed"
            undo(result)
        else:
            assert call in str(error), f"{call} {n}: {error}"
        del result, error
        give_mode_back()
        undo(operation())  # what could not be undone goes with the next
        assert [entry.category for entry in seen] in ([], [CUDAWarning]), seen
        assert seen == [] or sticky
        assert held(watch) == before, f"{call} {n}: something is left"


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_making_a_shareable_pool_fails(driver_watch, kind, sticky):
    go_through(driver_watch, lambda: make(kind), lambda resource: resource.close(), sticky)


@ONCE_AND_FOR_GOOD
def test_every_call_of_exporting_a_pool_fails(driver_watch, shared, sticky):
    shared.resource.allocation_handle.close()  # that of the fixture; the next is made anew
    go_through(driver_watch, lambda: shared.resource.allocation_handle, lambda handle: handle.close(), sticky)


@ONCE_AND_FOR_GOOD
def test_every_call_of_describing_a_buffer_fails(driver_watch, shared, sticky):
    def describe():
        fresh.append(shared.resource.allocate(64, stream=shared.stream))
        return fresh[-1].ipc_descriptor

    fresh = []

    def undo(_):
        while fresh:
            fresh.pop().close()

    def only_the_description():
        return fresh[-1].ipc_descriptor

    describe()
    undo(None)
    fresh.append(shared.resource.allocate(64, stream=shared.stream))
    _, calls = calls_in_order(driver_watch, only_the_description)
    assert ("cuMemPoolExportPointer", 1) in calls
    for call, n in calls:
        undo(None)
        fresh.append(shared.resource.allocate(64, stream=shared.stream))
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            found, error = attempt(only_the_description, CUDAError)
        assert failure.fired
        if error is None:
            assert (call, n) == (EXCHANGE, 2)
            assert found.size == 64
        else:
            assert call in str(error)
        give_mode_back()
        assert fresh[-1].loans == 0
        assert only_the_description().size == 64
    undo(None)


@ONCE_AND_FOR_GOOD
def test_ipc_04_every_call_of_opening_a_pool_fails(driver_watch, shared, sticky):
    go_through(driver_watch, lambda: opened(shared.resource), lambda resource: resource.close(), sticky)


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("first", [True, False], ids=["first", "another"])
def test_ipc_02_every_call_of_an_import_fails(driver_watch, shared, sticky, first):
    """An import that raises leaves nothing behind, and the descriptor can be imported afterwards."""
    other = None if first else shared.imported()
    go_through(driver_watch, shared.imported, lambda buffer: buffer.close(), sticky)
    if other is not None:
        write(other.handle, b"still mapped")
        assert read(shared.buffer.handle, 12) == b"still mapped"
        other.close()


@ONCE_AND_FOR_GOOD
def test_ipc_02_every_call_of_a_refused_import_fails(driver_watch, shared, sticky):
    """What was found wrong after the driver has mapped it is given up, with whatever calls are left."""
    forged = IPCBufferDescriptor._init(payload_of(shared.descriptor), SIZE + 1)

    def operation():
        with pytest.raises(ValueError, match="size"):
            Buffer.from_ipc_descriptor(shared.there, forged, stream=shared.stream)

    _, calls = calls_in_order(driver_watch, operation)
    shared.imported().close()
    before = held(driver_watch)
    for call, n in calls:
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            attempt(operation, CUDAError)
        assert failure.fired
        give_mode_back()
        shared.imported().close()
        assert held(driver_watch) == before, f"{call} {n}: something is left"


@ONCE_AND_FOR_GOOD
def test_every_call_of_unpickling_fails(driver_watch, shared, sticky):
    shared.there.register(shared.resource.uuid)
    data = pickle.dumps(shared.buffer)
    context = check(driver.cuCtxGetCurrent())
    for current in (Device(0), None):

        def operation(current=current):
            if current is None:
                check(driver.cuCtxSetCurrent(driver.CUcontext(0)))
            try:
                return pickle.loads(data)
            finally:
                check(driver.cuCtxSetCurrent(context))

        with warnings_seen() as seen:
            go_through_unless_ours(driver_watch, operation, sticky)
        assert all("cuEventDestroy" in str(one.message) for one in seen)  # told once each


# Asked before access is withdrawn. Refused, it is not known, and access stays.
WHETHER_FREES_HAVE_RUN = {
    "cuCtxGetId",
    "cuStreamIsCapturing",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
}
WHETHER_FREES_HAVE_RUN |= {"cuEventSynchronize", "cuEventDestroy", "cuCtxPushCurrent", "cuCtxGetCurrent"}


def go_through_unless_ours(watch, operation, sticky):
    """As `go_through`, for an operation that calls the driver through the bindings, too."""
    operation().close()  # the first import of a pool has nothing to withdraw
    result, calls = calls_in_order(watch, operation)
    result.close()
    del result
    before = held(watch)
    for call, n in calls:
        if call in ("cuCtxPopCurrent", "cuCtxSetCurrent"):
            continue  # the latter is the test's own
        with watch.fail(call, nth=n, sticky=sticky) as failure:
            result, error = attempt(operation, CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        if result is not None:
            assert call in {EXCHANGE, *WHETHER_FREES_HAVE_RUN}
            result.close()
        del result, error
        give_mode_back()
        operation().close()
        assert held(watch) == before, f"{call} {n}: something is left"


STREAMS = ("own", "default", "several")


def closing(shared, device, case, last):
    """Return a buffer to be closed, and what else has a share of its mapping."""
    stream = device.default_stream if case == "default" else shared.stream
    other = None if last else shared.imported()
    buffer = shared.imported(stream)
    if case == "several":
        buffer.record_stream(device.default_stream)
    return buffer, other


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("case", STREAMS)
@pytest.mark.parametrize("last", [True, False], ids=["the last share", "one of two"])
def test_every_call_of_closing_an_import_fails(driver_watch, device, shared, sticky, case, last):
    """A close that fails leaves the buffer as it was, and the next one gives the share up."""
    buffer, other = closing(shared, device, case, last)
    outcome, calls = calls_in_order(driver_watch, buffer.close)
    assert outcome is CloseResult.DONE
    if other is not None:
        other.close()
    del buffer, other
    before = held(driver_watch)
    given_up = "cuMemFreeAsync" if last else None
    reached = False
    for call, n in calls:
        if call in UNDOING:
            continue
        buffer, other = closing(shared, device, case, last)
        address = buffer.handle
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            outcome, error = attempt(buffer.close, CUDAError)
        assert failure.fired, f"{call} {n} did not fail"
        give_mode_back()
        if outcome is None:
            assert not reached
            assert call in str(error)
            assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, SIZE)
            write(address, b"as before")
            assert read(shared.buffer.handle, 9) == b"as before"
            assert buffer.close() is CloseResult.DONE
        else:
            assert call in ASIDE, f"{call} {n} was swallowed"
        reached = reached or call == given_up
        assert buffer.ownership is Ownership.RELEASED
        if other is not None:
            write(other.handle, b"the other")
            assert read(shared.buffer.handle, 9) == b"the other"
            other.close()
        del buffer, other, error
        drain(20)
        shared.imported().close()  # what was not looked at again goes with the next
        assert held(driver_watch) == before, f"{call} {n}: something is left"


@pytest.mark.parametrize("call", ["cuMemFreeAsync", "cuStreamIsCapturing"])
def test_a_collection_that_fails_is_told_of_once_or_goes_to_the_queue(driver_watch, shared, call):
    buffer = shared.imported()
    with warnings_seen() as seen, driver_watch.fail(call) as failure:
        del buffer
        gc.collect()
        assert drain(20)
    assert failure.fired
    if call == "cuMemFreeAsync":
        assert [entry.category for entry in seen] == [CUDAWarning]
    else:
        assert seen == []
    # Whoever imports it again takes over what could not be given up.
    again = shared.imported()
    write(again.handle, b"again")
    assert read(shared.buffer.handle, 5) == b"again"
    assert again.close() is CloseResult.DONE
    assert "imports" not in _counters.live()


@ONCE_AND_FOR_GOOD
def test_every_call_of_closing_an_opened_pool_fails(driver_watch, shared, sticky):
    resource = opened(shared.resource)
    _, calls = calls_in_order(driver_watch, resource.close)
    del resource
    for call, n in calls:
        before = held(driver_watch)
        resource = opened(shared.resource)
        with driver_watch.fail(call, nth=n, sticky=sticky) as failure:
            _, error = attempt(resource.close, CUDAError)
        assert failure.fired
        give_mode_back()
        if error is None:
            assert (call, n) == (EXCHANGE, 2)
        else:
            assert resource.is_mapped
            Buffer.from_ipc_descriptor(resource, shared.descriptor, stream=shared.stream).close()
            resource.close()
        assert resource.is_closed
        del resource, error
        assert held(driver_watch) == before, f"{call} {n}: something is left"


@pytest.mark.parametrize("result", ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_CONTEXT_IS_DESTROYED"])
def test_what_is_hopeless_is_lost_and_its_share_with_it(driver_watch, shared, result):
    other, buffer = shared.imported(), shared.imported()
    for each in (buffer, other):
        name = "cuStreamIsCapturing" if each is buffer else "cuMemFreeAsync"
        if result.endswith("DESTROYED") and name == "cuStreamIsCapturing":
            each.close()  # nothing of such a stream runs any more: the share goes
            continue
        with (
            driver_watch.fail(name, result=result, sticky=True),
            driver_watch.fail("cuMemFree", result=result, sticky=True),
        ):
            with pytest.raises(CUDAError, match=result):
                each.close()
        assert each.ownership is Ownership.RELEASED
        assert "lost" in repr(each)
    assert "imports" not in _counters.live()
    again = shared.imported()
    assert again.close() is CloseResult.DONE
