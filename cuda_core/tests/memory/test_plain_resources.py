# SPDX-License-Identifier: Apache-2.0
"""The resources that ask the driver once for each allocation: pinned memory of the host, plain memory of a device."""

import contextlib
import ctypes
import gc

import pytest

from buffer_kinds import ENDINGS, SOURCES, end
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    LegacyPinnedMemoryResource,
    Ownership,
    StreamOptions,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from support import (
    attempt,
    check,
    child_output,
    fill,
    free_memory,
    given_back,
    holds,
    in_context,
    name_of,
    race,
    read,
    still_allocated,
    warnings_seen,
    write,
)

pytestmark = pytest.mark.usefixtures("device")

KINDS = ("pinned", "device")
ALLOCATES = {"pinned": "cuMemAllocHost", "device": "cuMemAlloc"}
FREES = {"pinned": "cuMemFreeHost", "device": "cuMemFree"}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def plain(kind, device):
    """The resource."""
    return SOURCES[kind](device).resource


class Asked:
    """Mixed into a built-in resource: notes what it is asked, and refuses as often as it is told to."""

    asked = ()
    refusals = 0

    def deallocate(self, ptr, size, *, stream=None):
        self.asked = (*self.asked, (ptr, size, int(stream.handle)))
        if self.refusals:
            self.refusals -= 1
            raise LookupError("not now")
        super().deallocate(ptr, size, stream=stream)


class AskedPinned(Asked, LegacyPinnedMemoryResource):
    pass


class AskedDevice(Asked, _SynchronousMemoryResource):
    pass


ASKED = {"pinned": AskedPinned, "device": lambda: AskedDevice(0)}


# --- what they are -----------------------------------------------------------------------------------------------


def test_pinned_memory_is_reached_by_host_and_device():
    resource = LegacyPinnedMemoryResource()
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, True)
    with pytest.raises(RuntimeError):
        _ = resource.device_id
    buffer = resource.allocate(100)
    assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, True)
    assert (buffer.is_managed, buffer.is_mapped) == (False, False)
    write(buffer.handle, b"by the device")
    assert ctypes.string_at(buffer.handle, 13) == b"by the device"
    ctypes.memmove(buffer.handle, b"by the host  ", 13)
    assert read(buffer.handle, 13) == b"by the host  "
    buffer.close()


def test_plain_memory_is_reached_by_its_device():
    resource = _SynchronousMemoryResource(0)
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.device_id) == (
        True,
        False,
        0,
    )
    buffer = resource.allocate(100)
    assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, False)
    assert (buffer.is_managed, buffer.is_mapped, buffer.device_id) == (False, False, 0)
    buffer.close()


@pytest.mark.parametrize("size", [1, 3, 511, 4096, 100_001])
def test_a_buffer_has_the_size_asked_for(plain, size):
    buffer = plain.allocate(size)
    assert (buffer.ownership, buffer.transferred_to, buffer.loans) == (Ownership.OWNED, None, 0)
    assert (buffer.size, buffer.mapped_size, buffer.capacity) == (size, size, size)
    assert buffer.memory_resource is plain
    pattern = bytes(index % 251 for index in range(size))
    write(buffer.handle, pattern)
    assert read(buffer.handle, size) == pattern
    buffer.close()


def test_many_buffers_do_not_overlap(plain):
    buffers = [plain.allocate(4096) for _ in range(50)]
    for seed, buffer in enumerate(buffers):
        fill(buffer.handle, 4096, seed)
    assert all(holds(buffer.handle, 4096, seed) for seed, buffer in enumerate(buffers))
    for buffer in buffers:
        buffer.close()


@pytest.mark.parametrize("how", ENDINGS)
def test_every_ending_gives_the_memory_back(plain, how):
    free = free_memory()
    box = [plain.allocate(8 << 20)]
    address = box[0].handle
    end(box, how)
    if how in ("close", "with"):
        assert not still_allocated(address), "it is back when the close returns"
    assert given_back(address)
    assert free_memory() == free


def test_plain_memory_is_the_devices():
    free = free_memory()
    buffer = _SynchronousMemoryResource(0).allocate(8 << 20)
    assert free_memory() <= free - (8 << 20)
    buffer.close()
    assert free_memory() == free


def test_no_bytes_need_no_driver(plain, driver_watch):
    with driver_watch.no_call():
        buffer = plain.allocate(0)
        assert (buffer.ownership, buffer.size) == (Ownership.OWNED, 0)
        assert buffer.close() is CloseResult.DONE
    assert buffer.ownership is Ownership.RELEASED


