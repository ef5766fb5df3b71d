# SPDX-License-Identifier: Apache-2.0
"""``adaptor.deallocate(ptr, size, stream=)`` called by hand: the rules of built-in resources hold for every adaptor."""

import gc

import pytest

from adaptor_kinds import EVERY
from buffer_kinds import BUILT_IN, FREES, WITH_RESOURCE
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from cuda.core.adaptors import (
    FailingAdaptor,
    LimitAdaptor,
    MemoryResourceAdaptor,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from python_resources import Refusing
from support import fill, given_back, holds, race, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=EVERY.values(), ids=EVERY)
def around(request):
    return request.param


@pytest.fixture(params=WITH_RESOURCE.values(), ids=WITH_RESOURCE)
def source(request, device):
    return request.param(device)


@pytest.fixture
def adaptor(source, around):
    return around(source.resource)


def wrong_sizes(size):
    return (1, size - 1, size + 1, 2 * size)


def by_hand(adaptor, address, size):
    return adaptor.deallocate(address, size, stream=LEGACY_DEFAULT_STREAM)


# --- an open buffer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["allocated", "adopted", "moved", "given up by its first buffer"])
def test_the_address_of_an_open_buffer_is_refused(source, adaptor, driver_watch, origin):
    buffer = source.allocate(resource=adaptor)
    if origin == "adopted":
        buffer = Buffer.adopt(buffer.detach())
    elif origin == "moved":
        buffer = buffer.move_to(adaptor)
    elif origin == "given up by its first buffer":
        first, buffer = buffer, Buffer.adopt(buffer.detach())
        del first
        gc.collect()
    address, size = buffer.handle, buffer.size
    fill(address, size, seed=1)
    for wanted in (size, 0, *wrong_sizes(size)):
        with driver_watch.no_call():
            with pytest.raises(OwnershipError, match=f"{address:x}; close the buffer instead"):
                by_hand(adaptor, address, wanted)
    with pytest.raises(OwnershipError):
        adaptor.deallocate(address, size)
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, size)
    assert holds(address, size, seed=1)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_the_address_that_loans_hold_is_refused(adaptor, source):
    buffer = source.allocate(resource=adaptor)
    address, size, loan = buffer.handle, buffer.size, buffer[:16]
    assert buffer.close() is CloseResult.LENT
    fill(address, size, seed=2)
    with pytest.raises(OwnershipError, match="loans hold the allocation"):
        by_hand(adaptor, address, size)
    assert holds(address, size, seed=2)
    loan.close()
    assert given_back(address)


def test_what_was_refused_is_counted_as_before():
    resource = LegacyPinnedMemoryResource()
    tracking = TrackingAdaptor(resource)
    limit = LimitAdaptor(tracking, 1000)
    counted = StatisticsAdaptor(limit)
    buffer = counted.allocate(600)
    for adaptor in (counted, limit, tracking):
        with pytest.raises(OwnershipError):
            adaptor.deallocate(buffer.handle, 600)
    assert (counted.statistics.current_bytes, limit.used) == (600, 600)
    assert [entry.size for entry in tracking.open_allocations()] == [600]
    buffer.close()
    assert (counted.statistics.current_bytes, limit.used, tracking.open_allocations()) == (0, 0, [])


# --- detached from it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True], ids=["allocation alive", "handed over"])
def test_what_was_detached_is_freed_and_counts_as_handed_over(source, adaptor, declared, quiet):
    allocation = source.allocate(resource=adaptor).detach()
    address, size = allocation.handle, allocation.size
    if declared:
        allocation.handed_over()
    assert by_hand(adaptor, address, size) is None
    assert given_back(address)
    assert (allocation.ownership, allocation.transferred_to) == (
        Ownership.TRANSFERRED,
        TransferredTo.DETACHED,
    )
    with pytest.raises(OwnershipError):
        Buffer.adopt(allocation)
    with warnings_seen() as seen:
        del allocation
    assert seen == []


def test_what_was_dropped_detached_can_still_be_freed(source, adaptor):
    allocation = source.allocate(resource=adaptor).detach()
    address, size = allocation.handle, allocation.size
    with warnings_seen() as seen:
        del allocation
        gc.collect()
    assert len(seen) == 1
    by_hand(adaptor, address, size)
    assert given_back(address)


@pytest.mark.parametrize("declared", [False, True], ids=["allocation alive", "handed over"])
def test_the_size_of_what_was_detached_must_match(source, adaptor, driver_watch, declared):
    allocation = source.allocate(resource=adaptor).detach()
    address, size = allocation.handle, allocation.size
    fill(address, size, seed=3)
    if declared:
        allocation.handed_over()
    for wanted in wrong_sizes(size):
        with driver_watch.no_call():
            with pytest.raises(ValueError, match=f"size must be {size}"):
                by_hand(adaptor, address, wanted)
    assert holds(address, size, seed=3)
    if declared:
        by_hand(adaptor, address, size)
    else:
        assert allocation.ownership is Ownership.OWNED
        assert Buffer.adopt(allocation).close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("again", ["by hand", "adopted"])
