# SPDX-License-Identifier: Apache-2.0
"""Odd input gets an error before any driver call, and nothing changes."""

import sys

import pytest

from cuda.core import Buffer, Ownership, OwnershipError, VirtualMemoryResource, VirtualMemoryResourceOptions
from odd_input import CALLS, WRONG_OPTIONS, Things
from support import GRANULE, child_output, fill_granules, granules_hold

# Nothing says that the ordinal of a device is looked up without the driver.
MAY_ASK_THE_DRIVER = {"resource on device negative"}


@pytest.fixture
def things(device):
    made = Things()
    yield made
    made.close()


@pytest.mark.parametrize(("name", "call", "error"), CALLS, ids=[name for name, _, _ in CALLS])
def test_odd_input_is_refused(things, driver_watch, name, call, error):
    state, live = things.state(), driver_watch.live()
    calls = driver_watch.calls()
    with pytest.raises(error) as info:
        call(things)
    if name not in MAY_ASK_THE_DRIVER:
        assert driver_watch.calls() == calls, "the driver was called"
    assert str(info.value), "an error says what is wrong"
    assert driver_watch.live() == live
    del info
    assert things.state() == state


def test_what_was_refused_is_still_good(things):
    """After all of it, in one go, the buffers hold their bytes, grow and close."""
    fill_granules(things.open)
    for _, call, error in CALLS:
        with pytest.raises(error):
            call(things)
    assert granules_hold(things.open, 1)
    things.open = things.resource.modify_allocation(things.open, 2 * GRANULE)
    assert granules_hold(things.open, 1)


@pytest.mark.parametrize(("option", "value", "error"), WRONG_OPTIONS)
def test_the_error_names_the_option_and_the_value(option, value, error):
    with pytest.raises(error, match=option) as info:
        VirtualMemoryResourceOptions(**{option: value})
    if info.type is ValueError:
        shown = value[0] if isinstance(value, tuple) else value
        assert str(shown) in str(info.value)


@pytest.mark.parametrize(("option", "value", "error"), WRONG_OPTIONS)
def test_a_refused_assignment_keeps_the_old_value(option, value, error):
    options = VirtualMemoryResourceOptions()
    before = getattr(options, option)
    with pytest.raises(error):
        setattr(options, option, value)
    assert getattr(options, option) == before


@pytest.mark.parametrize("state", ["closed", "transferred"])
def test_the_error_tells_the_state_of_a_closed_buffer(things, state):
    buffer = getattr(things, state)
    words = {"closed": r"RELEASED", "transferred": r"TRANSFERRED.*GROWN"}[state]
    with pytest.raises(OwnershipError, match=rf"^Buffer has been closed.*{words}"):
        things.resource.modify_allocation(buffer, GRANULE)


def test_a_borrowed_buffer_cannot_be_grown_but_its_owner_can(things):
    with pytest.raises(OwnershipError, match="BORROWED"):
        things.resource.modify_allocation(things.borrowed, 2 * GRANULE)
    assert things.borrowed.ownership is Ownership.BORROWED


@pytest.mark.parametrize("size", [GRANULE, 2 * GRANULE], ids=["covered", "to grow"])
@pytest.mark.parametrize("how", ["close", "detach", "grow"])
def test_a_size_whose_own_code_ends_the_buffer_is_met_by_an_ended_one(device, size, how):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(GRANULE)
    taken = []
    ways = {
        "close": buffer.close,
        "detach": lambda: taken.append(Buffer.adopt(buffer.detach())),
        "grow": lambda: taken.append(resource.modify_allocation(buffer, 2 * GRANULE)),
    }

    class Sly:
        def __index__(self):
            ways[how]()
            return size

    with pytest.raises(OwnershipError, match="Buffer has been closed"):
        resource.modify_allocation(buffer, Sly())
    for other in taken:
        other.close()


@pytest.mark.two_devices
def test_a_buffer_of_another_device_is_refused(devices, things, driver_watch):
    there = VirtualMemoryResource(devices[1])
    buffer = there.allocate(GRANULE)
    with driver_watch.no_call():
        with pytest.raises(ValueError):
            things.resource.modify_allocation(buffer, 2 * GRANULE)
        with pytest.raises(ValueError):
            there.modify_allocation(things.open, 2 * GRANULE)
    assert (buffer.ownership, buffer.device_id) == (Ownership.OWNED, 1)
    buffer.close()


def test_a_reservation_that_overflows_when_rounded_is_refused(device):
    with pytest.raises(OverflowError):
        VirtualMemoryResource(device, {"reserve_size": 2**63 - 1}).allocate(GRANULE)


def test_val_02_the_same_errors_when_python_drops_asserts():
    program = "import runpy, odd_input; runpy.run_path(odd_input.__file__, run_name='__main__')"
    plain = child_output(program).splitlines()
    without_asserts = child_output(program, options=["-O"]).splitlines()
    assert (plain.pop(), without_asserts.pop()) == ("asserts: on", "asserts: off")
    assert len(plain) == len(CALLS)
    assert without_asserts == plain
    assert not [line for line in plain if line.endswith(": nothing")]
    assert sys.flags.optimize == 0
