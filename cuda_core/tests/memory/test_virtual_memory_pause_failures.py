# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside pause and resume fails in turn, once and for good (vmm-12, vmm-14).

What is called, how often and in which order is found by running the operation once. A pause that raises has paused
nothing; where its undo was refused, too, the buffer is paused with its memory and can go on. A resume that raises has
resumed nothing.
"""

import pytest

from cuda.bindings import driver
from cuda.core import CloseResult, CUDAError, CUDAWarning, VirtualMemoryResource
from support import (
    GRANULE,
    attempt,
    calls_in_order,
    check,
    free_memory,
    read,
    rights_of_granules,
    warnings_seen,
)

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals]

EDGE = 4096
# Without these a buffer cannot be resumed.
ESSENTIAL = {
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuStreamCreate",
    "cuMemcpyAsync",
    "cuStreamSynchronize",
}
ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
KEEP = pytest.mark.parametrize("keep", [False, True], ids=["lost", "kept"])
MANY = pytest.mark.parametrize("many", [1, 2], ids=["one buffer", "two buffers"])


@pytest.fixture(autouse=True)
def the_mode_of_the_thread(device):
    """Where giving the capture mode back is what fails, the thread keeps the one it was lent."""
    yield
    check(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))


class Prepared:
    """Buffers of several chunks with different rights, and what has to be true of them."""

    def __init__(self, device, many):
        self.resource = VirtualMemoryResource(device)
        self.buffers = []
        for _ in range(many):
            buffer = self.resource.allocate(GRANULE)
            buffer = self.resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
            self.buffers.append(self.resource.modify_allocation(buffer, 4 * GRANULE))
        self.addresses = [buffer.handle for buffer in self.buffers]
        self.write()

    def write(self):
        for seed, buffer in enumerate(self.buffers):
            for granule in (0, 2, 3):
                for begin in (granule * GRANULE, (granule + 1) * GRANULE - EDGE):
                    check(driver.cuMemsetD8(buffer.handle + begin, 16 * seed + granule + 1, EDGE))
        check(
            driver.cuCtxSynchronize()
        )  # else it is a matter of time whether a pause has to wait, and its calls are

    def assert_whole(self, bytes_too=True):
        for seed, buffer in enumerate(self.buffers):
            assert not buffer.is_paused
            assert buffer.handle == self.addresses[seed]
            assert (buffer.size, buffer.mapped_size) == (4 * GRANULE, 4 * GRANULE)
            assert rights_of_granules(buffer) == [3, 1, 3, 3]
            for granule in (0, 2, 3) if bytes_too else ():
                for begin in (granule * GRANULE, (granule + 1) * GRANULE - EDGE):
                    assert read(buffer.handle + begin, EDGE) == bytes([16 * seed + granule + 1]) * EDGE

    def pause(self, keep):
        self.resource.pause(self.buffers, keep_contents=keep)

    def resume(self):
        self.resource.resume(self.buffers)

    def close(self):
        for buffer in self.buffers:
            assert buffer.close() is CloseResult.DONE


def calls_to_fail(driver_watch, function):
    """Return the calls of a function, but for the end of the stream that it has copied on.

    A stream that the driver will not destroy is told of by itself, and goes with another one: test_refused_ends.py.
    """
    _, calls = calls_in_order(driver_watch, function)
    left_out = {"cuStreamDestroy"}
    if driver_watch.sim.real_path():
        # A wait that is made to fail is not made, and a device's copy runs on. A context is asked again behind a wait
        # only, and whether there is one is a matter of time.
        left_out |= {"cuStreamSynchronize", "cuCtxGetId"}
    return [(name, n) for name, n in calls if name not in left_out]


def failing(driver_watch, name, n, sticky, function):
    driver_watch.sim.reset()
    with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
        _, error = attempt(function, CUDAError)
    assert failure.fired, f"{name} {n} did not fail"
    assert len(driver_watch.refused()) == failure.fired, f"{name} {n}: a call was refused by surprise"
    assert error is None or ("CUDA_ERROR_OUT_OF_MEMORY" in str(error) and name in str(error)), (
        f"{name} {n}: {error}"
    )
    assert all(warning.category is CUDAWarning for warning in seen)
    return error, [str(warning.message) for warning in seen]


# --- pause --------------------------------------------------------------------------------------------------------


@MANY
@KEEP
@ONCE_AND_FOR_GOOD
def test_every_call_of_a_pause_fails(device, driver_watch, many, keep, sticky):
    prepared = Prepared(device, many)
    calls = calls_to_fail(driver_watch, lambda: prepared.pause(keep))
    assert {"cuMemRetainAllocationHandle", "cuMemUnmap", "cuMemRelease"} <= dict(calls).keys()
    assert not keep or {"cuMemAllocHost", "cuMemcpyAsync"} <= dict(calls).keys()
    prepared.close()
    for name, n in calls:
        what = f"{name} {n}"
        live, free = driver_watch.live(), free_memory()
        prepared = Prepared(device, many)
        error, told = failing(driver_watch, name, n, sticky, lambda p=prepared: p.pause(keep))
        paused = [buffer.is_paused for buffer in prepared.buffers]
        if error is None:
            assert paused == [True] * many, what
            assert (free_memory() == free) is (not told), what
        elif any(paused):
            # The undo was refused, too: the text tells of each buffer that is paused.
            assert sticky, what
            assert str(error).count("is paused, and resumes with its contents") == sum(paused), what
            for buffer in prepared.buffers:
                if buffer.is_paused:
                    prepared.resource.resume(buffer)
            prepared.assert_whole()
        else:
            # What was to keep the contents at the host may be refused, too; the next pause frees it.
            assert all("held the contents" in text for text in told), what
            prepared.assert_whole()
        if error is None:
            prepared.resume()
            prepared.assert_whole(bytes_too=keep)
            prepared.write()
        prepared.pause(True)
        prepared.resume()
        prepared.assert_whole()
        prepared.close()
        assert driver_watch.live() == live, f"{what}: something is left"
        assert free_memory() == free, what


@MANY
@KEEP
def test_every_call_of_a_pause_fails_and_the_buffer_is_closed(device, driver_watch, many, keep):
    """Whatever a failed pause has left can be closed at once, quietly."""
    first = Prepared(device, many)
    calls = calls_to_fail(driver_watch, lambda: first.pause(keep))
    first.close()
    for name, n in calls:
        live, free = driver_watch.live(), free_memory()
        prepared = Prepared(device, many)
        failing(driver_watch, name, n, True, lambda p=prepared: p.pause(keep))
        with warnings_seen() as seen:
            prepared.close()
            del prepared
        assert seen == []
        fresh = Prepared(device, 1)  # what was refused at the host is tried again with the next pause
        fresh.pause(True)
        fresh.close()
        assert driver_watch.live() == live, f"{name} {n}: something is left"
        assert free_memory() == free


def test_memory_that_is_refused_at_the_commit_is_reported_and_used_again(device, driver_watch):
    prepared = Prepared(device, 1)
    free = free_memory()
    error, told = failing(driver_watch, "cuMemRelease", 2, False, lambda: prepared.pause(False))
    assert error is None
    assert len(told) == 1
    assert "could not be given back" in told[0]
    assert free_memory() == free + 3 * GRANULE, "the second chunk, of one granule, is still there"
    _, calls = calls_in_order(driver_watch, prepared.resume)
    assert dict(calls)["cuMemCreate"] == 2
    prepared.assert_whole(bytes_too=False)
    prepared.close()


def test_an_undo_that_is_refused_keeps_the_bytes(device, driver_watch):
    """The second unmap is refused, and the first chunk cannot be mapped again: it is held, and nothing is lost."""
    prepared = Prepared(device, 2)
    with driver_watch.fail("cuMemUnmap", nth=2), driver_watch.fail("cuMemMap", sticky=True):
        with pytest.raises(CUDAError, match=r"cuMemUnmap.*is paused, and resumes with its contents"):
            prepared.pause(False)
        paused = [buffer for buffer in prepared.buffers if buffer.is_paused]
        assert paused
        with pytest.raises(CUDAError, match="cuMemMap"):
            prepared.resource.resume(paused)
    prepared.resource.resume(paused)
    prepared.assert_whole()
    prepared.close()


# --- resume -------------------------------------------------------------------------------------------------------


@MANY
@KEEP
@ONCE_AND_FOR_GOOD
def test_every_call_of_a_resume_fails(device, driver_watch, many, keep, sticky):
    prepared = Prepared(device, many)
    prepared.pause(keep)
    calls = calls_to_fail(driver_watch, prepared.resume)
    assert {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"} <= dict(calls).keys()
    prepared.close()
    for name, n in calls:
        what = f"{name} {n}"
        live, free = driver_watch.live(), free_memory()
        prepared = Prepared(device, many)
        prepared.pause(keep)
        error, told = failing(driver_watch, name, n, sticky, prepared.resume)
        if error is None:
            assert name not in ESSENTIAL, what
            prepared.assert_whole(bytes_too=keep)
        else:
            assert all(buffer.is_paused for buffer in prepared.buffers), what
            assert [buffer.handle for buffer in prepared.buffers] == prepared.addresses
            assert told == [], what
            prepared.resume()
            prepared.assert_whole(bytes_too=keep)
        prepared.write()
        prepared.pause(True)
        prepared.resume()
        prepared.assert_whole()
        prepared.close()
        assert driver_watch.live() == live, f"{what}: something is left"
        assert free_memory() == free, what


@MANY
@KEEP
def test_every_call_of_a_resume_fails_and_the_buffer_is_closed(device, driver_watch, many, keep):
    first = Prepared(device, many)
    first.pause(keep)
    calls = calls_to_fail(driver_watch, first.resume)
    first.close()
    for name, n in calls:
        live, free = driver_watch.live(), free_memory()
        prepared = Prepared(device, many)
        prepared.pause(keep)
        failing(driver_watch, name, n, True, prepared.resume)
        with warnings_seen() as seen:
            prepared.close()
            del prepared
        assert seen == []
        fresh = Prepared(device, 1)
        fresh.pause(True)
        fresh.close()
        assert driver_watch.live() == live, f"{name} {n}: something is left"
        assert free_memory() == free


def test_vmm_12_an_undo_that_is_refused_is_used_by_the_next_resume(device, driver_watch):
    """The access call fails, and so do the unmaps of the undo: the chunks stay, and the next resume takes them."""
    prepared = Prepared(device, 1)
    prepared.pause(True)
    with driver_watch.fail("cuMemSetAccess"), driver_watch.fail("cuMemUnmap", sticky=True):
        with pytest.raises(CUDAError, match="cuMemSetAccess"):
            prepared.resume()
    assert prepared.buffers[0].is_paused
    _, calls = calls_in_order(driver_watch, prepared.resume)
    assert "cuMemCreate" not in dict(calls)
    prepared.assert_whole()
    prepared.close()


@pytest.mark.parametrize("refused", ["cuMemAddressFree", "cuMemUnmap", "cuMemRelease"])
def test_a_close_of_a_paused_buffer_that_fails_can_be_repeated_or_undone(device, driver_watch, refused):
    for go_on in ("close", "resume"):
        prepared = Prepared(device, 1)
        (buffer,) = prepared.buffers
        with driver_watch.fail("cuMemRelease", nth=2), warnings_seen():
            prepared.pause(True)  # one chunk stays held, so that the close has a reference to return
        if refused == "cuMemUnmap":
            with driver_watch.fail("cuMemSetAccess"), driver_watch.fail("cuMemUnmap", nth=2, sticky=True):
                _, error = attempt(prepared.resume, CUDAError)
            assert error is not None
        with driver_watch.fail(refused):
            with pytest.raises(CUDAError, match=refused):
                buffer.close()
        assert buffer.is_paused
        if go_on == "resume" and refused == "cuMemAddressFree" and buffer.capacity:
            _, error = attempt(prepared.resume)
            if error is None:
                prepared.assert_whole()
        assert buffer.close() is CloseResult.DONE


def test_a_device_without_room_refuses_a_resume_until_there_is(device, driver_watch):
    """Another job has taken what a paused buffer gave back: the resume says so, and works when that is gone."""
    prepared = Prepared(device, 1)
    prepared.pause(True)
    with driver_watch.fail("cuMemCreate", nth=2, sticky=True):
        with pytest.raises(CUDAError, match="OUT_OF_MEMORY"):
            prepared.resume()
    prepared.resume()
    prepared.assert_whole()
    prepared.close()


def test_the_wait_of_a_pause_fails(device, driver_watch):
    prepared = Prepared(device, 2)
    with driver_watch.fail("cuStreamQuery"), pytest.raises(CUDAError, match="cuStreamQuery"):
        prepared.pause(False)
    prepared.assert_whole()
    prepared.close()
