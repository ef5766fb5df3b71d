# SPDX-License-Identifier: Apache-2.0
"""Every driver call inside allocate, grow and close fails in turn, once and for good.

What is called, how often and in which order is found by running the operation once, so the tests follow the
implementation. The commit point of a grow is its last map or access: a failure up to it leaves the input as it was,
a failure after it leaves a new buffer that owns everything.
"""

import contextlib
import gc

import pytest

from cuda.core import (
    CloseResult,
    CUDAError,
    CUDAWarning,
    Ownership,
    TransferredTo,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    child_output,
    fill,
    fill_granules,
    granules_hold,
    holds,
    place,
    rights_of_granules,
    warnings_seen,
)

pytestmark = [pytest.mark.watched, pytest.mark.provokes_refusals]

# Without these there is no new range. Other calls before the commit point (giving back addresses that were not
# asked for, dropping a reference) can fail without spoiling the grow; whether it then raises is the layer's choice.
ESSENTIAL = {
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRetainAllocationHandle",
    "cuMemAllocationGranularity",
}
UNDOING = ("cuMemUnmap", "cuMemRelease", "cuMemAddressFree")
ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])


class Prepared:
    """A buffer of several chunks and rights, and what has to be true of it while nothing has changed."""

    def __init__(self, device, stream=None, **options):
        self.options = options
        first, self.resource = place(device, GRANULE, stretch=12, **options)
        if stream is not None:
            first.set_deallocation_stream(stream)
        second = self.resource.modify_allocation(first, 2 * GRANULE, config={"self_access": "r"})
        self.buffer = self.resource.modify_allocation(second, 3 * GRANULE)
        self.address = self.buffer.handle
        for granule in (0, 2):
            fill_one_granule(self.buffer, granule)
        self.block = contextlib.ExitStack()

    def assert_unchanged(self):
        buffer = self.buffer
        assert (buffer.ownership, buffer.transferred_to) == (Ownership.OWNED, None)
        assert (buffer.handle, buffer.size, buffer.mapped_size) == (self.address, 3 * GRANULE, 3 * GRANULE)
        assert rights_of_granules(buffer) == [3, 1, 3]
        assert_bytes(buffer)

    def assert_given_to(self, new):
        assert (self.buffer.ownership, self.buffer.transferred_to) == (
            Ownership.TRANSFERRED,
            TransferredTo.GROWN,
        )
        assert (self.buffer.handle, self.buffer.size) == (0, 0)
        assert (new.ownership, new.size) == (Ownership.OWNED, 5 * GRANULE)
        assert rights_of_granules(new) == [3, 1, 3, 3, 3]
        assert_bytes(new)
        fill_granules(new, first=3)
        assert_bytes(new)

    def grow(self):
        return self.resource.modify_allocation(self.buffer, 5 * GRANULE)


def fill_one_granule(buffer, granule):
    fill(buffer.handle + granule * GRANULE, GRANULE, seed=granule)


def assert_bytes(buffer):
    for granule in (0, 2):
        assert holds(buffer.handle + granule * GRANULE, GRANULE, seed=granule)


def in_room(device, stream=None):
    return Prepared(device, stream, reserve_size=8 * GRANULE)


def adjacent(device, stream=None):
    return Prepared(device, stream)


def moving(device, stream=None):
    prepared = Prepared(device, stream)
    prepared.block.enter_context(blocked(prepared.buffer))
    return prepared


def moving_from_room(device, stream=None):
    prepared = Prepared(device, stream, reserve_size=4 * GRANULE)
    prepared.block.enter_context(blocked(prepared.buffer))
    return prepared


GROWS = {
    "in room": in_room,
    "adjacent": adjacent,
    "moving": moving,
    "moving from room": moving_from_room,
}


def calls_in_order(sim, function):
    """Return what `function` returns, and its driver calls as (name, n-th of this name)."""
    with sim.logged() as log:
        result = function()
    counts, numbered = {}, []
    for entry in log.calls:
        counts[entry.name] = counts.get(entry.name, 0) + 1
        numbered.append((entry.name, counts[entry.name]))
    return result, numbered


def return_everything(prepared_resource, buffer):
    """Close the buffer, and give the resource the chance to return what an undo could not."""
    assert buffer.close() is CloseResult.DONE
    prepared_resource.allocate(GRANULE).close()


def names(error, result, function):
    return result in str(error) and function in str(error)


# --- allocate ----------------------------------------------------------------------------------------------------

