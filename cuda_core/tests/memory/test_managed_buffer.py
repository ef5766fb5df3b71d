# SPDX-License-Identifier: Apache-2.0
"""ManagedBuffer and the operations on managed memory: advice, prefetching, discarding, one buffer and many."""

import sys

import pytest

import cuda.core
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    Host,
    ManagedBuffer,
    MemoryResource,
    Ownership,
    OwnershipError,
)
from cuda.core.utils import discard_batch, discard_prefetch_batch, prefetch_batch
from managed_memory import RANGE, Managed, accessors, ask, location, prefetched
from python_resources import Plain
from support import check, in_context, race, simulated

SIZE = 64 << 10


@pytest.fixture
def managed():
    return Managed()


@pytest.fixture
def buffer(device, managed):
    buffer = managed.allocate(SIZE)
    yield buffer
    buffer.close()
    assert managed.held == {}


# --- what it is --------------------------------------------------------------------------------------------------


def test_it_is_a_buffer(device, managed):
    buffer = managed.allocate(SIZE)
    assert type(buffer) is ManagedBuffer
    assert isinstance(buffer, Buffer)
    assert buffer.is_managed
    assert buffer.is_host_accessible
    assert buffer.ownership is Ownership.OWNED
    assert repr(buffer).startswith("<ManagedBuffer #")
    address = buffer.handle
    memoryview(buffer)[:3] = b"abc"
    buffer.close()
    assert managed.asked == [(address, SIZE)]


@pytest.mark.parametrize("how", ["close", "with", "drop", "cycle"])
def test_its_memory_goes_back_once_however_it_ends(device, managed, how):
    from buffer_kinds import end

    end([managed.allocate(SIZE)], how)
    assert len(managed.asked) == 1
    assert managed.held == {}


def test_from_handle_has_all_states_of_a_buffer(device, managed):
    memory = managed.allocate(SIZE)
    with ManagedBuffer.from_handle(memory.handle, SIZE, owner=memory) as view:
        assert type(view) is ManagedBuffer
        assert view.ownership is Ownership.BORROWED
        assert view.owner is memory
        view.read_mostly = True
        assert memory.read_mostly is True
    with ManagedBuffer.from_handle(memory.handle, SIZE) as view:
        assert view.ownership is Ownership.BORROWED
    memory.close()

    freed = []
    address = int(check(driver.cuMemAllocManaged(SIZE, 1)))
    owned = ManagedBuffer.from_handle(
        address,
        SIZE,
        deallocate=lambda ptr, size, stream: (freed.append(ptr), check(driver.cuMemFree(ptr))),
    )
    assert owned.ownership is Ownership.OWNED
    owned.preferred_location = device
    owned.close()
    assert freed == [address]


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        ((0, -1), {}, ValueError),
        (("0", 1), {}, TypeError),
        ((0, 1, "mr"), {}, TypeError),
        ((0, 1), {"stream": 7}, TypeError),
        ((0, 1), {"deallocate": 7}, TypeError),
        ((0, 1, MemoryResource(), object()), {}, ValueError),
    ],
)
def test_from_handle_refuses_what_a_buffer_refuses(device, driver_watch, arguments, keywords, error):
    with driver_watch.no_call():
        with pytest.raises(error):
            ManagedBuffer.from_handle(*arguments, **keywords)


def test_a_subclass_is_made_by_its_own_from_handle(device, managed):
    class Mine(ManagedBuffer):
        pass

    memory = managed.allocate(SIZE)
    with Mine.from_handle(memory.handle, SIZE, owner=memory) as mine:
        assert type(mine) is Mine
        mine.note = "kept"
        mine.read_mostly = True
        assert mine.read_mostly
    memory.close()


def test_it_cannot_be_made_directly():
    with pytest.raises(RuntimeError, match="cannot be made directly"):
        ManagedBuffer()
    assert cuda.core.ManagedBuffer is ManagedBuffer


# --- advice ------------------------------------------------------------------------------------------------------


