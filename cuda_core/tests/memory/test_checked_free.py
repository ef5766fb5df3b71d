# SPDX-License-Identifier: Apache-2.0
"""``MemoryResource.checked_free``: what a resource in Python is told when its ``deallocate`` is called by hand."""

import gc

import pytest

from cuda.core import Buffer, LegacyPinnedMemoryResource, Ownership, OwnershipError, TransferredTo
from python_resources import Plain
from support import given_back, name_of, race, still_allocated

pytestmark = pytest.mark.usefixtures("device")


class Asking(Plain):
    """Asks before it frees."""

    refusals = 0

    def deallocate(self, ptr, size, *, stream=None):
        with self.checked_free(ptr, size):
            if self.refusals:
                self.refusals -= 1
                raise LookupError("not now")
            super().deallocate(ptr, size, stream=stream)


@pytest.fixture
def asking():
    return Asking()


def test_a_resource_that_asks_is_told(asking):
    buffer = asking.allocate(512)
    address = buffer.handle
    with pytest.raises(OwnershipError, match=f"{address:#x}; close the buffer instead"):
        asking.deallocate(address, 512)
    assert asking.asked == []
    allocation = buffer.detach()
    with pytest.raises(ValueError, match=r"size must be 512, .* got 511"):
        asking.deallocate(address, 511)
    asking.deallocate(address, 512)
    assert (allocation.ownership, allocation.transferred_to) == (
        Ownership.TRANSFERRED,
        TransferredTo.DETACHED,
    )
    assert given_back(address)


@pytest.mark.parametrize("how", ["close", "drop", "cycle", "last loan", "thread"])
def test_a_release_is_let_through(asking, how):
    box = [asking.allocate(512)]
    address = box[0].handle
    if how == "close":
        box[0].close()
    elif how == "cycle":
        box.append(box)
    elif how == "last loan":
        part = box[0][:16]
        box[0].close()
        part.close()
    elif how == "thread":
        assert race(box.pop().close, lambda: None)[0].name == "DONE"
    del box
    gc.collect()
    assert given_back(address)


def test_a_claim_that_is_never_entered_is_none(asking):
    allocation = asking.allocate(512).detach()
    asking.checked_free(allocation.handle, 512)
    Buffer.adopt(allocation).close()


def test_a_block_that_raises_leaves_the_allocation(asking):
    allocation = asking.allocate(512).detach()
    address = allocation.handle
    asking.refusals = 1
    with pytest.raises(LookupError):
        asking.deallocate(address, 512)
    assert allocation.ownership is Ownership.OWNED
    assert still_allocated(address)
    Buffer.adopt(allocation).close()
    assert given_back(address)


def test_inside_the_block_the_allocation_is_nobody_elses(asking):
    allocation = asking.allocate(512).detach()
    with asking.checked_free(allocation.handle, 512):
        with pytest.raises(OwnershipError, match="another call"):
            Buffer.adopt(allocation)
        with pytest.raises(OwnershipError, match="another call is freeing"):
            asking.deallocate(allocation.handle, 512)
        with pytest.raises(OwnershipError):
            allocation.handed_over()
        Plain.deallocate(asking, allocation.handle, 512)
    assert allocation.ownership is Ownership.TRANSFERRED


def test_one_check_inside_another_of_one_release(asking):
    class Twice(Asking):
        def deallocate(self, ptr, size, *, stream=None):
            with self.checked_free(ptr, size):
                super().deallocate(ptr, size, stream=stream)

    resource = Twice()
    buffer = resource.allocate(512)
    address = buffer.handle
    buffer.close()
    assert given_back(address)


def test_a_release_inside_a_release_is_told_apart(asking):
    """Each is let through for its own address, and the outer one still is when the inner one is over."""
    other = Asking()
    inner = other.allocate(512)
    kept = asking.allocate(512)

    class Nested(Asking):
        def deallocate(self, ptr, size, *, stream=None):
            inner.close()
            with pytest.raises(OwnershipError):
                asking.deallocate(kept.handle, 512)
            super().deallocate(ptr, size, stream=stream)

    buffer = Nested().allocate(512)
    addresses = [buffer.handle, inner.handle]
    buffer.close()
    assert all(given_back(address) for address in addresses)
    kept.close()


def test_an_address_of_another_resource_is_not_its_business(asking):
    with LegacyPinnedMemoryResource().allocate(64) as foreign, asking.checked_free(foreign.handle, 64):
        pass
    with asking.checked_free(0, 0), asking.checked_free(None, 64):
        pass


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((True, 1), TypeError),
        ((1.0, 1), TypeError),
        ((-1, 1), ValueError),
        ((1, True), TypeError),
        ((1, -1), ValueError),
    ],
    ids=name_of,
)
def test_odd_arguments_are_refused(asking, arguments, error):
    with pytest.raises(error):
        asking.checked_free(*arguments)
