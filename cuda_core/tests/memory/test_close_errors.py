# SPDX-License-Identifier: Apache-2.0
"""Releases that fail: those that can go on, those that nobody can judge, and those that are hopeless."""

import gc

import pytest

from buffer_kinds import BUILT_IN, FREES, SOURCES, WAITING, VirtualSource, free_raw
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, CUDAWarning, Ownership, OwnershipError
from cuda.core._memory._queue import drain
from python_resources import Refusing
from support import (
    GRANULE,
    attempt,
    check,
    child_output,
    fill,
    free_memory,
    holds,
    race,
    run_child,
    still_allocated,
    warnings_seen,
)

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals]
HOPELESS = (
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_PC",
)


@pytest.fixture(params=BUILT_IN)
def kind(request):
    return request.param


@pytest.fixture
def source(device, kind):
    return SOURCES[kind](device)


# --- can go on: built-in resources --------------------------------------------------------------------------------


def test_a_close_that_failed_can_go_on(source, kind, driver_watch):
    buffer = source.allocate()
    address, size = buffer.handle, buffer.size
    for _ in range(3):
        with driver_watch.fail(FREES[kind], result="CUDA_ERROR_UNKNOWN"):
            with pytest.raises(CUDAError, match=f"CUDA_ERROR_UNKNOWN.*{FREES[kind]}"):
                buffer.close()
        assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, size)
        assert not buffer.is_closed
        assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)
    assert buffer.close() is CloseResult.NOTHING


def test_leaving_with_raises_and_can_go_on(source, kind, driver_watch):
    with pytest.raises(CUDAError, match=FREES[kind]):
        with driver_watch.fail(FREES[kind]):
            with source.allocate() as buffer:
                pass
    assert buffer.ownership is Ownership.OWNED
    with buffer:
        pass
    assert buffer.ownership is Ownership.RELEASED


def test_leaving_with_adds_a_note_to_an_exception_that_passes(source, kind, driver_watch):
    with pytest.raises(KeyError) as raised:
        with driver_watch.fail(FREES[kind]):
            with source.allocate() as buffer:
                raise KeyError("mine")
    notes = getattr(raised.value, "__notes__", [])
    assert len(notes) == 1
    assert FREES[kind] in notes[0]
    assert raised.value.args == ("mine",)
    assert buffer.ownership is Ownership.OWNED
    buffer.close()


def test_a_buffer_whose_close_failed_can_still_be_used_and_given_away(source, kind, driver_watch):
    buffer = source.allocate()
    address, size = buffer.handle, buffer.size
    with driver_watch.fail(FREES[kind]), pytest.raises(CUDAError):
        buffer.close()
    fill(address, size, seed=4)
    adopted = Buffer.adopt(buffer.detach())
    assert holds(adopted.handle, size, seed=4)
    del adopted, buffer  # the failure was the first owner's: a collection frees it like any other
    gc.collect()
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)


def test_a_close_that_fails_keeps_what_the_next_one_needs(device, kind, driver_watch):
    """The resource is gone by then, and the stream is closed."""
    stream = device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=stream)
    address = buffer.handle
    with driver_watch.fail(FREES[kind]), pytest.raises(CUDAError):
        buffer.close()
    stream.close()
    gc.collect()
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


@pytest.mark.parametrize("waiting", WAITING)
def test_a_wait_that_fails_frees_nothing(device, waiting, driver_watch):
    stream = device.create_stream()
    buffer = SOURCES[waiting](device).allocate(stream=stream)
    address = buffer.handle
    with driver_watch.fail("cuStreamQuery", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError, match="cuStreamQuery"):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    stream.close()


def test_a_part_that_was_returned_is_not_returned_again(resource, driver_watch):
    """Five chunks; each of the five unmaps fails once, and is the only one that is repeated."""
    buffer = resource.allocate(GRANULE)
    for granules in range(2, 6):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    total = {"cuMemUnmap": 0}
    for _ in range(5):
        with driver_watch.fail("cuMemUnmap", nth=2):

            def close():
                try:
                    buffer.close()
                except CUDAError:
                    pass

            total["cuMemUnmap"] += driver_watch.calls_of(close).get("cuMemUnmap", 0)
    assert buffer.ownership is Ownership.RELEASED
    refused = sum(name == "cuMemUnmap" for name, _ in driver_watch.refused())
    assert total["cuMemUnmap"] - refused == 5


# --- cannot know: Python deallocate and deallocate= ---------------------------------------------------------------


