# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of graphs."""

import gc

import pytest

from cuda.core import DeviceMemoryResource
from graph_tools import SIZE, soon, trim
from memory_kinds import pattern
from support import write


@pytest.fixture(autouse=True)
def trimmed(device):
    """A driver keeps what graphs have used, and counts it as taken."""
    yield
    trim()


@pytest.fixture
def builder(device):
    """One that is building, in the mode that forbids nothing."""
    made = device.create_graph_builder().begin_building()
    yield made
    made.close()


@pytest.fixture
def pool(device):
    resource = DeviceMemoryResource(device, {})
    yield resource
    resource.close()


@pytest.fixture
def pair(pool, stream):
    """Two buffers, the first with bytes in it."""
    source, target = (pool.allocate(SIZE, stream=stream) for _ in range(2))
    stream.sync()
    write(source.handle, pattern(SIZE))
    yield source, target
    gc.collect()
    soon(lambda: source.loans == target.loans == 0, seconds=2)  # where a test has failed they are not over
    source.close(stream)
    target.close(stream)
