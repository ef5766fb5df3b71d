# SPDX-License-Identifier: Apache-2.0
"""When the devices get access to what is imported from a pool at the host: behind an import, never before the first.

A driver leaves a mapping of the device behind where an import with access comes to a pool of which nothing is mapped,
and refuses the next thing at that address (recorded on an H200, design/evidence). So these tests look at the order of
the calls.
"""

import pytest

from cuda.bindings import driver
from cuda.core import CUDAError
from held_work import Gate
from shared_pools import SIZE, Shared, opened
from support import check, fill, holds

pytestmark = [pytest.mark.watched, pytest.mark.usefixtures("device")]

IMPORT, ACCESS = "cuMemPoolImportPointer", "cuMemPoolSetAccess"


@pytest.fixture
def shared(stream):
    shared = Shared("pinned", stream)
    yield shared
    shared.close()


def order_of(watch, function):
    """Return what a function returned, and which of the two calls it made, in order."""
    with watch.sim.logged() as log:
        result = function()
    return result, [call.name for call in log.calls if call.name in (IMPORT, ACCESS)]


def rights_in(shared):
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0
    pool, _keeper = shared.there._hold_pool()
    return int(check(driver.cuMemPoolGetAccess(driver.CUmemoryPool(pool), location)))


def use(buffer):
    """Write by the device, and read."""
    fill(buffer.handle, SIZE, seed=2)
    assert holds(buffer.handle, SIZE, seed=2)


def test_opening_a_pool_grants_nothing(driver_watch, shared):
    there, calls = order_of(driver_watch, lambda: opened(shared.resource))
    assert calls == []
    assert rights_in(shared) == 0
    there.close()


def test_access_is_granted_behind_the_first_import(driver_watch, shared):
    first, calls = order_of(driver_watch, shared.imported)
    assert calls == [IMPORT, ACCESS]
    assert rights_in(shared) == 3
    use(first)
    first.close()


def test_another_import_beside_an_open_one_leaves_access_alone(driver_watch, shared):
    """Work may be in flight there, for which a withdrawal is a fault."""
    other = shared.resource.allocate(SIZE, stream=shared.stream)
    first = shared.imported()
    buffer, shared.buffer = shared.buffer, other
    second, calls = order_of(driver_watch, shared.imported)
    assert calls == [IMPORT]
    for one in (first, second):
        use(one)
        one.close()
    buffer.close()


@pytest.mark.parametrize("again", ["the same", "another"])
def test_access_is_withdrawn_before_an_import_where_nothing_is_open(driver_watch, shared, again):
    first = shared.imported()
    use(first)
    first.close()
    shared.stream.sync()
    if again == "another":
        shared.buffer.close()
        shared.buffer = shared.resource.allocate(SIZE, stream=shared.stream)
    second, calls = order_of(driver_watch, shared.imported)
    assert calls == [ACCESS, IMPORT, ACCESS]
    use(second)
    second.close()


def test_access_stays_while_a_free_is_pending(driver_watch, shared):
    """What it frees is mapped, and its stream may use it."""
    first = shared.imported()
    with Gate(shared.stream) as gate:
        first.close()
        second, calls = order_of(driver_watch, lambda: shared.imported(shared.stream))
        assert calls == [IMPORT]
        gate.open()
    shared.stream.sync()
    use(second)
    second.close()


@pytest.mark.provokes_refusals  # the driver has it mapped already
def test_access_stays_for_what_foreign_code_has(driver_watch, shared):
    allocation = shared.imported().detach()
    allocation.handed_over()
    again, calls = order_of(driver_watch, shared.imported)
    assert calls == [IMPORT]
    use(again)
    again.close()


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("nth", [1, 2])
def test_a_refusal_leaves_nothing_imported(driver_watch, shared, nth):
    """The withdrawal, and the grant behind the import."""
    shared.imported().close()
    shared.stream.sync()
    live = driver_watch.live()["pool_allocation"]
    with driver_watch.fail(ACCESS, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
        with pytest.raises(CUDAError, match=ACCESS):
            shared.imported()
    assert failure.fired == 1
    assert driver_watch.live()["pool_allocation"] == live
    again = shared.imported()
    assert rights_in(shared) == 3
    use(again)
    again.close()