NOT_SIZES = [
    (-1, ValueError),
    (2.0, TypeError),
    ("4096", TypeError),
    (None, TypeError),
    (True, TypeError),
    (2**64, OverflowError),
    (2**70, OverflowError),
]


@pytest.mark.parametrize(("size", "error"), NOT_SIZES, ids=name_of)
def test_odd_sizes_are_refused_before_any_driver_call(plain, driver_watch, size, error):
    with driver_watch.no_call():
        with pytest.raises(error):
            plain.allocate(size)


@pytest.mark.parametrize("stream", [7, "stream", object()], ids=name_of)
@pytest.mark.parametrize("size", [0, 4096])
def test_odd_streams_are_refused_before_any_driver_call(plain, driver_watch, size, stream):
    with driver_watch.no_call():
        with pytest.raises(TypeError):
            plain.allocate(size, stream=stream)


@pytest.mark.parametrize(
    ("ordinal", "error"), [("0", TypeError), (0.0, TypeError), (-1, ValueError)], ids=name_of
)
def test_odd_devices_are_refused(ordinal, error):
    with pytest.raises(error):
        _SynchronousMemoryResource(ordinal)


@pytest.mark.provokes_refusals
def test_too_much_is_an_error_that_names_the_call(device):
    resource = _SynchronousMemoryResource(device.device_id)
    with pytest.raises(CUDAError, match=r"CUDA_ERROR_OUT_OF_MEMORY.*cuMemAlloc"):
        resource.allocate(1 << 45)
    assert resource.allocate(4096).close() is CloseResult.DONE


def test_plain_memory_cannot_grow(plain, device, driver_watch):
    virtual = VirtualMemoryResource(device)
    buffer = plain.allocate(4096)
    with driver_watch.no_call():
        with pytest.raises(ValueError):
            virtual.modify_allocation(buffer, 8192)
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


def test_the_repr_names_the_class(plain):
    assert type(plain).__name__ in repr(plain)


# --- contexts ----------------------------------------------------------------------------------------------------


def current_context():
    return int(check(driver.cuCtxGetCurrent()))


@pytest.mark.two_devices
@pytest.mark.parametrize("closed_with", [0, 1], ids=["other current", "own current"])
def test_memory_comes_from_the_resources_device_whatever_is_current(devices, closed_with):
    """Allocated on device 1 while 0 is current, and freed; what is current stays current."""
    devices[1].set_current()
    free = free_memory()
    devices[0].set_current()
    here, free_here = current_context(), free_memory()
    resource = _SynchronousMemoryResource(1)
    buffer = resource.allocate(8 << 20)
    assert current_context() == here
    assert buffer.device_id == 1
    assert free_memory() == free_here
    devices[1].set_current()
    assert free_memory() <= free - (8 << 20)
    devices[closed_with].set_current()
    now = current_context()
    assert buffer.close() is CloseResult.DONE
    assert current_context() == now
    devices[1].set_current()
    assert free_memory() == free


def test_plain_memory_is_allocated_and_closed_on_a_thread_without_a_context(device):
    resource, stream = _SynchronousMemoryResource(0), device.create_stream()

    def work():
        buffer = resource.allocate(4096, stream=stream)
        address = buffer.handle
        assert buffer.close() is CloseResult.DONE
        return address, current_context()

    ((address, context),) = race(work)
    assert context == 0
    assert given_back(address)
    stream.close()


def test_a_buffer_is_closed_on_a_thread_without_a_context(plain):
    buffer = plain.allocate(4096)
    address = buffer.handle

    def work():
        return buffer.close(), current_context()

    assert race(work) == [(CloseResult.DONE, 0)]
    assert not still_allocated(address)


def test_threads_share_a_resource(plain):
    def work():
        for _ in range(50):
            with plain.allocate(4096) as buffer:
                fill(buffer.handle, 4096, seed=1)
                assert holds(buffer.handle, 4096, seed=1)
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4


# --- order -------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(driver_watch):
    """Work on streams does not run until something waits for it. On a GPU it runs when the GPU likes."""
    return driver_watch.sim.hold if driver_watch.sim else contextlib.nullcontext


