# SPDX-License-Identifier: Apache-2.0
"""Every test runs on the simulated driver, and must leave as many driver objects as it found."""

import pytest

import cuda_driver_sim as sim
from sim_helpers import cu, make_pool, ok


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "simulation: needs the simulated driver; skipped in front of a real one"
    )


def pytest_collection_modifyitems(items):
    if not sim.can_hold():
        for item in items:
            if item.get_closest_marker("simulation"):
                item.add_marker(pytest.mark.skip(reason="needs the simulated driver"))


@pytest.fixture(scope="session")
def context():
    ok(cu.cuInit(0))
    return ok(cu.cuDevicePrimaryCtxRetain(0))


@pytest.fixture(autouse=True)
def clean(context):
    """Make the context of device 0 current; nothing may be left live or held afterwards."""
    ok(cu.cuCtxSetCurrent(context))
    before = sim.live()
    sim.reset()
    yield
    ok(cu.cuCtxSetCurrent(context))
    ok(cu.cuCtxSynchronize())
    assert sim.live() == before


@pytest.fixture
def stream():
    handle = ok(cu.cuStreamCreate(1))
    yield handle
    ok(cu.cuStreamDestroy(handle))


@pytest.fixture
def other_stream():
    handle = ok(cu.cuStreamCreate(1))
    yield handle
    ok(cu.cuStreamDestroy(handle))


@pytest.fixture
def pool():
    handle = make_pool()
    yield handle
    ok(cu.cuMemPoolDestroy(handle))
