# SPDX-License-Identifier: Apache-2.0
"""Releases that fail: those that can go on, those that nobody can judge, and those that are hopeless."""

import gc

import pytest

from buffer_kinds import BUILT_IN, SOURCES, VirtualSource, free_raw
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
    still_allocated,
    warnings_seen,
)

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals]

FREES = {"virtual": "cuMemUnmap", "pinned": "cuMemFreeHost", "device": "cuMemFree"}
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


def test_a_wait_that_fails_frees_nothing(device, kind, driver_watch):
    stream = device.create_stream()
    buffer = SOURCES[kind](device).allocate(stream=stream)
    address = buffer.handle
    with driver_watch.fail("cuStreamSynchronize", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError, match="cuStreamSynchronize"):
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
        with driver_watch.fail("cuStreamSynchronize", result=result, sticky=True):
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