@pytest.mark.parametrize("how", ["allocate", "set", "close"])
def test_a_close_waits_for_the_recorded_stream(plain, device, held, how):
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    buffer = plain.allocate(1 << 20, stream=stream if how == "allocate" else None)
    if how == "set":
        buffer.set_deallocation_stream(stream)
    address = buffer.handle
    with held():
        for value in range(16):
            check(driver.cuMemsetD32Async(address, value, (1 << 20) // 4, int(stream.handle)))
        assert buffer.close(stream if how == "close" else None) is CloseResult.DONE
        # Work that ran after the free would have made the stream fail.
        assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.sync()
    assert given_back(address)
    stream.close()


@contextlib.contextmanager
def capture(stream, mode):
    mode = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
    check(driver.cuStreamBeginCapture(int(stream.handle), mode))
    yield
    status = check(driver.cuStreamIsCapturing(int(stream.handle)))
    assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    graph = check(driver.cuStreamEndCapture(int(stream.handle)))
    check(driver.cuGraphDestroy(graph))


@pytest.mark.parametrize("mode", ["RELAXED", "THREAD_LOCAL", "GLOBAL"])
@pytest.mark.parametrize("how", ENDINGS)
def test_a_free_elsewhere_leaves_a_capture_alone(plain, device, mode, how):
    stream, other = (device.create_stream(options=StreamOptions(nonblocking=True)) for _ in range(2))
    box = [plain.allocate(4096, stream=other)]
    address = box[0].handle
    with capture(stream, mode):
        end(box, how)
    assert given_back(address)
    stream.close()
    other.close()


@pytest.mark.parametrize("given", [False, True], ids=["recorded", "given"])
def test_a_close_on_a_capturing_stream_is_refused_and_the_capture_goes_on(plain, device, given):
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    buffer = plain.allocate(4096, stream=None if given else stream)
    address = buffer.handle
    with capture(stream, "GLOBAL"):
        with pytest.raises(CUDAError, match="captur"):
            buffer.close(stream if given else None)
        assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)
    stream.close()


# --- failures ----------------------------------------------------------------------------------------------------


def calls_in_order(sim, function):
    """Return what `function` returns, and its driver calls as (name, n-th of this name)."""
    with sim.logged() as log:
        result = function()
    counts, numbered = {}, []
    for entry in log.calls:
        counts[entry.name] = counts.get(entry.name, 0) + 1
        numbered.append((entry.name, counts[entry.name]))
    return result, numbered


ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
WITH_STREAM = pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
# These put back what was current, or the thread's capture mode; the work is done by then.
AFTERWARDS = {"cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode", "cuCtxSetCurrent"}


@pytest.mark.watched
@pytest.mark.provokes_refusals
@ONCE_AND_FOR_GOOD
@WITH_STREAM
def test_every_call_of_allocate_fails(plain, kind, device, driver_watch, with_stream, sticky):
    stream = device.create_stream() if with_stream else None
    plain.allocate(4096, stream=stream).close()  # which finds the context, once
    buffer, calls = calls_in_order(driver_watch.sim, lambda: plain.allocate(4096, stream=stream))
    buffer.close()
    assert ALLOCATES[kind] in dict(calls)
    for name, n in calls:
        live, context = driver_watch.live(), current_context()
        # An allocation that is out of memory may try a second time, so the failure is one that nothing can help.
        with (
            warnings_seen() as seen,
            driver_watch.fail(name, nth=n, result="CUDA_ERROR_INVALID_VALUE", sticky=sticky) as failure,
        ):
            buffer, error = attempt(lambda: plain.allocate(4096, stream=stream), CUDAError)
        assert failure.fired, f"{name} {n} did not fail"
        assert seen == []
        if name == ALLOCATES[kind]:
            assert buffer is None
        if buffer is None:
            assert "CUDA_ERROR_INVALID_VALUE" in str(error), f"{name} {n}: {error}"
            assert name in str(error), f"{name} {n}: {error}"
        else:
            assert name in AFTERWARDS, f"{name} {n} failed and nobody was told"
            assert buffer.ownership is Ownership.OWNED
            buffer.close()
        if name not in AFTERWARDS:
            assert current_context() == context
        elif name == "cuCtxPopCurrent":  # what was pushed is still there
            check(driver.cuCtxPopCurrent())
        check(driver.cuCtxSetCurrent(context))
        assert driver_watch.live() == live, f"{name} {n}: something is left"
    if stream is not None:
        stream.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@ONCE_AND_FOR_GOOD
@WITH_STREAM
def test_every_call_of_close_fails(plain, kind, device, driver_watch, with_stream, sticky):
    stream = device.create_stream() if with_stream else None
    result, calls = calls_in_order(driver_watch.sim, plain.allocate(4096, stream=stream).close)
    assert result is CloseResult.DONE
    assert FREES[kind] in dict(calls)
    for name, n in calls:
        what = f"{name} {n} of {calls}"
        live, context = driver_watch.live(), current_context()
        buffer = plain.allocate(4096, stream=stream)
        address = buffer.handle
        fill(address, 4096, seed=1)
        driver_watch.sim.reset()
        with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            closed, error = attempt(buffer.close, CUDAError)
            if closed is None and sticky:
                with pytest.raises(CUDAError, match=name):
                    buffer.close()
        check(driver.cuCtxSetCurrent(context))
        assert failure.fired, what
        assert seen == [], what
        assert len(driver_watch.refused()) == failure.fired, f"{what}: {driver_watch.refused()}"
        if name == FREES[kind]:
            assert closed is None, f"{what} failed and nobody was told"
        if closed is None:
            assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error), f"{what}: {error}"
            assert name in str(error), f"{what}: {error}"
            assert (buffer.ownership, buffer.handle, buffer.is_closed) == (Ownership.OWNED, address, False)
            assert holds(address, 4096, seed=1), what
            assert buffer.close() is CloseResult.DONE
        assert buffer.close() is CloseResult.NOTHING
        assert not still_allocated(address), what
        assert driver_watch.live() == live, f"{what}: something is left"
    if stream is not None:
        stream.close()