def test_read_mostly_is_the_drivers_own_state(buffer):
    assert buffer.read_mostly is False
    for value, expected in ((True, True), (False, False), (1, True), ("", False), ("yes", True)):
        buffer.read_mostly = value
        assert buffer.read_mostly is expected
        assert ask(buffer, RANGE.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == expected
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    check(driver.cuMemAdvise(buffer.handle, SIZE, driver.CUmem_advise.CU_MEM_ADVISE_UNSET_READ_MOSTLY, place))
    assert buffer.read_mostly is False


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("device", "DEVICE"),
        (Host(), "HOST"),
        (Host(0), "HOST_NUMA"),
        pytest.param(Host.numa_current(), "HOST_NUMA_CURRENT", marks=pytest.mark.sim_only),
    ],
    ids=str,
)
def test_the_preferred_location_comes_back_as_it_was_given(device, buffer, place, kind):
    place = device if place == "device" else place
    assert buffer.preferred_location is None
    buffer.preferred_location = place
    kept = location(buffer, "PREFERRED")[0]
    if kind == "HOST_NUMA" and not simulated() and kept == "INVALID":
        # A machine with one node takes the advice and does nothing with it (seen on an H200).
        assert buffer.preferred_location is None
        return
    assert kept == kind
    assert buffer.preferred_location == place
    assert type(buffer.preferred_location) is type(place)
    buffer.preferred_location = None
    assert buffer.preferred_location is None


def test_accessed_by_is_a_live_set(device, buffer):
    places = buffer.accessed_by
    assert set(places) == set()
    assert len(places) == 0
    places.add(device)
    assert device in places
    assert Host() not in places
    assert 0 not in places
    assert accessors(buffer) == {0}
    buffer.accessed_by.add(Host())
    assert places == {device, Host()}  # the same driver state behind each
    assert accessors(buffer) == {0, -1}
    assert repr(places).startswith("AccessedBySetProxy({")
    places.discard(device)
    places.discard(device)
    assert set(places) == {Host()}
    with pytest.raises(KeyError):
        places.remove(device)
    assert places.pop() == Host()
    with pytest.raises(KeyError):
        places.pop()


def test_operators_of_accessed_by_give_plain_sets(device, buffer):
    places = buffer.accessed_by
    places |= {device, Host()}
    assert (places | set(), places & {device}, places - {device}, places ^ {device}) == (
        {device, Host()},
        {device},
        {Host()},
        {Host()},
    )
    assert type(places | set()) is set
    assert places >= {device}
    places -= {Host()}
    places &= {device}
    assert accessors(buffer) == {0}
    places.clear()
    assert accessors(buffer) == set()
    with pytest.raises(TypeError, match="unhashable"):
        hash(places)


@pytest.mark.two_devices
def test_accessed_by_can_be_replaced_as_a_whole(devices, device, buffer):
    buffer.accessed_by = [device, devices[1]]
    assert accessors(buffer) == {0, 1}
    buffer.accessed_by = iter((Host(), devices[1], Host()))
    assert buffer.accessed_by == {Host(), devices[1]}
    buffer.accessed_by = buffer.accessed_by
    assert accessors(buffer) == {-1, 1}
    buffer.accessed_by = ()
    assert accessors(buffer) == set()


def _fails_after_one(buffer, device):
    def places():
        yield device
        raise LookupError("no more")

    buffer.accessed_by = places()


