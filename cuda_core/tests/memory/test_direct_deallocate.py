# SPDX-License-Identifier: Apache-2.0
"""``resource.deallocate(ptr, size, stream=)`` called by hand: what it may free, and what it must leave alone."""

import contextlib
import gc

import pytest

from buffer_kinds import BUILT_IN, FREES, raw_memory
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    Ownership,
    OwnershipError,
    StreamOptions,
    TransferredTo,
)
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    check,
    fill,
    given_back,
    holds,
    in_context,
    name_of,
    place,
    race,
    still_allocated,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=BUILT_IN.values(), ids=BUILT_IN)
def source(request, device):
    return request.param(device)


def wrong_sizes(size):
    return (0, 1, size - 1, size + 1, 2 * size)


def deallocate(source, ptr, size, **keywords):
    return source.deallocate(ptr, size, **keywords)


# --- an open buffer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["allocated", "from_handle", "adopted"])
def test_the_address_of_an_open_buffer_is_refused(source, driver_watch, origin):
    if origin == "from_handle":
        buffer = Buffer.from_handle(raw_memory(source.name, source.size), source.size, source.resource)
    else:
        buffer = source.allocate()
    if origin == "adopted":
        buffer = Buffer.adopt(buffer.detach())
    address = buffer.handle
    fill(address, source.size, seed=1)
    for size in (source.size, *wrong_sizes(source.size)):
        with driver_watch.no_call():
            with pytest.raises(OwnershipError, match=f"{address:x}"):
                deallocate(source, address, size)
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, source.size)
    assert holds(address, source.size, seed=1)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_the_address_of_a_moved_buffer_is_its_new_owners(source):
    other = source.make()
    buffer = source.allocate().move_to(other)
    with pytest.raises(OwnershipError):
        other.deallocate(buffer.handle, buffer.size, stream=LEGACY_DEFAULT_STREAM)
    assert still_allocated(buffer.handle)
    assert buffer.close() is CloseResult.DONE


def test_the_address_that_loans_hold_is_refused(source):
    """Closed to its user, not yet free: somebody still looks."""
    buffer = source.allocate()
    address, loan = buffer.handle, buffer[:16]
    assert buffer.close() is CloseResult.LENT
    fill(address, source.size, seed=2)
    with pytest.raises(OwnershipError):
        deallocate(source, address, source.size)
    assert holds(address, source.size, seed=2)
    loan.close()
    assert given_back(address)


@pytest.mark.parametrize("moving", [False, True], ids=["in place", "moved"])
def test_a_grown_buffer_is_open(device, moving):
    buffer, resource = place(device, GRANULE, stretch=4)
    with blocked(buffer) if moving else contextlib.nullcontext():
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    for size in (GRANULE, 2 * GRANULE):
        with pytest.raises(OwnershipError):
            resource.deallocate(buffer.handle, size)
    assert buffer.close() is CloseResult.DONE


# --- detached from it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True], ids=["allocation alive", "handed over"])
def test_what_was_detached_is_freed_and_counts_as_handed_over(source, declared, quiet):
    allocation = source.allocate().detach()
    address = allocation.handle
    if declared:
        allocation.handed_over()
    assert deallocate(source, address, source.size) is None
    assert given_back(address)
    assert (allocation.ownership, allocation.transferred_to) == (
        Ownership.TRANSFERRED,
        TransferredTo.DETACHED,
    )
    with pytest.raises(OwnershipError):
        Buffer.adopt(allocation)
    with pytest.raises(OwnershipError):
        allocation.handed_over()
    with warnings_seen() as seen:
        del allocation
    assert seen == []


@pytest.mark.parametrize("declared", [False, True], ids=["allocation alive", "handed over"])
def test_the_size_of_what_was_detached_must_match(source, driver_watch, declared):
    allocation = source.allocate().detach()
    address = allocation.handle
    fill(address, source.size, seed=3)
    if declared:
        allocation.handed_over()
    for size in wrong_sizes(source.size):
        with driver_watch.no_call():
            with pytest.raises(ValueError, match=str(source.size)):
                deallocate(source, address, size)
    assert holds(address, source.size, seed=3)
    if declared:
        deallocate(source, address, source.size)
    else:
        assert allocation.ownership is Ownership.OWNED
        assert Buffer.adopt(allocation).close() is CloseResult.DONE
    assert given_back(address)