# In a child: what could not be freed stays in the package's books.
CANNOT_FREE = """
import sys, warnings
import cuda_driver_sim as sim
from buffer_kinds import SOURCES, end
from cuda.core import Device
from cuda.core._memory._queue import drain
from support import still_allocated
device = Device(0)
device.set_current()
kind, name, how = sys.argv[1:]
source = SOURCES[kind](device)
box = [source.allocate()]
address = box[0].handle
if how == "last loan":
    loan = box[0][:8]
    box.pop().close()
with warnings.catch_warnings(record=True) as seen, sim.fail(name, sticky=True) as failure:
    warnings.simplefilter("always")
    if how == "last loan":
        loan.close()
    else:
        end(box, how)
    drain(timeout=20)
print(failure.fired, [warning.category.__name__ for warning in seen], still_allocated(address))
text = str(seen[0].message)
print([word in text for word in (f"{address:x}", "4096", name, "CUDA_ERROR_OUT_OF_MEMORY")])
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["drop", "cycle", "last loan"])
def test_a_collection_that_cannot_free_reports_once(kind, how):
    assert child_output(CANNOT_FREE, kind, FREES[kind], how).splitlines() == [
        "1 ['CUDAWarning'] True",
        "[True, True, True, True]",
    ]


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_an_exception_that_passes_gets_a_note_of_a_failed_free(plain, kind, driver_watch):
    buffer = plain.allocate(4096)
    with driver_watch.fail(FREES[kind]):
        with pytest.raises(KeyError, match="passes") as info:
            with buffer:
                raise KeyError("passes")
    assert FREES[kind] in "".join(info.value.__notes__)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


# --- subclasses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
def test_a_subclass_is_asked_once_with_the_size_allocated(kind, device, how):
    resource, stream = ASKED[kind](), device.create_stream()
    box = [resource.allocate(1000, stream=stream)]
    address = box[0].handle
    assert box[0].memory_resource is resource
    end(box, how)
    assert resource.asked == ((address, 1000, int(stream.handle)),)
    assert given_back(address)
    stream.close()


def test_a_subclass_that_raises_is_asked_again_by_a_close_alone(kind):
    resource = ASKED[kind]()
    resource.refusals = 1
    buffer = resource.allocate(1000)
    address = buffer.handle
    with pytest.raises(LookupError):
        buffer.close()
    assert (buffer.ownership, buffer.handle) == (Ownership.OWNED, address)
    assert still_allocated(address)
    with buffer:
        pass
    assert len(resource.asked) == 1
    assert buffer.close() is CloseResult.DONE
    assert len(resource.asked) == 2
    assert given_back(address)


def test_a_subclass_that_raises_in_a_collection_is_reported_once(kind):
    resource = ASKED[kind]()
    resource.refusals = 1
    buffer = resource.allocate(1000)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert len(resource.asked) == 1
    assert still_allocated(address)
    check(getattr(driver, FREES[kind])(address))


def test_a_subclass_may_make_its_memory_itself(kind):
    """It overrides ``allocate`` too, and never calls the base class's initialiser."""
    base = {"pinned": LegacyPinnedMemoryResource, "device": _SynchronousMemoryResource}[kind]
    freed = []

    class Own(base):
        def __init__(self):
            pass

        def allocate(self, size, *, stream=None):
            return Buffer.from_handle(int(check(driver.cuMemAlloc(size))), size, self, stream=stream)

        def deallocate(self, ptr, size, *, stream=None):
            freed.append((ptr, size))
            check(driver.cuMemFree(ptr))

    buffer = Own().allocate(512)
    address = buffer.handle
    gc.collect()
    assert buffer.close() is CloseResult.DONE
    assert freed == [(address, 512)]
    assert given_back(address)
