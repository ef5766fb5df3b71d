# SPDX-License-Identifier: Apache-2.0
"""Reports of releases that nobody could be told of: once each, and harmless whatever the program does with them."""

import gc
import sys
import warnings

import pytest

from cuda.core import CloseResult, CUDAWarning, Ownership
from python_resources import Refusing
from support import GRANULE, blocked, fill_granules, granules_hold, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def unraisable(monkeypatch):
    """What was reported as an exception that nobody could catch."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: seen.append(report.exc_type))
    return seen


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_report_that_is_an_error_does_not_take_the_grown_buffer_away(resource, driver_watch, unraisable):
    """After the commit point of a grow the new buffer is returned whatever happens, also under ``-W error``."""
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    with blocked(buffer), driver_watch.fail("cuMemUnmap"), warnings.catch_warnings():
        warnings.simplefilter("error")
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert grown.ownership is Ownership.OWNED
    assert granules_hold(grown, 1)
    assert unraisable == [CUDAWarning]
    assert grown.close() is CloseResult.DONE


def test_a_report_that_is_an_error_goes_to_the_hook_of_such_errors(unraisable):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del buffer
        gc.collect()
    assert unraisable == [CUDAWarning]
    assert resource.asked == ["refused"]
    resource.give_back(address)


def test_a_report_may_come_back_into_the_library(resource):
    """Somebody's ``showwarning`` allocates, grows and closes; no lock of this package is held meanwhile."""
    shown = []

    def show(message, category, *rest):
        shown.append(category)
        inner = resource.allocate(GRANULE)
        resource.modify_allocation(inner, 2 * GRANULE).close()
        gc.collect()

    refusing = Refusing(refusals=1)
    buffer = refusing.allocate(512)
    address = buffer.handle
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        del buffer
        gc.collect()
    assert shown == [CUDAWarning]
    refusing.give_back(address)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_report_of_a_grow_may_come_back_into_the_library(resource, driver_watch):
    shown = []

    def show(message, category, *rest):
        shown.append(category)
        inner = resource.allocate(GRANULE)
        resource.modify_allocation(inner, 2 * GRANULE).close()
        assert old.close() is CloseResult.NOTHING

    old = resource.allocate(GRANULE)
    fill_granules(old)
    with blocked(old), driver_watch.fail("cuMemUnmap"), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        new = resource.modify_allocation(old, 2 * GRANULE)
    assert shown == [CUDAWarning]
    assert granules_hold(new, 1)
    new.close()


def test_a_failure_belongs_to_the_buffer_that_failed(resource, device):
    """Nothing that is done afterwards raises somebody else's error."""
    refusing = Refusing(refusals=1)
    buffer = refusing.allocate(512)
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert len(seen) == 1
    with warnings_seen() as seen:
        for _ in range(10):
            resource.allocate(GRANULE).close()
        refusing.allocate(256).close()
        device.sync()
        gc.collect()
    assert seen == []
    refusing.give_back(address)


def test_reports_can_be_filtered_by_their_class():
    refusing = Refusing(refusals=1)
    buffer = refusing.allocate(512)
    address = buffer.handle
    with warnings_seen() as seen:
        warnings.simplefilter("ignore", CUDAWarning)
        del buffer
        gc.collect()
    assert seen == []
    refusing.give_back(address)