ALLOCATIONS = {"plain": {}, "reserved ahead": {"reserve_size": 8 * GRANULE}}


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("options", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_every_call_of_allocate_fails(device, driver_watch, options, sticky):
    def fresh():
        return VirtualMemoryResource(device, VirtualMemoryResourceOptions(**options))

    resource = fresh()
    buffer, calls = calls_in_order(driver_watch.sim, lambda: resource.allocate(3 * GRANULE))
    buffer.close()
    assert {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess"} <= dict(
        calls
    ).keys()
    for name, n in calls:
        live = driver_watch.live()
        resource = fresh()
        driver_watch.sim.reset()
        with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            buffer, error = attempt(lambda mr=resource: mr.allocate(3 * GRANULE), CUDAError)
        assert error is None or names(error, "CUDA_ERROR_OUT_OF_MEMORY", name), f"{name} {n}: {error}"
        assert failure.fired, f"{name} {n} did not fail"
        assert len(driver_watch.refused()) == failure.fired, f"{name} {n}: a call was refused by surprise"
        if name != "cuMemRelease":
            assert buffer is None, f"{name} {n} failed and nobody was told"
            assert driver_watch.live() == live, f"{name} {n}"
            assert seen == []
        if buffer is not None:
            assert buffer.ownership is Ownership.OWNED
            assert buffer.size == 3 * GRANULE
            fill_granules(buffer)
            assert granules_hold(buffer, 3)
            assert len(seen) <= 1
            assert buffer.close() is CloseResult.DONE
        again = resource.allocate(GRANULE)
        assert granule_works(again)
        again.close()
        assert driver_watch.live() == live, f"{name} {n}: something is left"


def granule_works(buffer):
    fill_granules(buffer)
    return granules_hold(buffer, buffer.size // GRANULE)


@pytest.mark.parametrize("undo", UNDOING)
def test_what_an_allocate_could_not_undo_stays_with_the_resource(device, driver_watch, undo):
    live = driver_watch.live()
    resource = VirtualMemoryResource(device)
    with driver_watch.fail("cuMemSetAccess"), driver_watch.fail(undo, sticky=True), warnings_seen() as seen:
        with pytest.raises(CUDAError, match=r"cuMemSetAccess|cuMemRelease"):
            resource.allocate(GRANULE)
    assert len(seen) <= 1
    resource.allocate(GRANULE).close()
    assert driver_watch.live() == live


@pytest.mark.parametrize("undo", ["cuMemUnmap", "cuMemAddressFree"])
def test_what_an_allocate_could_not_undo_goes_with_the_resource(device, driver_watch, undo):
    live = driver_watch.live()
    resource = VirtualMemoryResource(device)
    with driver_watch.fail("cuMemSetAccess"), driver_watch.fail(undo, sticky=True), warnings_seen() as seen:
        with pytest.raises(CUDAError, match="cuMemSetAccess"):
            resource.allocate(GRANULE)
    assert len(seen) <= 1
    assert driver_watch.live() != live
    del resource
    gc.collect()
    assert driver_watch.live() == live


# --- grow --------------------------------------------------------------------------------------------------------


def clean_run(device, sim, way, stream=None):
    """Run one grow without a failure; return its calls, and the index of the commit point among them."""
    prepared = GROWS[way](device, stream)
    with prepared.block:
        new, calls = calls_in_order(sim, prepared.grow)
        prepared.assert_given_to(new)
    return_everything(prepared.resource, new)
    commit = max(index for index, (name, _) in enumerate(calls) if name in ("cuMemMap", "cuMemSetAccess"))
    return calls, commit


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
@pytest.mark.parametrize("way", GROWS)
def test_every_call_of_a_grow_fails(device, driver_watch, way, with_stream, sticky):
    stream = device.create_stream() if with_stream else None
    sim = driver_watch.sim
    calls, commit = clean_run(device, sim, way, stream)
    reserves = [entry for entry in calls if entry[0] == "cuMemAddressReserve"]
    for index, (name, n) in enumerate(calls):
        what = f"{name} {n} of {calls}"
        live = driver_watch.live()
        prepared = GROWS[way](device, stream)
        with prepared.block:
            sim.reset()
            with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
                new, error = attempt(prepared.grow, CUDAError)
            assert error is None or names(error, "CUDA_ERROR_OUT_OF_MEMORY", name), f"{what}: {error}"
            assert failure.fired, f"{what} did not fail"
            assert len(driver_watch.refused()) == failure.fired, f"{what}: {driver_watch.refused()}"
            if index > commit:
                assert new is not None, f"{what}: after the commit point"
                assert all(warning.category is CUDAWarning for warning in seen), what
                assert len(seen) == 1 if name in UNDOING else len(seen) <= 1, f"{what}: {seen}"
            elif name in ESSENTIAL or (way.startswith("moving") and (name, n) == reserves[-1]):
                assert new is None, f"{what} failed and nobody was told"
            if new is None:
                assert seen == [], f"{what}: {seen}"
                prepared.assert_unchanged()
                survivor = prepared.buffer
            else:
                prepared.assert_given_to(new)
                survivor = new
            place_of_survivor = survivor.handle
            if new is None and not sticky:
                # Nothing is broken by the failure: the same grow works now.
                survivor = prepared.grow()
                prepared.assert_given_to(survivor)
            size = survivor.size
            return_everything(prepared.resource, survivor)
            assert address_free(prepared.address, 3 * GRANULE), what
        assert address_free(place_of_survivor, size if new is not None else 3 * GRANULE), what
        assert driver_watch.live() == live, f"{what}: something is left"
    if stream is not None:
        stream.close()


@pytest.mark.parametrize("undo", UNDOING)
@pytest.mark.parametrize("way", GROWS)
def test_an_undo_that_fails_too_does_not_hide_the_first_error(device, driver_watch, way, undo):
    calls, commit = clean_run(device, driver_watch.sim, way)
    for name, n in calls[: commit + 1]:
        if name not in ESSENTIAL:
            continue
        what = f"{name} {n}, and {undo} for good"
        live = driver_watch.live()
        prepared = GROWS[way](device)
        with prepared.block:
            with driver_watch.fail(name, nth=n), driver_watch.fail(undo, sticky=True):
                with pytest.raises(CUDAError) as info:
                    prepared.grow()
            assert names(info.value, "CUDA_ERROR_OUT_OF_MEMORY", name) or undo in str(info.value), what
            if undo != "cuMemRelease" and not (undo == "cuMemAddressFree" and way.startswith("moving")):
                # Those two may already have failed on the way, and are then the first error.
                assert names(info.value, "CUDA_ERROR_OUT_OF_MEMORY", name), f"{what}: {info.value}"
            prepared.assert_unchanged()
            return_everything(prepared.resource, prepared.buffer)
        assert driver_watch.live() == live, f"{what}: something is left"


@ONCE_AND_FOR_GOOD
def test_a_grow_of_a_buffer_that_a_grow_left_behind_owns_it_all(device, driver_watch, sticky):
    """What a first grow could not return travels through a second and third one to the last close."""
    live = driver_watch.live()
    prepared = moving(device)
    with prepared.block:
        with pytest.warns(CUDAWarning, match="cuMemUnmap"), driver_watch.fail("cuMemUnmap", sticky=sticky):
            buffer = prepared.grow()
    for granules in (6, 9):
        with blocked(buffer), warnings_seen():
            buffer = prepared.resource.modify_allocation(buffer, granules * GRANULE)
    fill_granules(buffer, first=3)
    assert_bytes(buffer)
    assert buffer.close() is CloseResult.DONE
    assert address_free(prepared.address, 3 * GRANULE)
    assert driver_watch.live() == live


# --- close -------------------------------------------------------------------------------------------------------


def several_reservations(device, stream):
    return adjacent(device, stream)


def moved(device, stream):
    prepared = moving(device, stream)
    with prepared.block:
        prepared.buffer = prepared.grow()
    prepared.address = prepared.buffer.handle
    return prepared


CLOSES = {"room": in_room, "several reservations": several_reservations, "moved": moved}


@ONCE_AND_FOR_GOOD
@pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
@pytest.mark.parametrize("kind", CLOSES)
def test_every_call_of_close_fails(device, driver_watch, kind, with_stream, sticky):
    stream = device.create_stream() if with_stream else None
    sim = driver_watch.sim
    prepared = CLOSES[kind](device, stream)
    result, calls = calls_in_order(sim, prepared.buffer.close)
    assert result is CloseResult.DONE
    undoing = [entry for entry in calls if entry[0] in UNDOING]
    assert {"cuMemUnmap", "cuMemAddressFree"} <= dict(undoing).keys()
    for name, n in calls:
        what = f"{name} {n} of {calls}"
        live = driver_watch.live()
        prepared = CLOSES[kind](device, stream)
        buffer, address, size = prepared.buffer, prepared.address, prepared.buffer.size
        sim.reset()
        with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            closed, error = attempt(buffer.close, CUDAError)
            assert error is None or names(error, "CUDA_ERROR_OUT_OF_MEMORY", name), f"{what}: {error}"
            if closed is None and sticky:
                with pytest.raises(CUDAError, match=name):
                    buffer.close()
        assert failure.fired, what
        assert seen == [], f"{what}: {seen}"
        if name in UNDOING:
            assert closed is None, f"{what} failed and nobody was told"
        if closed is None:
            assert (buffer.ownership, buffer.is_closed) == (Ownership.OWNED, False), what
            assert (buffer.handle, buffer.size) == (address, size), what
            assert buffer.close() is CloseResult.DONE, what
        refused = driver_watch.refused()
        assert refused == [(name, "CUDA_ERROR_OUT_OF_MEMORY")] * failure.fired, f"{what}: {refused}"
        done = driver_watch.calls()
        for undo in UNDOING:
            wanted = sum(entry[0] == undo for entry in undoing)
            wanted += failure.fired if name == undo else 0
            assert done.get(undo, 0) == wanted, f"{what}: {undo} was repeated or left out"
        assert buffer.ownership is Ownership.RELEASED
        assert buffer.close() is CloseResult.NOTHING
        assert address_free(address, size), what
        assert driver_watch.live() == live, f"{what}: something is left"
    if stream is not None:
        stream.close()


def test_a_buffer_that_is_half_returned_is_never_grown(device, driver_watch):
    """Its bytes have holes: a grow must not hand it out as if it were whole."""
    prepared = in_room(device)
    with driver_watch.fail("cuMemUnmap", nth=2):
        with pytest.raises(CUDAError, match="cuMemUnmap"):
            prepared.buffer.close()
    refused = len(driver_watch.refused())
    with pytest.raises((CUDAError, RuntimeError)):
        prepared.grow()
    assert len(driver_watch.refused()) == refused, "it is refused before the driver is asked"
    assert prepared.buffer.ownership is Ownership.OWNED
    assert prepared.buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("block", [False, True], ids=["in place", "moving"])
def test_a_buffer_grown_after_a_failed_close_is_collected_like_any_other(resource, driver_watch, block):
    """The close failed before anything was returned, so the buffer was whole, and the result is a buffer of its own."""
    live = driver_watch.live()
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    with driver_watch.fail("cuMemUnmap"):
        with pytest.raises(CUDAError, match="cuMemUnmap"):
            buffer.close()
    with blocked(buffer) if block else contextlib.nullcontext():
        new = resource.modify_allocation(buffer, 2 * GRANULE)
    assert granules_hold(new, 1)
    with warnings_seen() as seen:
        del new
    assert seen == []
    assert driver_watch.live() == live


def test_one_buffer_that_cannot_be_freed_holds_only_its_own_memory(resource, driver_watch):
    stuck = resource.allocate(GRANULE)
    live = driver_watch.live()
    with driver_watch.fail("cuMemAddressFree", sticky=False):
        with pytest.raises(CUDAError, match="cuMemAddressFree"):
            stuck.close()
    held = driver_watch.live()
    for _ in range(100):
        resource.allocate(GRANULE).close()
    assert driver_watch.live() == held
    assert held["address_reservation"] == live["address_reservation"]
    assert stuck.close() is CloseResult.DONE


# --- leaving `with`, and the collector -----------------------------------------------------------------------------


def test_leaving_with_raises_what_the_close_raised(resource, driver_watch):
    with pytest.raises(CUDAError, match="cuMemUnmap"):
        with driver_watch.fail("cuMemUnmap"):
            with resource.allocate(GRANULE) as buffer:
                pass
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


def test_leaving_with_does_not_replace_an_exception_that_passes(resource, driver_watch):
    with pytest.raises(KeyError, match="first") as info:
        with driver_watch.fail("cuMemUnmap"):
            with resource.allocate(GRANULE) as buffer:
                raise KeyError("first")
    if hasattr(info.value, "add_note"):  # Python 3.11 and later
        assert any("cuMemUnmap" in note for note in info.value.__notes__)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.close() is CloseResult.DONE


# In a child, because what a failed collection leaves stays for good.
COLLECTED = """
import gc, sys, warnings
import cuda_driver_sim as sim
sim.activate()
from cuda.core import CUDAError, CUDAWarning, Device, VirtualMemoryResource
device = Device(0)
device.set_current()
resource = VirtualMemoryResource(device)
name, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    for _ in range(count):
        buffer = resource.allocate(2 << 20)
        if how == "cycle":
            cycle = [buffer]
            cycle.append(cycle)
            del cycle
        with sim.fail(name, sticky=True):
            if how == "close first":
                try:
                    buffer.close()
                except CUDAError:
                    pass
            del buffer
            gc.collect()
print(len(seen), {w.category for w in seen} == {CUDAWarning}, len({str(w.message) for w in seen}))
print(sim.live().get("address_reservation", 0))
sim.reset()
gc.collect()
print(sim.calls())
resource.allocate(2 << 20).close()
device.sync()
print(list(sim.refused()))
"""


@pytest.mark.parametrize("how", ["drop", "cycle", "close first"])
@pytest.mark.parametrize("name", ["cuMemUnmap", "cuMemAddressFree"])
def test_a_collection_that_cannot_free_reports_once_for_each_allocation(name, how):
    output = child_output(COLLECTED, name, 3, how).splitlines()
    assert output == ["3 True 3", "3", "{}", "[]"]