WRONG = {
    "preferred number": (lambda b, s, d: setattr(b, "preferred_location", 0), TypeError, "got int: 0"),
    "preferred text": (
        lambda b, s, d: setattr(b, "preferred_location", "host"),
        TypeError,
        "location must be a Device, Host, or None; got str",
    ),
    "preferred class": (lambda b, s, d: setattr(b, "preferred_location", Host), TypeError, "got type"),
    "preferred node": (lambda b, s, d: setattr(b, "preferred_location", Host(999)), ValueError, "999"),
    "preferred huge node": (
        lambda b, s, d: setattr(b, "preferred_location", Host(2**31)),
        ValueError,
        str(2**31),
    ),
    "add number": (lambda b, s, d: b.accessed_by.add(0), TypeError, "expected Device or Host, got int"),
    "add None": (lambda b, s, d: b.accessed_by.add(None), TypeError, "expected Device or Host, got NoneType"),
    "add node": (
        lambda b, s, d: b.accessed_by.add(Host(0)),
        ValueError,
        "advise CU_MEM_ADVISE_SET_ACCESSED_BY does not support location_type='host_numa'",
    ),
    "add current": (
        lambda b, s, d: b.accessed_by.add(Host.numa_current()),
        ValueError,
        "location_type='host_numa_current'",
    ),
    "replace by number": (lambda b, s, d: setattr(b, "accessed_by", 0), TypeError, "iterable"),
    "replace by None": (lambda b, s, d: setattr(b, "accessed_by", None), TypeError, "iterable"),
    "replace, number within": (
        lambda b, s, d: setattr(b, "accessed_by", [d, 1]),
        TypeError,
        "accessed_by entries must be Device or Host, got int: 1",
    ),
    "replace, node within": (
        lambda b, s, d: setattr(b, "accessed_by", [d, Host(0)]),
        ValueError,
        "location_type='host_numa'",
    ),
    "replace by what fails": (lambda b, s, d: _fails_after_one(b, d), LookupError, "no more"),
    "prefetch None": (lambda b, s, d: b.prefetch(None, stream=s), ValueError, "location is required"),
    "prefetch number": (
        lambda b, s, d: b.prefetch(0, stream=s),
        TypeError,
        "location must be a Device, Host",
    ),
    "prefetch node": (lambda b, s, d: b.prefetch(Host(999), stream=s), ValueError, "999"),
    "prefetch stream": (lambda b, s, d: b.prefetch(Host(), stream=None), TypeError, "stream is required"),
    "prefetch no stream": (lambda b, s, d: b.prefetch(Host()), TypeError, "stream"),
    "discard stream": (lambda b, s, d: b.discard(stream=7), TypeError, "[sS]tream"),
    "discard legacy": (
        lambda b, s, d: b.discard(stream=LEGACY_DEFAULT_STREAM),
        TypeError,
        "discard does not accept LEGACY_DEFAULT_STREAM",
    ),
    "discard_prefetch None": (
        lambda b, s, d: b.discard_prefetch(None, stream=s),
        ValueError,
        "location is required",
    ),
    "discard_prefetch legacy": (
        lambda b, s, d: b.discard_prefetch(Host(), stream=LEGACY_DEFAULT_STREAM),
        TypeError,
        "discard_prefetch does not accept LEGACY_DEFAULT_STREAM",
    ),
    "batch legacy": (
        lambda b, s, d: discard_batch(LEGACY_DEFAULT_STREAM, [b, b]),
        TypeError,
        "discard_batch does not accept LEGACY_DEFAULT_STREAM",
    ),
    "batch empty": (
        lambda b, s, d: prefetch_batch(s, [], Host()),
        ValueError,
        "prefetch_batch: empty buffers",
    ),
    "batch single": (
        lambda b, s, d: discard_batch(s, b),
        TypeError,
        "discard_batch: pass a sequence of Buffers; for a single buffer use the ManagedBuffer instance method",
    ),
    "batch number": (
        lambda b, s, d: discard_prefetch_batch(s, 5, Host()),
        TypeError,
        "must be a sequence of Buffer",
    ),
    "batch numbers": (
        lambda b, s, d: prefetch_batch(s, [b, 5], Host()),
        TypeError,
        "expected Buffer, got int: 5",
    ),
    "batch places": (
        lambda b, s, d: prefetch_batch(s, [b, b], [Host()]),
        ValueError,
        "prefetch_batch: location length 1 does not match targets length 2",
    ),
    "batch no place": (lambda b, s, d: prefetch_batch(s, [b, b], None), ValueError, "location is required"),
    "batch place text": (lambda b, s, d: prefetch_batch(s, [b, b], "ab"), TypeError, "got str: 'ab'"),
    "batch a None": (
        lambda b, s, d: prefetch_batch(s, [b, b], [Host(), None]),
        ValueError,
        "location is required",
    ),
    "batch a number": (
        lambda b, s, d: discard_prefetch_batch(s, [b, b], [0, Host()]),
        TypeError,
        "got int: 0",
    ),
    "batch node": (lambda b, s, d: prefetch_batch(s, [b, b], [Host(), Host(999)]), ValueError, "999"),
    "batch stream": (lambda b, s, d: prefetch_batch(None, [b, b], Host()), TypeError, "stream is required"),
}


@pytest.mark.parametrize("case", WRONG)
def test_man_01_wrong_places_are_refused_before_any_driver_call(device, buffer, stream, driver_watch, case):
    call, error, text = WRONG[case]
    buffer.preferred_location = Host()
    with driver_watch.no_call():
        with pytest.raises(error, match=text):
            call(buffer, stream, device)
    assert (buffer.ownership, buffer.loans) == (Ownership.OWNED, 0)
    assert buffer.preferred_location is Host()
    assert accessors(buffer) == set()


def test_what_cannot_be_in_the_set_is_discarded_quietly(buffer, driver_watch):
    with driver_watch.no_call():
        for value in (Host(0), Host.numa_current(), 0, None, "host"):
            buffer.accessed_by.discard(value)


