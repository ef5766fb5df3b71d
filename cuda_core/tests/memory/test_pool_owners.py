# SPDX-License-Identifier: Apache-2.0
"""Who owns an address of a pool: the list of open records, the index, subclasses, and threads that race."""

import pytest

from buffer_kinds import ENDINGS, POOLS, end, used
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from support import (
    GRANULE,
    attempt,
    check,
    fill,
    holds,
    race,
    read,
    still_allocated,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=POOLS.values(), ids=POOLS)
def source(request, device):
    return request.param(device)


# --- who owns an address -----------------------------------------------------------------------------------------


def test_the_owner_of_an_allocated_address_is_known_without_an_entry(source, stream):
    """The first owning call finds the buffers that were allocated before it, and those after it."""
    early = [source.resource.allocate(4096, stream=stream) for _ in range(20)]
    early.pop(7).close()
    for buffer in early:
        with pytest.raises(OwnershipError, match=f"{buffer.handle:#x}.*owner"):
            Buffer.from_handle(buffer.handle, 4096, source.resource, stream=stream)
    late = source.resource.allocate(4096, stream=stream)
    with pytest.raises(OwnershipError):
        Buffer.from_handle(late.handle, 4096, source.resource, stream=stream)
    for buffer in (*early, late):
        assert buffer.close() is CloseResult.DONE
    assert used(source.resource) == 0


def test_a_fresh_address_wins_over_a_stale_owner(source, stream):
    """Foreign code frees under an owner, and the driver hands the address out again."""
    allocation = source.resource.allocate(4096, stream=stream).detach()
    address = allocation.handle
    allocation.handed_over()
    stale = Buffer.from_handle(address, 4096, source.resource, stream=stream)
    check(driver.cuMemFreeAsync(address, int(stream.handle)))
    fresh = source.resource.allocate(4096, stream=stream)
    assert fresh.handle == address
    assert stale.ownership is Ownership.RELEASED
    assert stale.close() is CloseResult.NOTHING
    fill(address, 4096, seed=6)
    assert holds(address, 4096, seed=6)
    assert fresh.close() is CloseResult.DONE


def test_an_address_that_is_lent_is_owned(source, stream):
    buffer = source.resource.allocate(4096, stream=stream)
    address, part = buffer.handle, buffer[:16]
    assert buffer.close() is CloseResult.LENT
    with pytest.raises(OwnershipError):
        Buffer.from_handle(address, 4096, source.resource, stream=stream)
    with pytest.raises(OwnershipError, match="loans"):
        source.resource.deallocate(address, 4096, stream=stream)
    part.close()
    assert not still_allocated(address)


def test_a_thousand_records_are_listed_and_leave(device, source, stream):
    """The list of open records grows and is used again; an index built in the middle misses none."""
    buffers = [source.resource.allocate(256, stream=stream) for _ in range(1000)]
    for buffer in buffers[::3]:
        buffer.close()
    again = [source.resource.allocate(256, stream=stream) for _ in range(200)]
    opened = [buffer for buffer in (*buffers, *again) if not buffer.is_closed]
    refused = [
        attempt(
            lambda b=buffer: Buffer.from_handle(b.handle, 256, source.resource, stream=stream), OwnershipError
        )[1]
        for buffer in opened
    ]
    assert all(refused)
    for buffer in opened:
        buffer.close()
    assert used(source.resource) == 0


# --- subclasses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
def test_a_subclass_is_asked_once(source, stream, how):
    class Asked(type(source.resource)):
        log = None

        def deallocate(self, ptr, size, *, stream):
            self.log.append((ptr, size, int(stream.handle)))
            super().deallocate(ptr, size, stream=stream)

    resource = Asked(*source.arguments)
    resource.log = []
    box = [resource.allocate(4096, stream=stream)]
    address = box[0].handle
    end(box, how)
    assert resource.log == [(address, 4096, int(stream.handle))]
    assert used(resource) == 0
    resource.close()


