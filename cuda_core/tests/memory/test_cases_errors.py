# SPDX-License-Identifier: Apache-2.0
"""Failing releases reported in the field, a test each, named by the id of its case."""

import gc
import threading
import warnings

import pytest

from buffer_kinds import BUILT_IN, FREES, SOURCES, free_raw
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, CUDAWarning, Ownership
from python_resources import Refusing
from support import (
    GRANULE,
    blocked,
    check,
    child_output,
    fill,
    free_memory,
    holds,
    still_allocated,
    warnings_seen,
)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("after", ["close again", "detach and adopt"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_err_01_an_error_while_closing_is_raised(device, kind, after, driver_watch):
    buffer = SOURCES[kind](device).allocate()
    address, size = buffer.handle, buffer.size
    fill(address, size, seed=1)
    with driver_watch.fail(FREES[kind]) as failure, pytest.raises(CUDAError, match=FREES[kind]):
        buffer.close()
    assert failure.fired == 1
    assert buffer.ownership is Ownership.OWNED
    assert still_allocated(address)
    assert holds(address, size, seed=1)
    if after == "detach and adopt":
        buffer = Buffer.adopt(buffer.detach())
        assert buffer.handle == address
        assert holds(address, size, seed=1)
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


def test_err_01_an_error_of_an_author_is_raised(device):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with pytest.raises(LookupError, match="not now"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert not still_allocated(address)


ERR_02 = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from cuda.core import Device
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
source = SOURCES[sys.argv[1]](device)
buffer = source.allocate()
address = buffer.handle
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    with sim.fail(sys.argv[2]) as failure:
        if sys.argv[3] == "cycle":
            cycle = [buffer]
            cycle.append(cycle)
            del cycle
        del buffer
        gc.collect()
        drain(20)
        time.sleep(0.05)  # a report of the queue is a pending call
    sim.reset()
    gc.collect()
    print(failure.fired, dict(sim.calls()))
    for _ in range(3):
        source.allocate().close()
        gc.collect()
    print(sim.calls().get(sys.argv[2]), list(sim.refused()))
print([w.category.__name__ for w in seen], hex(address) in str(seen[0].message))
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("how", ["drop", "cycle"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_err_02_a_free_that_fails_in_a_collection_is_a_warning_and_no_second_attempt(kind, how):
    """In a child, because the memory stays allocated for good."""
    assert child_output(ERR_02, kind, FREES[kind], how).splitlines() == [
        "1 {}",
        "3 []",
        "['CUDAWarning'] True",
    ]


def test_err_02_an_author_is_not_asked_a_second_time(device):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
        resource.allocate(256).close()
        gc.collect()
    assert [entry for entry in resource.asked if entry == "refused" or entry[0] == address] == ["refused"]
    assert [w.category for w in seen] == [CUDAWarning]
    assert hex(address) in str(seen[0].message)
    resource.give_back(address)


def test_err_03_every_failing_allocation_is_reported(device):
    """Under Python's default filter, which shows equal warnings from one place once."""
    address = int(check(driver.cuMemAlloc(512)))
    resource = Refusing(refusals=20)
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(20):
            buffer = Buffer.from_handle(address, 512, resource)
            del buffer
            gc.collect()
    assert len(seen) == 20
    assert {w.category for w in seen} == {CUDAWarning}
    assert resource.asked == ["refused"] * 20
    free_raw("python", address, 512)


def test_err_04_a_report_runs_user_code_under_no_lock(resource):
    shown = []

    def show(message, category, *rest):
        shown.append(category)
        buffer = resource.allocate(GRANULE)
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE)
        buffer.close()
        refusing.allocate(256).close()
        other = threading.Thread(target=lambda: resource.allocate(GRANULE).close())
        other.start()
        other.join(20)
        assert not other.is_alive(), "a lock is held while a report is shown"
        gc.collect()

    refusing = Refusing(refusals=1)
    buffer = refusing.allocate(512)
    address = buffer.handle
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        del buffer
        gc.collect()
    assert shown == [CUDAWarning]
    refusing.give_back(address)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_err_05_a_release_of_several_parts_goes_on_where_it_stopped(resource, driver_watch):
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    for granules in range(2, 6):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
    driver_watch.sim.reset()
    with driver_watch.fail("cuMemUnmap", nth=3), pytest.raises(CUDAError, match="cuMemUnmap"):
        buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE
    assert free_memory() == free
    assert driver_watch.refused() == [("cuMemUnmap", "CUDA_ERROR_OUT_OF_MEMORY")]
    assert driver_watch.calls()["cuMemUnmap"] == 6  # five parts, one of them twice


def test_err_06_a_failure_belongs_to_the_buffer_that_was_closed(device):
    refusing = Refusing(refusals=1)
    buffer = refusing.allocate(512)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert len(seen) == 1
    with warnings_seen() as seen:
        for kind in SOURCES:
            source = SOURCES[kind](device)
            buffer = source.allocate()
            assert buffer.close() is CloseResult.DONE
            assert source.allocate().close(wait=False) is CloseResult.DONE
            del buffer
        stream = device.create_stream()
        stream.sync()
        stream.close()
        device.sync()
        refusing.allocate(256).close()
        gc.collect()
    assert seen == []
    refusing.give_back(address)


ERR_06 = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import SOURCES
from cuda.core import Device
from cuda.core._memory._queue import drain
device = Device(0)
device.set_current()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    buffer = SOURCES[sys.argv[1]](device).allocate()
    with sim.fail(sys.argv[2]):
        del buffer
        gc.collect()
        drain(20)
        time.sleep(0.05)  # a report of the queue is a pending call
print(len(seen))
warnings.simplefilter("error")
for kind in SOURCES:
    source = SOURCES[kind](device)
    print(source.allocate().close().name, source.allocate().close(wait=False).name)
device.sync()
gc.collect()
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", BUILT_IN)
def test_err_06_a_failure_in_the_driver_belongs_to_the_buffer_that_was_closed(kind):
    assert child_output(ERR_06, kind, FREES[kind]).splitlines() == ["1", *["DONE DONE"] * len(SOURCES)]


ERR_07 = """
import gc, sys, time, warnings
import cuda_driver_sim as sim
sim.activate()
from support import free_memory
from buffer_kinds import SOURCES
from cuda.core import CUDAError, Device
device = Device(0)
device.set_current()
source = SOURCES[sys.argv[1]](device)
source.allocate().close()
live, free = sim.live(), free_memory()
buffer = source.allocate()
size = buffer.size
with sim.fail(sys.argv[2], sticky=True):
    for _ in range(3):
        try:
            buffer.close()
        except CUDAError:
            print("refused", buffer.ownership.name)
alone = sim.live()
taken = free - free_memory()
others = [source.allocate() for _ in range(100)]
for other in others:
    other.close()
print(sim.live() == alone, free - free_memory() == taken)
print(buffer.close().name, sim.live() == live, free_memory() == free)
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", BUILT_IN)
def test_err_07_a_buffer_that_cannot_be_freed_holds_its_own_memory_only(kind):
    assert child_output(ERR_07, kind, FREES[kind]).splitlines() == [
        *["refused OWNED"] * 3,
        "True True",
        "DONE True True",
    ]


def test_err_07_an_author_who_never_frees_one_buffer_holds_no_other(device):
    resource = Refusing(refusals=5)
    stuck = resource.allocate(512)
    for _ in range(5):
        with pytest.raises(LookupError):
            stuck.close()
    for buffer in [resource.allocate(512) for _ in range(100)]:
        assert buffer.close() is CloseResult.DONE
    assert list(resource.held) == [stuck.handle]
    assert stuck.close() is CloseResult.DONE
