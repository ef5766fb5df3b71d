# SPDX-License-Identifier: Apache-2.0
"""Numbers that adaptors are given: an integer of any kind is taken, and what is none is refused at once."""

import numpy
import pytest

from adaptor_kinds import EVERY
from cuda.bindings import driver
from cuda.core import LegacyPinnedMemoryResource, Ownership
from cuda.core.adaptors import FailingAdaptor, LimitAdaptor, LoggingAdaptor, TrackingAdaptor
from python_resources import Plain
from support import given_back, name_of

pytestmark = pytest.mark.usefixtures("device")


class Seven:
    """An integer by its ``__index__`` alone."""

    def __index__(self):
        return 7

    def __repr__(self):
        return "Seven()"


class Unprintable:
    def __repr__(self):
        raise LookupError


# What takes a number, with its name and its least value.
NUMBERS = {
    "limit": (lambda inner, value: LimitAdaptor(inner, value), "limit", 0),
    "frames": (lambda inner, value: TrackingAdaptor(inner, value), "frames", 0),
    "level": (lambda inner, value: LoggingAdaptor(inner, None, value), "level", None),
    "nth allocation": (lambda inner, value: FailingAdaptor(inner).fail_allocation(value), "nth", 1),
    "nth free": (lambda inner, value: FailingAdaptor(inner).fail_free(value), "nth", 1),
}
WITH_LEAST = {name: number for name, number in NUMBERS.items() if number[2] is not None}
NO_INTEGERS = [True, False, numpy.True_, 1.0, 1.5, float("nan"), "1", b"1", [1]]


@pytest.fixture(params=NUMBERS.values(), ids=NUMBERS)
def number(request):
    return request.param


@pytest.fixture(params=EVERY.values(), ids=EVERY)
def around(request):
    return request.param


@pytest.mark.parametrize("value", NO_INTEGERS, ids=name_of)
def test_what_is_no_integer_is_refused(number, value):
    make, name, _ = number
    with pytest.raises(TypeError) as refused:
        make(LegacyPinnedMemoryResource(), value)
    text = str(refused.value)
    assert text.startswith(f"{name} must be an integer, got {type(value).__name__}")
    assert repr(value) in text


def test_what_cannot_be_shown_is_refused_with_its_type(number):
    make, name, _ = number
    with pytest.raises(TypeError, match=f"{name} must be an integer, got Unprintable"):
        make(LegacyPinnedMemoryResource(), Unprintable())


@pytest.mark.parametrize("number", WITH_LEAST.values(), ids=WITH_LEAST, indirect=True)
def test_what_is_too_small_is_refused(number):
    make, name, least = number
    for value in (least - 1, -(2**70), numpy.int8(-1)):
        with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {int(value)}"):
            make(LegacyPinnedMemoryResource(), value)
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got an integer of 33220 bits"):
        make(LegacyPinnedMemoryResource(), -(10**10000))


@pytest.mark.parametrize("value", [7, numpy.int64(7), numpy.uint8(7), Seven()], ids=name_of)
def test_every_kind_of_integer_is_taken(number, value):
    make, _, _ = number
    make(LegacyPinnedMemoryResource(), value)


def test_numbers_are_kept_as_integers():
    limited = LimitAdaptor(LegacyPinnedMemoryResource(), numpy.uint8(200))
    with limited.allocate(numpy.uint8(150)) as buffer:
        assert (buffer.size, type(limited.limit), type(limited.used)) == (150, int, int)
        with pytest.raises(
            MemoryError, match="100 bytes would exceed the limit of 200 bytes: 150 are in use"
        ):
            limited.allocate(numpy.uint8(100))  # 250 fits into a numpy.uint8, 300 would not
    assert limited.used == 0


@pytest.mark.parametrize("value", [2**63, 2**64, 2**200], ids=name_of)
def test_a_large_number_means_what_it_says(number, value):
    """No limit, all frames, a level that every logger writes, a failure that never comes."""
    make, name, _ = number
    made = make(LegacyPinnedMemoryResource(), value)
    if name == "nth":
        adaptor = FailingAdaptor(LegacyPinnedMemoryResource())
        with adaptor.fail_allocation(value), adaptor.fail_free(value):
            adaptor.allocate(64).close()
        return
    with made.allocate(64):
        if name == "frames":
            assert len(made.open_allocations()[0].origin) > 1


@pytest.mark.parametrize("value", [*NO_INTEGERS, None], ids=name_of)
def test_a_size_that_is_no_integer_is_refused_before_anybody_is_asked(around, value):
    inner = Plain()
    adaptor = around(inner)
    with pytest.raises(TypeError, match=f"size must be an integer, got {type(value).__name__}"):
        adaptor.allocate(value)
    assert (inner.asked, inner.held) == ([], {})
    adaptor.allocate(512).close()


def test_sizes_of_every_kind_of_integer(around):
    adaptor = around(LegacyPinnedMemoryResource())
    for size in (numpy.int32(7), numpy.uint64(7), Seven()):
        with adaptor.allocate(size) as buffer:
            assert buffer.size == 7


@pytest.mark.parametrize("size", [-1, 2**63, 2**64, 2**200], ids=name_of)
def test_sizes_that_nobody_has_are_the_inner_resources_to_refuse(around, size):
    adaptor = around(LegacyPinnedMemoryResource())
    inner = LegacyPinnedMemoryResource()
    with pytest.raises((ValueError, OverflowError, MemoryError)):
        inner.allocate(size)
    with pytest.raises((ValueError, OverflowError, MemoryError)):
        adaptor.allocate(size)
    adaptor.allocate(64).close()


@pytest.mark.parametrize(
    ("ptr", "size", "error"),
    [
        ("4096", 64, TypeError),
        (4096.0, 64, TypeError),
        (True, 64, TypeError),
        ([], 64, TypeError),
        (-1, 64, ValueError),
        (2**64, 64, OverflowError),
        (4096, "64", TypeError),
        (4096, 64.0, TypeError),
        (4096, True, TypeError),
        (4096, None, TypeError),
        (4096, -1, ValueError),
        (4096, 2**64, OverflowError),
    ],
    ids=name_of,
)
def test_a_free_by_hand_of_what_is_no_address_or_size_is_refused(around, ptr, size, error):
    adaptor = around(LegacyPinnedMemoryResource())
    with pytest.raises(error):
        adaptor.deallocate(ptr, size)


@pytest.mark.parametrize("kind", [numpy.uint64, driver.CUdeviceptr], ids=name_of)
def test_a_free_by_hand_takes_every_kind_of_address(around, kind):
    adaptor = around(LegacyPinnedMemoryResource())
    allocation = adaptor.allocate(64).detach()
    address = allocation.handle
    adaptor.deallocate(kind(address), numpy.int16(64))
    assert given_back(address)
    assert allocation.ownership is Ownership.TRANSFERRED