def test_a_detached_range_goes_whole(device):
    """Three chunks, two reservations, one call."""
    buffer, resource = place(device, GRANULE, stretch=6)
    for granules in (2, 3):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    allocation = buffer.detach()
    address = allocation.handle
    for size in (GRANULE, 2 * GRANULE, 4 * GRANULE):
        with pytest.raises(ValueError):
            resource.deallocate(address, size)
    resource.deallocate(address, 3 * GRANULE)
    assert address_free(address, 3 * GRANULE)
    assert allocation.ownership is Ownership.TRANSFERRED


@pytest.mark.parametrize("declared", [False, True], ids=["allocation alive", "handed over"])
def test_an_address_freed_this_way_may_be_owned_again(source, declared):
    allocation = source.allocate().detach()
    address = allocation.handle
    if declared:
        allocation.handed_over()
    deallocate(source, address, source.size)
    for _ in range(5):
        buffer = source.allocate()
        with pytest.raises(OwnershipError):
            deallocate(source, buffer.handle, source.size)
        assert buffer.close() is CloseResult.DONE


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_free_that_fails_has_changed_nothing(source, driver_watch):
    allocation = source.allocate().detach()
    address = allocation.handle
    fill(address, source.size, seed=4)
    name = FREES[source.name]
    with driver_watch.fail(name):
        with pytest.raises(CUDAError, match=f"CUDA_ERROR_OUT_OF_MEMORY.*{name}"):
            deallocate(source, address, source.size)
    assert allocation.ownership is Ownership.OWNED
    assert holds(address, source.size, seed=4)
    deallocate(source, address, source.size)
    assert given_back(address)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_free_that_fails_leaves_an_allocation_that_can_be_adopted(source, driver_watch):
    allocation = source.allocate().detach()
    address = allocation.handle
    with driver_watch.fail(FREES[source.name]):
        with pytest.raises(CUDAError):
            deallocate(source, address, source.size)
    assert Buffer.adopt(allocation).close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_free_that_stopped_half_way_goes_on(device, driver_watch):
    buffer, resource = place(device, GRANULE, stretch=6)
    for granules in (2, 3):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
    allocation = buffer.detach()
    address = allocation.handle
    with driver_watch.fail("cuMemUnmap", nth=2):
        with pytest.raises(CUDAError, match="cuMemUnmap"):
            resource.deallocate(address, 3 * GRANULE)
    with warnings_seen():
        resource.deallocate(address, 3 * GRANULE)
    assert address_free(address, 3 * GRANULE)


def test_of_racing_frees_and_adoptions_one_wins(source):
    for _ in range(50):
        allocation = source.allocate().detach()
        address = allocation.handle
        freed, adopted = race(
            in_context(lambda at=address: deallocate(source, at, source.size)),
            in_context(lambda a=allocation: Buffer.adopt(a)),
        )
        if isinstance(adopted, Buffer):
            assert isinstance(freed, OwnershipError), repr(freed)
            assert still_allocated(address)
            assert adopted.close() is CloseResult.DONE
        else:
            assert freed is None, repr(freed)
            assert isinstance(adopted, OwnershipError)
        assert given_back(address)


# --- unknown addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [False, True], ids=["fresh resource", "used resource"])
def test_an_unknown_address_is_freed_as_told(source, used):
    other = source.allocate() if used else None
    address = raw_memory(source.name, source.size)
    assert deallocate(source, address, source.size) is None
    assert given_back(address)
    if other is not None:
        assert still_allocated(other.handle)
        assert other.close() is CloseResult.DONE


def test_nothing_is_freed_at_no_address(source, driver_watch):
    with driver_watch.no_call():
        assert deallocate(source, 0, 0) is None
        assert deallocate(source, 0, source.size) is None


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_the_driver_refuses_an_address_that_is_free_already(source):
    buffer = source.allocate()
    address = buffer.handle
    buffer.close()
    with pytest.raises(CUDAError):
        deallocate(source, address, source.size)
    assert source.allocate().close() is CloseResult.DONE


