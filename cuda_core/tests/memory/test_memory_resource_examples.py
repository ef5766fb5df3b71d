# SPDX-License-Identifier: Apache-2.0
"""The examples for authors of memory resources work as they stand in the documentation, also when a free fails."""

import doctest

import pytest

from cuda.core import CUDAError, MemoryResource, Ownership
from support import given_back

pytestmark = pytest.mark.usefixtures("device")


def examples():
    return doctest.DocTestParser().get_doctest(MemoryResource.__doc__, {}, "MemoryResource", None, 0)


def run(names):
    """Run the examples; return how many there were and what differed. What they define is in ``names``."""
    said = []
    test = examples()
    test.globs = names
    results = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    return results.attempted, "".join(said)


def test_they_give_what_is_written():
    names = {}
    attempted, differences = run(names)
    assert differences == ""
    assert attempted > 10
    assert {"Counting", "WithPage"} <= names.keys()


@pytest.fixture
def defined():
    names = {}
    run(names)
    return names


@pytest.mark.provokes_refusals
@pytest.mark.parametrize(
    ("step", "kept"), [("cuMemFreeHost", True), ("cuMemFree", False)], ids=["first step", "second step"]
)
def test_the_free_of_two_steps_goes_on_where_it_stopped(defined, driver_watch, step, kept):
    resource = defined["WithPage"]()
    buffer = resource.allocate(4096)
    address = buffer.handle
    with driver_watch.fail(step, result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_UNKNOWN"):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert (address in resource.pages) == kept
    buffer.close()
    assert buffer.ownership is Ownership.RELEASED
    assert given_back(address)
    assert not resource.pages


@pytest.mark.provokes_refusals
def test_an_allocation_that_fails_half_way_leaves_nothing(defined, driver_watch):
    resource = defined["WithPage"]()
    with driver_watch.fail("cuMemAllocHost"):
        with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
            resource.allocate(4096)
    assert not resource.pages


@pytest.mark.provokes_refusals
def test_the_one_around_another_is_asked_again(defined, driver_watch):
    resource = defined["Counting"](defined["LegacyPinnedMemoryResource"]())
    buffer = resource.allocate(4096)
    with driver_watch.fail("cuMemFreeHost", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError):
            buffer.close()
    assert (buffer.ownership, len(resource.buffers)) == (Ownership.OWNED, 1)
    buffer.close()
    assert (buffer.ownership, len(resource.buffers)) == (Ownership.RELEASED, 0)