def test_memory_that_is_not_managed_is_refused(device, stream, buffer):
    memory = Plain().allocate(SIZE)
    with ManagedBuffer.from_handle(memory.handle, SIZE, owner=memory) as view:
        for call, name in (
            (lambda: setattr(view, "read_mostly", True), "advise"),
            (lambda: view.prefetch(device, stream=stream), "prefetch"),
            (lambda: view.discard(stream=stream), "discard"),
            (lambda: view.discard_prefetch(device, stream=stream), "discard_prefetch"),
            (lambda: prefetch_batch(stream, [buffer, memory], device), "prefetch_batch"),
            (lambda: discard_batch(stream, [buffer, memory]), "discard_batch"),
            (lambda: discard_prefetch_batch(stream, [memory, buffer], device), "discard_prefetch_batch"),
        ):
            with pytest.raises(ValueError, match=f"{name} requires a managed-memory allocation"):
                call()
        assert view.loans == memory.loans == buffer.loans == 0
    stream.sync()
    assert prefetched(buffer)[0] == "INVALID"
    memory.close()


CALLS = {
    "read_mostly": lambda b, s, d: b.read_mostly,
    "set read_mostly": lambda b, s, d: setattr(b, "read_mostly", True),
    "preferred_location": lambda b, s, d: b.preferred_location,
    "set preferred_location": lambda b, s, d: setattr(b, "preferred_location", d),
    "unset preferred_location": lambda b, s, d: setattr(b, "preferred_location", None),
    "accessed_by": lambda b, s, d: set(b.accessed_by),
    "add": lambda b, s, d: b.accessed_by.add(d),
    "discard from set": lambda b, s, d: b.accessed_by.discard(d),
    "replace": lambda b, s, d: setattr(b, "accessed_by", [Host(), d]),
    "prefetch": lambda b, s, d: b.prefetch(d, stream=s),
    "discard": lambda b, s, d: b.discard(stream=s),
    "discard_prefetch": lambda b, s, d: b.discard_prefetch(d, stream=s),
    "prefetch_batch": lambda b, s, d: prefetch_batch(s, [b, b], d),
    "discard_batch": lambda b, s, d: discard_batch(s, [b, b]),
    "discard_prefetch_batch": lambda b, s, d: discard_prefetch_batch(s, [b, b], d),
}


@pytest.mark.parametrize("call", CALLS)
def test_buf_05_a_closed_buffer_is_neither_asked_nor_advised(device, stream, driver_watch, managed, call):
    buffer = managed.allocate(SIZE)
    buffer.close()
    with driver_watch.no_call():
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            CALLS[call](buffer, stream, device)


def test_a_set_that_outlives_its_buffer_says_so(device, managed, driver_watch):
    buffer = managed.allocate(SIZE)
    places = buffer.accessed_by
    buffer.close()
    with driver_watch.no_call():
        for call in (
            lambda: len(places),
            lambda: list(places),
            lambda: device in places,
            lambda: places.add(device),
            lambda: places.discard(device),
            lambda: repr(places),
        ):
            with pytest.raises(OwnershipError, match="Buffer has been closed"):
                call()
        assert 0 not in places


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_an_operation_fails(device, stream, driver_watch, buffer, call):
    CALLS[call](buffer, stream, device)
    buffer.accessed_by = []
    calls = driver_watch.calls_of(lambda: CALLS[call](buffer, stream, device))
    buffer.accessed_by = []
    assert calls
    for name, count in calls.items():
        for nth in range(1, count + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                with pytest.raises(CUDAError, match=name):
                    CALLS[call](buffer, stream, device)
            assert failure.fired == 1
            assert (buffer.loans, buffer.ownership) == (0, Ownership.OWNED)
            assert accessors(buffer) == set()  # a replacement that was refused half way has been undone
    CALLS[call](buffer, stream, device)


def test_operations_racing_with_a_close_use_no_returned_address(device, stream, managed):
    for name in ("add", "prefetch", "discard_batch", "preferred_location"):
        for _ in range(40):
            buffer = managed.allocate(SIZE)
            used, closed = race(
                in_context(lambda b=buffer, n=name: CALLS[n](b, stream, device)), in_context(buffer.close)
            )
            assert not isinstance(closed, Exception), closed
            assert not isinstance(used, Exception) or isinstance(used, OwnershipError), used
            assert managed.held == {}
    stream.sync()


@pytest.mark.parametrize("call", CALLS)
def test_operations_leave_no_references(device, stream, buffer, call):
    things = [buffer, stream, device, Host()]
    CALLS[call](buffer, stream, device)
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        CALLS[call](buffer, stream, device)
        with pytest.raises(TypeError):
            buffer.preferred_location = 5
        with pytest.raises(TypeError):
            prefetch_batch(stream, [buffer, buffer], [device, 5])
        with pytest.raises(TypeError):
            discard_batch(stream, [buffer, None])
    assert [sys.getrefcount(thing) for thing in things] == before
    stream.sync()