def refusing_buffer(how, refusals):
    """Return a buffer whose free raises that often, what was asked, and its address."""
    if how == "resource":
        resource = Refusing(refusals)
        buffer = resource.allocate(512)
        return buffer, resource.asked, buffer.handle
    asked, left = [], [refusals]

    def free(ptr, size, stream):
        asked.append("refused" if left[0] else (ptr, size, stream))
        if left[0]:
            left[0] -= 1
            raise LookupError("not now")
        check(driver.cuMemFree(ptr))

    address = int(check(driver.cuMemAlloc(512)))
    return Buffer.from_handle(address, 512, deallocate=free), asked, address


@pytest.mark.parametrize("how", ["resource", "function"])
def test_only_an_explicit_close_asks_again(device, how):
    buffer, asked, address = refusing_buffer(how, refusals=2)
    with pytest.raises(LookupError, match="not now"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    with warnings_seen() as seen, buffer:
        pass
    assert asked == ["refused"], "leaving with does not ask again"
    assert seen == []
    with pytest.raises(LookupError):
        buffer.close()
    assert buffer.close() is CloseResult.DONE
    assert asked[:2] == ["refused"] * 2
    assert asked[2][:2] == (address, 512)
    assert len(asked) == 3


@pytest.mark.parametrize("how", ["resource", "function"])
def test_the_collector_never_asks_again(device, how):
    buffer, asked, address = refusing_buffer(how, refusals=1)
    with pytest.raises(LookupError):
        buffer.close()
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert asked == ["refused"]
    assert [w.category for w in seen] == [CUDAWarning]
    assert hex(address) in str(seen[0].message)
    assert "512" in str(seen[0].message)
    free_raw("python", address, 512)


@pytest.mark.parametrize("how", ["resource", "function"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit], ids=lambda e: e.__name__)
def test_whatever_a_deallocate_raises_comes_out_of_close(device, how, error):
    left = [1]

    def free(ptr, size, stream):
        if left.pop():
            left.append(0)
            raise error("mine")
        check(driver.cuMemFree(ptr))

    class Raising(Refusing):
        def deallocate(self, ptr, size, *, stream=None):
            free(ptr, size, stream)

    address = int(check(driver.cuMemAlloc(512)))
    if how == "function":
        buffer = Buffer.from_handle(address, 512, deallocate=free)
    else:
        buffer = Buffer.from_handle(address, 512, Raising(0))
    with pytest.raises(error, match="mine"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


INTERRUPTS = pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda e: e.__name__)


def interrupting(error, size=512):
    """A buffer whose free is interrupted after it has freed, and how often it was asked."""
    asked = []

    def free(ptr, size, stream):
        asked.append(ptr)
        check(driver.cuMemFreeHost(ptr))
        raise error(7)

    return Buffer.from_handle(int(check(driver.cuMemAllocHost(size))), size, deallocate=free), asked


def left(part):
    with part:
        pass


@INTERRUPTS
@pytest.mark.parametrize("ends", ["slice", "with", "slice of a slice", "array view"])
def test_an_interrupt_at_the_last_loan_comes_out(device, error, ends):
    """An author's failure at the end of the last loan is reported; what stops the program must stop it."""
    buffer, asked = interrupting(error)
    part = buffer.array_view() if ends == "array view" else buffer[0:16]
    inner = part[0:8] if ends == "slice of a slice" else None
    assert buffer.close() is CloseResult.LENT
    if inner is not None:
        assert part.close() is CloseResult.LENT
        part = inner
    with warnings_seen() as seen, pytest.raises(error) as info:
        left(part) if ends == "with" else part.close()
    assert info.value.args == (7,)
    assert (len(asked), seen) == (1, [])
    assert part.is_closed
    del buffer, part, inner, info


@INTERRUPTS
@pytest.mark.parametrize("ends", ["memoryview", "drop", "collection", "thread"])
def test_an_interrupt_where_nothing_can_be_raised_comes_soon_after(device, error, ends):
    """Reported like any failure of an author; and the program does not go on as if nothing had happened."""
    buffer, asked = interrupting(error)
    box, outcome = [buffer], []
    del buffer

    def lend():
        whole = box[0]
        box[0] = memoryview(whole) if ends == "memoryview" else whole[0:16]
        assert whole.close() is CloseResult.LENT

    if ends in ("memoryview", "drop"):
        lend()

    def end():
        try:
            # Without a GIL what another thread has made ends in a collection, where callbacks that others have put
            # there (Hypothesis does) come first, and what is raised in them goes nowhere.
            if ends == "thread":
                lend()
            if ends == "memoryview":
                box.pop().release()
            box.clear()
            gc.collect()
            for _ in range(1000):
                outcome.append(None)
        except error as caught:
            outcome.append(caught)

    with warnings_seen() as seen:
        (error_of_thread,) = race(end) if ends == "thread" else [end()]
    assert error_of_thread is None
    assert isinstance(outcome.pop(), error)
    assert len(outcome) < 1000
    assert [w.category for w in seen] == [CUDAWarning]
    assert len(asked) == 1


@pytest.mark.parametrize("freed", [True, False])
def test_an_interrupt_of_a_memoryview_keeps_the_exit_status(freed):
    """``memoryview.release()`` has no way to raise. What was freed before is not reported as kept."""
    child = run_child(EXITING, *["freed"] * freed)
    assert (child.returncode, child.stdout) == (7, "asked\n")
    assert child.stderr.count("CUDAWarning") == (0 if freed else 1)
    assert "Traceback" not in child.stderr


def test_a_driver_error_of_an_author_is_not_hopeless(device):
    """A Python ``deallocate`` that lets a ``CUDAError`` of its own through has promised that nothing was freed."""

    class Passing(Refusing):
        def deallocate(self, ptr, size, *, stream=None):
            if self.refusals:
                self.refusals -= 1
                raise CUDAError("somebody else's")
            self.asked.append(ptr)
            check(driver.cuMemFree(ptr))

    address = int(check(driver.cuMemAlloc(512)))
    buffer = Buffer.from_handle(address, 512, Passing(1))
    with pytest.raises(CUDAError, match="somebody else's"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


# --- hopeless -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", HOPELESS)
def test_what_is_hopeless_is_lost(source, kind, result, driver_watch):
    buffer = source.allocate()
    address, size = buffer.handle, buffer.size
    with driver_watch.fail(FREES[kind], result=result, sticky=True):
        with pytest.raises(CUDAError, match=result):
            buffer.close()
        with driver_watch.no_call():
            assert buffer.ownership is Ownership.RELEASED
            assert "RELEASED lost" in repr(buffer)
            assert (buffer.handle, buffer.size, buffer.is_closed) == (0, 0, True)
            assert buffer.close() is CloseResult.NOTHING
            with pytest.raises(OwnershipError, match=r"Buffer has been closed.*lost"):
                buffer.detach()
    with warnings_seen() as seen, driver_watch.no_call():
        del buffer
        gc.collect()
    assert seen == [], "the close has told already"
    free_raw(kind, address, size)


@pytest.mark.parametrize("result", ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_CONTEXT_IS_DESTROYED"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_hopeless_wait_does_not_keep_virtual_memory(device, result, how, driver_watch):
    """Nothing runs any more that could use it. The addresses and the memory are not the context's."""
    free = free_memory()
    stream = device.create_stream()
    buffer = VirtualSource(device).allocate(stream=stream)
    with warnings_seen():
        with driver_watch.fail("cuStreamQuery", result=result, sticky=True):
            if how == "close":
                _, error = attempt(buffer.close, CUDAError)
                assert error is None or result in str(error)
                assert buffer.ownership is Ownership.RELEASED
                assert buffer.close() is CloseResult.NOTHING
            del buffer
            gc.collect()
    assert free_memory() == free
    stream.close()


EXITING = """
import sys
from support import check, driver
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource
Device(0).set_current()
inner = LegacyPinnedMemoryResource().allocate(512)
def free(ptr, size, stream):
    if "freed" in sys.argv:
        inner.close()
    print("asked")
    sys.exit(7)
buffer = Buffer.from_handle(inner.handle, 512, deallocate=free)
view = memoryview(buffer)
buffer.close()
view.release()
for _ in range(1000):
    pass
print("went on")
"""


# Children, because what was reported of a context stays reported, and a broken context stays broken.
REPORTS = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from cuda.core import CUDAWarning, Device
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
devices = Device.get_all_devices()
for device in reversed(devices):
    device.set_current()
kinds, how = sys.argv[1].split(), sys.argv[2]
boxes = [SOURCES[kind](device).allocate() for device in devices for kind in kinds for _ in range(5)]
result = "CUDA_ERROR_ILLEGAL_ADDRESS"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with sim.fail("cuMemFree", result=result, sticky=True), sim.fail("cuMemFreeHost", result=result, sticky=True), \\
            sim.fail("cuMemUnmap", result=result, sticky=True):
        if how == "cycles":
            boxes = [[b] for b in boxes]
            for box in boxes:
                box.append(box)
            del box
        boxes.clear()
        gc.collect()
        drain(20)
        time.sleep(0.05)  # a report of the queue is a pending call
print([w.category.__name__ for w in seen])
print(all("0x" in str(w.message) and "lost" in str(w.message) for w in seen))
print(_counters.live().get("buffers", 0), _counters.live().get("queued", 0))
"""


@pytest.mark.sim_only
@pytest.mark.two_devices
@pytest.mark.parametrize("how", ["drop", "cycles"])
@pytest.mark.parametrize("kinds", ["device", "virtual", "device virtual"])
def test_lost_memory_is_reported_once_for_each_context(kinds, how):
    assert child_output(REPORTS, kinds, how).splitlines() == [
        "['CUDAWarning', 'CUDAWarning']",
        "True",
        "0 0",
    ]


PLACE = """
import gc, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from cuda.core import Device
from cuda.core._memory._queue import drain
first, second = Device.get_all_devices()[:2]
second.set_current()
stream = second.create_stream()
first.set_current()
boxes = [SOURCES[kind](device).allocate(stream=stream) for device, kind in (
    (first, "pinned"), (first, "device"), (first, "virtual"), (second, "device"), (second, "virtual"))]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    with sim.fail("cuMemFree", result="CUDA_ERROR_LAUNCH_FAILED", sticky=True), \\
            sim.fail("cuMemFreeHost", result="CUDA_ERROR_LAUNCH_FAILED", sticky=True), \\
            sim.fail("cuMemUnmap", result="CUDA_ERROR_LAUNCH_FAILED", sticky=True):
        while boxes:
            del boxes[0]
            gc.collect()
            drain(20)
print([str(w.message).split("everything of ")[1].split(";")[0] for w in seen])
"""


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_a_report_names_the_place_of_the_memory_and_not_of_its_stream():
    assert child_output(PLACE) == "['device 0', 'device 1']\n"


FAULT = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from support import GRANULE, attempt, check, driver
from buffer_kinds import SOURCES, raw_virtual_memory
from cuda.core import CUDAError, CUDAWarning, Device
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
stream = device.create_stream()
buffers = [SOURCES[kind](device).allocate(stream=stream) for kind in ("device", "virtual", "pinned") * 4]
closed = SOURCES["device"](device).allocate(stream=stream)
broken = raw_virtual_memory(GRANULE)
with sim.hold():
    check(driver.cuMemsetD8Async(broken, 1, 16, int(stream.handle)))
    check(driver.cuMemUnmap(broken, GRANULE))
print(driver.cuStreamSynchronize(int(stream.handle))[0].name)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        closed.close()
    except CUDAError as error:
        print("CUDA_ERROR_ILLEGAL_ADDRESS" in str(error))
    print(repr(closed).split()[2:4], closed.close().name)
    buffers.clear()
    gc.collect()
    drain(20)
    time.sleep(0.05)  # a report of the queue is a pending call
print([w.category.__name__ for w in seen])
print(_counters.live().get("buffers", 0), _counters.live().get("reservations", 0), _counters.live().get("queued", 0))
"""


@pytest.mark.sim_only
def test_a_device_that_has_faulted():
    """A real fault: every call answers with it from then on. One report, and the process goes on and ends well."""
    assert child_output(FAULT).splitlines() == [
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "True",
        "['RELEASED', 'lost'] NOTHING",
        "['CUDAWarning']",
        "0 0 0",
    ]


@pytest.mark.sim_only
def test_a_collection_reports_what_where_and_how_large(kind):
    """In a child, because what a failed collection leaves stays for good."""
    address, size, *text = child_output(WHAT_WHERE, kind, FREES[kind]).splitlines()
    assert len(text) == 1
    assert address in text[0]
    assert size in text[0]
    assert FREES[kind] in text[0]


WHAT_WHERE = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from cuda.core import CUDAWarning, Device
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
buffer = SOURCES[sys.argv[1]](device).allocate()
print(hex(buffer.handle), buffer.size, sep="\\n")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    with sim.fail(sys.argv[2], result="CUDA_ERROR_UNKNOWN", sticky=True):
        del buffer
        gc.collect()
        drain(20)
        time.sleep(0.05)  # a report of the queue is a pending call
    gc.collect()
for w in seen:
    print(w.category is CUDAWarning and w.message)
"""


@pytest.mark.parametrize("wrong", [0, 1, "no", 0.5, []])
@pytest.mark.parametrize("kind", ["virtual", "pool", "python"])
def test_a_wait_that_is_none_is_refused_before_anything_happens(device, kind, wrong):
    buffer = SOURCES[kind](device).allocate(stream=device.default_stream)
    with pytest.raises(TypeError, match=f"wait must be True, False or None, got {type(wrong).__name__}"):
        buffer.close(wait=wrong)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close(wait=True) is CloseResult.DONE