@pytest.mark.parametrize("with_stream", [False, True], ids=["no stream", "stream"])
def test_it_waits_for_the_stream_that_is_given(source, device, driver_watch, with_stream):
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    hold = driver_watch.sim.hold if driver_watch.sim else contextlib.nullcontext
    address = raw_memory(source.name, source.size)
    with hold():
        check(driver.cuMemsetD32Async(address, 1, source.size // 4, int(stream.handle)))
        if not with_stream:
            stream.sync()
        deallocate(source, address, source.size, stream=stream if with_stream else None)
        # Work that ran after the free would have made the stream fail. A pool frees behind it, and waits for nothing.
        if source.frees_in_order and with_stream:
            stream.sync()
        assert driver.cuStreamQuery(int(stream.handle))[0] == driver.CUresult.CUDA_SUCCESS
    stream.sync()
    assert given_back(address)
    stream.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("0", 4096), TypeError),
        ((1.5, 4096), TypeError),
        ((-1, 4096), (ValueError, OverflowError)),
        ((2**64, 4096), (ValueError, OverflowError)),
        ((4096, -1), ValueError),
        ((4096, 1.0), TypeError),
        ((4096, "1"), TypeError),
        ((4096, None), TypeError),
        ((4096, 2**64), OverflowError),
    ],
    ids=name_of,
)
def test_odd_arguments_are_refused_before_anything_happens(source, driver_watch, arguments, error):
    with driver_watch.no_call():
        with pytest.raises(error):
            deallocate(source, *arguments)


@pytest.mark.parametrize("stream", [7, "stream", object()], ids=name_of)
def test_an_odd_stream_is_refused_before_anything_happens(source, driver_watch, stream):
    allocation = source.allocate().detach()
    with driver_watch.no_call():
        with pytest.raises(TypeError):
            deallocate(source, allocation.handle, source.size, stream=stream)
    assert allocation.ownership is Ownership.OWNED
    Buffer.adopt(allocation).close()


# --- inside a release --------------------------------------------------------------------------------------------


def subclass(source):
    """A subclass of the source's resource that notes what it is asked, and asks its base class."""
    base = type(source.resource)

    class Asked(base):
        log = None
        more = None

        def deallocate(self, ptr, size, *, stream=None):
            self.log.append((ptr, size))
            if self.more:
                self.more(ptr, size)
            super().deallocate(ptr, size, stream=stream)

    resource = Asked(*source.arguments)
    resource.log = []
    return resource


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_subclass_frees_by_asking_its_base_class(source, how):
    resource = subclass(source)
    buffer = source.allocate(resource=resource)
    address = buffer.handle
    if how == "close":
        assert buffer.close() is CloseResult.DONE
        assert buffer.ownership is Ownership.RELEASED
    del buffer
    gc.collect()
    assert resource.log == [(address, source.size)]
    assert given_back(address)


def test_inside_a_release_other_addresses_are_treated_like_ever(source):
    """Freeing one buffer frees another's detached memory, is refused an open one's, and frees what is unknown."""
    resource = subclass(source)
    base = type(source.resource)
    open_buffer = source.allocate(resource=resource)
    allocation = source.allocate(resource=resource).detach()
    raw = raw_memory(source.name, source.size)
    at = (open_buffer.handle, allocation.handle, raw)

    def more(ptr, size):
        resource.more = None
        with pytest.raises(OwnershipError):
            base.deallocate(resource, at[0], size, stream=LEGACY_DEFAULT_STREAM)
        base.deallocate(resource, at[1], size, stream=LEGACY_DEFAULT_STREAM)
        base.deallocate(resource, at[2], size, stream=LEGACY_DEFAULT_STREAM)

    buffer = source.allocate(resource=resource)
    resource.more = more
    assert buffer.close() is CloseResult.DONE
    assert [still_allocated(address) for address in at] == [True, False, False]
    assert allocation.ownership is Ownership.TRANSFERRED
    assert open_buffer.close() is CloseResult.DONE


def test_freeing_twice_inside_one_release_frees_once(source):
    resource = subclass(source)
    base = type(source.resource)

    def more(ptr, size):
        base.deallocate(resource, ptr, size, stream=LEGACY_DEFAULT_STREAM)

    buffer = source.allocate(resource=resource)
    address = buffer.handle
    resource.more = more
    # Whether the second call is an error is the resource's business; the driver must not be asked twice.
    attempt(buffer.close)
    assert given_back(address)
    resource.more = None
    attempt(buffer.close)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_subclass_whose_base_class_fails_is_asked_again(source, driver_watch):
    resource = subclass(source)
    buffer = source.allocate(resource=resource)
    address = buffer.handle
    with driver_watch.fail(FREES[source.name]):
        with pytest.raises(CUDAError, match=FREES[source.name]):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert resource.log == [(address, source.size)] * 2
    assert given_back(address)
