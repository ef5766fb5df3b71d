# SPDX-License-Identifier: Apache-2.0
"""Threads on which another context is current than the one that the tests run in, or none."""

import contextlib

import pytest

from cuda.bindings import driver
from support import check, race

# As parameters of tests.
PLACES = [
    "no context",
    pytest.param("another device", marks=[pytest.mark.two_devices]),
    "own context",
]


class Place:
    """Runs functions in a thread with a certain context current, and checks that it stays current."""

    def __init__(self, name):
        self.context, self.own = driver.CUcontext(0), None
        before = check(driver.cuCtxGetCurrent())
        if name == "another device":
            self.context = check(driver.cuDevicePrimaryCtxRetain(1))
        elif name == "own context":
            self.own = self.context = check(driver.cuCtxCreate(None, 0, 0))
            check(driver.cuCtxPopCurrent())
        check(driver.cuCtxSetCurrent(before))
        self.name = name

    def run(self, function):
        def there():
            check(driver.cuCtxSetCurrent(self.context))
            result = function()
            assert int(check(driver.cuCtxGetCurrent())) == int(self.context)
            return result

        (outcome,) = race(there)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self):
        if self.own is not None:
            check(driver.cuCtxDestroy(self.own))
        elif self.name == "another device":
            check(driver.cuDevicePrimaryCtxRelease(1))


@contextlib.contextmanager
def at(name, device):
    """Make a place for the block, at whose end the context of the device is current."""
    place = Place(name)
    device.set_current()
    yield place
    device.set_current()
    place.end()
