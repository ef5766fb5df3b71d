# SPDX-License-Identifier: Apache-2.0
"""Loans that begin and end in several threads while the buffer is closed, detached and grown: one frees, once."""

import sys
import threading

import pytest

from buffer_kinds import SOURCES
from cuda.core import Buffer, CloseResult, Ownership, OwnershipError
from python_resources import Slow
from support import (
    GRANULE,
    address_free,
    blocked,
    fill,
    fill_granules,
    free_memory,
    given_back,
    granules_hold,
    holds,
    race,
    read,
    still_allocated,
)

pytestmark = pytest.mark.usefixtures("device")

ROUNDS = 60


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


def test_nothing_is_lent_while_an_author_frees(device):
    resource = Slow()
    buffer = resource.allocate(512)
    closing = threading.Thread(target=buffer.close)
    closing.start()
    try:
        assert resource.entered.wait(60)
        assert buffer.ownership is Ownership.OWNED
        for lend in (lambda: buffer[:8], buffer.array_view):
            with pytest.raises(OwnershipError):
                lend()
        with pytest.raises((OwnershipError, BufferError)):
            memoryview(buffer)
        assert buffer.loans == 0
    finally:
        resource.let_go.set()
        closing.join(60)
    assert buffer.ownership is Ownership.RELEASED
    resource.asked.clear()


@pytest.fixture
def switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("switch_threads_often")
def test_close_against_lend(source):
    """Either the loan began before the close, and holds the memory, or it is refused."""
    seen = set()
    for _ in range(ROUNDS):
        buffer = source.allocate()
        address = buffer.handle
        closed, *lent = race(buffer.close, lambda b=buffer: b[:8], lambda b=buffer: b.array_view())
        open_loans = [loan for loan in lent if not isinstance(loan, Exception)]
        assert all(isinstance(loan, OwnershipError) for loan in lent if loan not in open_loans)
        assert closed is (CloseResult.LENT if open_loans else CloseResult.DONE)
        seen.add(closed)
        assert still_allocated(address) if open_loans else given_back(address)
        lent.clear()
        for loan in open_loans:
            loan.close()
        assert given_back(address)
    assert source.frees() in (None, ROUNDS)


@pytest.mark.usefixtures("switch_threads_often")
@pytest.mark.parametrize("closed", ["before", "meanwhile"])
def test_of_the_loans_that_end_at_once_one_frees(source, closed):
    for _ in range(ROUNDS):
        buffer = source.allocate()
        address = buffer.handle
        loans = [buffer[:8], buffer.array_view(), buffer[8:16], buffer.array_view()]
        functions = [loan.close for loan in loans]
        if closed == "before":
            assert buffer.close() is CloseResult.LENT
        else:
            functions.append(buffer.close)
        outcomes = race(*functions)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
        if closed == "meanwhile":
            assert outcomes[-1] in (CloseResult.LENT, CloseResult.DONE)
        assert given_back(address)
    assert source.frees() in (None, ROUNDS)


@pytest.mark.usefixtures("switch_threads_often")
def test_many_threads_lend_and_end(source):
    buffer = source.allocate()
    fill(buffer.handle, source.size, seed=1)

    def work():
        for _ in range(200):
            with buffer[:8] as part, part[:4] as inner:
                assert inner.size == 4
            with buffer.array_view() as view:
                assert view.__cuda_array_interface__["data"][0] == buffer.handle
        return "done"

    assert race(*[work] * 4) == ["done"] * 4
    assert buffer.loans == 0
    assert holds(buffer.handle, source.size, seed=1)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.usefixtures("switch_threads_often")
def test_detach_against_lend(source):
    for _ in range(ROUNDS):
        buffer = source.allocate()
        detached, lent = race(buffer.detach, lambda b=buffer: b[:8])
        if isinstance(detached, BufferError):
            lent.close()
            assert buffer.close() is CloseResult.DONE
        elif isinstance(lent, OwnershipError):
            assert Buffer.adopt(detached).close() is CloseResult.DONE
        else:
            # One after the other needs the loan to have ended, and it has not.
            pytest.fail(f"both got the buffer: {detached!r}, {lent!r}")


@pytest.mark.usefixtures("switch_threads_often")
@pytest.mark.parametrize("against", ["lend", "end loan"])
def test_grow_against_loans(resource, against):
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        fill_granules(buffer)
        old, part = buffer.handle, buffer[:8] if against == "end loan" else None
        with blocked(buffer):
            grown, other = race(
                lambda b=buffer: resource.modify_allocation(b, 2 * GRANULE),
                part.close if part is not None else lambda b=buffer: b[:8],
            )
        assert isinstance(grown, Buffer), repr(grown)
        assert granules_hold(grown, 1)
        if against == "end loan":
            assert other is CloseResult.DONE, repr(other)
        elif isinstance(other, OwnershipError):
            assert grown.loans == 0
        else:
            assert grown.loans == 1
            assert read(other.handle, 8) == read(grown.handle, 8)
            other.close()
        assert grown.loans == 0
        assert grown.close() is CloseResult.DONE
        assert address_free(old, GRANULE)
        del other
    assert free_memory() == free


@pytest.mark.usefixtures("switch_threads_often")
def test_the_close_of_a_grown_buffer_against_the_last_loan_on_its_old_addresses(resource):
    """Returning what the loan kept is no reason to refuse the close."""
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        old, part = buffer.handle, buffer[:8]
        with blocked(buffer):
            grown = resource.modify_allocation(buffer, 2 * GRANULE)
        closed, ended = race(grown.close, part.close)
        assert closed in (CloseResult.DONE, CloseResult.LENT), repr(closed)
        assert ended is CloseResult.DONE, repr(ended)
        assert address_free(old, GRANULE)
        assert free_memory() == free


@pytest.mark.usefixtures("switch_threads_often")
def test_a_loan_on_the_grown_buffer_against_the_last_one_on_its_old_addresses(resource):
    free = free_memory()
    for _ in range(ROUNDS):
        buffer = resource.allocate(GRANULE)
        part = buffer[:8]
        with blocked(buffer):
            grown = resource.modify_allocation(buffer, 2 * GRANULE)
        lent, ended = race(lambda b=grown: b[:8], part.close)
        assert isinstance(lent, Buffer), repr(lent)
        assert ended is CloseResult.DONE, repr(ended)
        lent.close()
        assert grown.close() is CloseResult.DONE
        assert free_memory() == free


def test_the_last_loan_ends_on_a_thread_without_a_context(source):
    buffer = source.allocate()
    address, part = buffer.handle, buffer[:8]
    assert buffer.close() is CloseResult.LENT
    assert race(part.close) == [CloseResult.DONE]
    assert given_back(address)
    assert source.frees() in (None, 1)