def test_a_subclass_that_was_not_initialised_says_so(source, stream):
    class Forgetful(type(source.resource)):
        def __init__(self):
            pass

    resource = Forgetful()
    with pytest.raises(RuntimeError, match=r"Forgetful.__init__ was not called"):
        resource.allocate(4096, stream=stream)
    resource.close()
    with pytest.raises(RuntimeError, match="Forgetful has been closed"):
        resource.allocate(4096, stream=stream)


# --- threads -----------------------------------------------------------------------------------------------------


def test_threads_allocate_and_return(source, device):
    """Each with a stream of its own; what one has written nobody else overwrites."""
    streams = [device.create_stream() for _ in range(4)]
    context = check(driver.cuCtxGetCurrent())

    def run(number):
        check(driver.cuCtxSetCurrent(context))
        stream, kept = streams[number], []
        for round_ in range(150):
            buffer = source.resource.allocate(1024, stream=stream)
            value = number * 1000 + round_
            check(driver.cuMemsetD32Async(buffer.handle, value, 256, int(stream.handle)))
            kept.append((buffer, value))
            if len(kept) > 8:
                buffer, value = kept.pop(0)
                stream.sync()
                assert read(buffer.handle, 1024) == value.to_bytes(4, "little") * 256
                assert buffer.close() is CloseResult.DONE
        for buffer, _ in kept:
            assert buffer.close() is CloseResult.DONE
        return True

    assert race(*(lambda n=n: run(n) for n in range(4))) == [True] * 4
    assert used(source.resource) == 0
    for stream in streams:
        stream.close()


def test_of_racing_closes_one_returns(source, stream):
    for _ in range(100):
        buffer = source.resource.allocate(4096, stream=stream)
        outcomes = race(buffer.close, buffer.close, buffer.close)
        assert outcomes.count(CloseResult.DONE) == 1, outcomes
        assert set(outcomes) <= {CloseResult.DONE, CloseResult.IN_PROGRESS, CloseResult.NOTHING}
    assert used(source.resource) == 0


@pytest.mark.watched
def test_closing_a_resource_against_allocating(source, stream, driver_watch):
    """Either the allocation has come first, and the pool stays for it, or it is refused."""
    source.resource.close()
    before = driver_watch.live().get("memory_pool", 0)
    for _ in range(60):
        resource = source.make()

        def allocate(resource=resource):
            return resource.allocate(4096, stream=stream)

        *outcomes, closed = race(allocate, allocate, resource.close)
        assert closed is None, repr(closed)
        for outcome in outcomes:
            if isinstance(outcome, Buffer):
                fill(outcome.handle, 4096, seed=1)
                assert outcome.close() is CloseResult.DONE
            else:
                assert isinstance(outcome, RuntimeError), repr(outcome)
        del outcome, outcomes, resource, allocate
        assert driver_watch.live().get("memory_pool", 0) == before


def test_building_the_index_against_allocating_and_closing(source, stream):
    """Whoever comes while the index is built is in it, or is gone."""
    for _ in range(30):
        resource = source.make()
        buffers = [resource.allocate(256, stream=stream) for _ in range(50)]
        first = buffers[0]

        def own(resource=resource, first=first):
            try:
                Buffer.from_handle(first.handle, 256, resource, stream=stream)
            except OwnershipError:
                return "refused"

        def churn(resource=resource, buffers=buffers):
            for buffer in buffers[1:25]:
                buffer.close()
            return [resource.allocate(256, stream=stream) for _ in range(25)]

        refused, fresh = race(own, churn)
        assert refused == "refused"
        for buffer in (*buffers[25:], *fresh, first):
            with pytest.raises(OwnershipError):
                Buffer.from_handle(buffer.handle, 256, resource, stream=stream)
            assert buffer.close() is CloseResult.DONE
        assert used(resource) == 0
        resource.close()


@pytest.mark.parametrize("granules", [1])
def test_a_pool_buffer_cannot_be_grown(device, source, stream, granules):
    buffer = source.resource.allocate(4096, stream=stream)
    with pytest.raises(ValueError):
        VirtualMemoryResource(device).modify_allocation(buffer, granules * GRANULE)
    assert buffer.close() is CloseResult.DONE