@pytest.mark.parametrize("source", BUILT_IN.values(), ids=BUILT_IN, indirect=True)
def test_a_free_that_fails_has_changed_nothing(source, adaptor, driver_watch, again):
    allocation = source.allocate(resource=adaptor).detach()
    address, size = allocation.handle, allocation.size
    fill(address, size, seed=4)
    with driver_watch.fail(FREES[source.name], result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises((CUDAError, RuntimeError)):
            by_hand(adaptor, address, size)
    assert allocation.ownership is Ownership.OWNED
    assert holds(address, size, seed=4)
    if again == "by hand":
        by_hand(adaptor, address, size)
    else:
        assert Buffer.adopt(allocation).close() is CloseResult.DONE
    assert given_back(address)


def test_a_deallocate_that_raises_has_changed_nothing(around):
    adaptor = around(Refusing(refusals=1))
    allocation = adaptor.allocate(512).detach()
    address = allocation.handle
    with pytest.raises(LookupError, match="not now"):
        adaptor.deallocate(address, 512)
    assert allocation.ownership is Ownership.OWNED
    adaptor.deallocate(address, 512)
    assert given_back(address)


def test_of_racing_frees_and_adoptions_one_wins(around):
    adaptor = around(LegacyPinnedMemoryResource())
    for _ in range(50):
        allocation = adaptor.allocate(64).detach()
        address = allocation.handle
        freed, adopted = race(
            lambda at=address: adaptor.deallocate(at, 64), lambda a=allocation: Buffer.adopt(a)
        )
        if isinstance(adopted, Buffer):
            assert isinstance(freed, OwnershipError), repr(freed)
            assert still_allocated(address)
            assert adopted.close() is CloseResult.DONE
        else:
            assert freed is None, repr(freed)
            assert isinstance(adopted, OwnershipError)
        assert given_back(address)


def test_of_racing_frees_by_hand_one_frees(around):
    adaptor = around(LegacyPinnedMemoryResource())
    for _ in range(50):
        allocation = adaptor.allocate(64).detach()
        address = allocation.handle
        outcomes = race(*[lambda at=address: adaptor.deallocate(at, 64)] * 3)
        assert outcomes.count(None) == 1, outcomes
        assert all(isinstance(one, (OwnershipError, ValueError, type(None))) for one in outcomes), outcomes
        assert given_back(address)


# --- nobody's ----------------------------------------------------------------------------------------------------


def test_the_address_of_a_closed_buffer_is_refused(source, adaptor, driver_watch):
    buffer = source.allocate(resource=adaptor)
    address, size = buffer.handle, buffer.size
    buffer.close()
    with driver_watch.no_call():
        with pytest.raises(ValueError, match=f"has allocated nothing that is open at {address:#x}"):
            by_hand(adaptor, address, size)


def test_an_unknown_address_is_refused(source, adaptor, driver_watch):
    with source.allocate() as foreign, source.allocate(resource=adaptor) as own:
        for address in (foreign.handle, own.handle + 1, 1 << 40):
            with driver_watch.no_call():
                with pytest.raises(ValueError, match=f"has allocated nothing that is open at {address:#x}"):
                    by_hand(adaptor, address, own.size)


def test_nothing_is_freed_at_no_address(adaptor, driver_watch):
    with driver_watch.no_call():
        assert by_hand(adaptor, 0, 0) is None
        assert by_hand(adaptor, 0, 64) is None
        assert by_hand(adaptor, None, 64) is None


def test_an_address_freed_this_way_may_be_owned_again(adaptor, source):
    allocation = source.allocate(resource=adaptor).detach()
    address, size = allocation.handle, allocation.size
    by_hand(adaptor, address, size)
    for _ in range(5):
        buffer = source.allocate(resource=adaptor)
        with pytest.raises(OwnershipError):
            by_hand(adaptor, buffer.handle, size)
        assert buffer.close() is CloseResult.DONE


# --- inside a release --------------------------------------------------------------------------------------------


def test_inside_a_release_other_addresses_are_treated_like_ever(adaptor, source):
    """Freeing one buffer frees another's detached memory, and is refused an open one's."""
    kept = source.allocate(resource=adaptor)
    allocation = source.allocate(resource=adaptor).detach()
    address = allocation.handle

    class Asks(MemoryResourceAdaptor):
        def deallocate(self, ptr, size, *, stream=None):
            with pytest.raises(OwnershipError):
                adaptor.deallocate(kept.handle, kept.size, stream=stream)
            adaptor.deallocate(address, kept.size, stream=stream)
            super().deallocate(ptr, size, stream=stream)

    assert source.allocate(resource=Asks(source.resource)).close() is CloseResult.DONE
    assert given_back(address)
    assert still_allocated(kept.handle)
    assert kept.close() is CloseResult.DONE


def test_a_free_by_hand_while_another_thread_closes_is_refused():
    """The close has begun and its free is under way: nobody else frees then."""
    seen = []

    class Looks(FailingAdaptor):
        def deallocate(self, ptr, size, *, stream=None):
            outcomes = race(lambda: adaptor.deallocate(ptr, size), lambda: None)
            seen.append(outcomes[0])
            MemoryResourceAdaptor.deallocate(self, ptr, size, stream=stream)

    outer = True

    class Once(Looks):
        def deallocate(self, ptr, size, *, stream=None):
            nonlocal outer
            if outer:
                outer = False
                super().deallocate(ptr, size, stream=stream)
            else:
                MemoryResourceAdaptor.deallocate(self, ptr, size, stream=stream)

    adaptor = Once(LegacyPinnedMemoryResource())
    buffer = adaptor.allocate(64)
    address = buffer.handle
    assert buffer.close() is CloseResult.DONE
    assert [type(one) for one in seen] == [OwnershipError]
    assert "another call is freeing" in str(seen[0])
    assert given_back(address)
