# SPDX-License-Identifier: Apache-2.0
"""Attributes of a test class: what is none is refused with its value, and every kind of integer is taken."""

import gc

import numpy
import pytest

from cuda.core.testing import MemoryResourceTests
from cuda.core.testing._options import check_options
from cuda.core.testing._watch import settled
from support import name_of

INTEGERS = ("granularity", "alignment", "too_large")
FLAGS = ("supports_zero", "stream_ordered", "exportable", "growable", "checks_frees", "driver_failures")


def said_of(**attributes):
    check_options(type("TestOdd", (MemoryResourceTests,), attributes)())


def test_what_the_class_comes_with_is_right():
    said_of()


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, numpy.True_, 1.0, "1", b"1", [1]], ids=name_of)
def test_a_number_that_is_no_integer(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {type(value).__name__}"):
        said_of(**{name: value})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [0, -1, -(2**70), numpy.int8(-1)], ids=name_of)
def test_a_number_that_is_too_small(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {int(value)}"):
        said_of(**{name: value})


@pytest.mark.parametrize(
    ("sizes", "error", "said"),
    [
        ((), ValueError, "sizes must have one size at least"),
        (4096, TypeError, "sizes must be a tuple of integers, got int: 4096"),
        ("12", TypeError, "sizes must be a tuple of integers, got str: '12'"),
        ((1, True), TypeError, r"sizes\[1\] must be an integer, got bool: True"),
        ((1.0,), TypeError, r"sizes\[0\] must be an integer, got float: 1.0"),
        ((0,), ValueError, r"sizes\[0\] must be at least 1, got 0"),
        ((1, 2**63), ValueError, r"sizes\[1\] must be at most 2\*\*63 - 1"),
        ((1, 1 << 61), ValueError, "too_large must be more than every one of sizes"),
    ],
)
def test_sizes_that_are_none(sizes, error, said):
    with pytest.raises(error, match=said):
        said_of(sizes=sizes)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, 0, None, "yes"], ids=name_of)
def test_a_flag_that_is_none(name, value):
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {type(value).__name__}"):
        said_of(**{name: value})


def test_settings_that_are_none():
    with pytest.raises(TypeError, match=r"machine_settings must be a hypothesis.settings, got dict"):
        said_of(machine_settings={})


def test_every_kind_of_integer_is_taken():
    number = numpy.uint32(512)
    said_of(
        sizes=(number, numpy.int64(1)), granularity=number, alignment=number, too_large=numpy.uint64(2**60)
    )


def test_a_measure_that_does_not_change_is_not_waited_for_long():
    seen = []
    assert settled(lambda: seen.append(1) or 1, 2, quiet=0.05) == 1
    assert 1 < len(seen) < 100


def test_a_measure_that_comes_nearer_is_waited_for():
    numbers = iter(range(100))
    assert settled(lambda: next(numbers), 50, quiet=0.05) == 50


class TestHeap(MemoryResourceTests):
    """While a check runs the heap is frozen, and what the check makes is collected all the same."""

    def test_it_is_frozen(self):
        assert gc.get_freeze_count() > 10_000
        cycle = [[]]
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1


for _name in dir(MemoryResourceTests):
    if _name.startswith("test_"):
        setattr(TestHeap, _name, None)
