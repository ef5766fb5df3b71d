# SPDX-License-Identifier: Apache-2.0
"""``release_on_collection``: memory that a collection must not free, because its free is somebody's decision."""

import gc

import pytest

from buffer_kinds import BUILT_IN, SOURCES, WITH_RESOURCE, free_raw
from cuda.core import Buffer, CloseResult, CUDAWarning, Ownership, OwnershipError
from cuda.core._memory._queue import drain
from python_resources import Plain
from support import GRANULE, blocked, child_output, free_memory, race, still_allocated, warnings_seen

pytestmark = pytest.mark.usefixtures("device")


class Collective(Plain):
    """Its frees are collective: every process must make them at the same place."""

    release_on_collection = False


def held_by_hand(resource):
    for address in list(resource.held):
        resource.give_back(address)


def test_it_is_true_by_default(device):
    for kind in SOURCES:
        buffer = SOURCES[kind](device).allocate()
        assert buffer.release_on_collection is True
        buffer.close()


@pytest.mark.parametrize("how", ["drop", "cycle", "thread"])
@pytest.mark.parametrize("said", ["class", "instance", "buffer"])
def test_a_collection_reports_and_does_not_free(said, how):
    resource = Collective() if said == "class" else Plain()
    if said == "instance":
        resource.release_on_collection = False
    buffer = resource.allocate(512)
    if said == "buffer":
        buffer.release_on_collection = False
    assert buffer.release_on_collection is False
    address = buffer.handle
    with warnings_seen() as seen:
        box = [buffer]
        del buffer
        if how == "cycle":
            box.append(box)
            del box
            gc.collect()
        elif how == "thread":
            race(box.clear)
        else:
            box.clear()
        gc.collect()
    assert [w.category for w in seen] == [CUDAWarning]
    assert hex(address) in str(seen[0].message)
    assert "512" in str(seen[0].message)
    assert resource.asked == []
    assert still_allocated(address)
    held_by_hand(resource)


@pytest.mark.parametrize("how", ["close", "no wait", "with", "with that raises"])
def test_an_explicit_end_is_unaffected(how):
    resource = Collective()
    buffer = resource.allocate(512)
    with warnings_seen() as seen:
        if how == "close":
            assert buffer.close() is CloseResult.DONE
        elif how == "no wait":
            assert buffer.close(wait=False) is CloseResult.DONE
        elif how == "with":
            with buffer:
                pass
        else:
            with pytest.raises(KeyError), buffer:
                raise KeyError
        assert buffer.ownership is Ownership.RELEASED
        del buffer
        gc.collect()
    assert seen == []
    assert len(resource.asked) == 1


def test_a_buffer_can_be_allowed_again():
    resource = Plain()
    buffer = resource.allocate(512)
    buffer.release_on_collection = False
    buffer.release_on_collection = True
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert seen == []
    assert len(resource.asked) == 1


def test_what_was_given_away_is_not_reported():
    resource = Collective()
    buffer = resource.allocate(512)
    allocation = buffer.detach()
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert seen == []
    buffer = Buffer.adopt(allocation)
    assert buffer.release_on_collection is False
    buffer.close()


@pytest.mark.parametrize("how", ["grow", "moving grow", "detach", "move"])
def test_what_a_buffer_says_goes_with_the_allocation(device, resource, how):
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    buffer.release_on_collection = False
    if how == "grow":
        buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    elif how == "moving grow":
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE)
    elif how == "detach":
        buffer = Buffer.adopt(buffer.detach())
    else:
        buffer = buffer.move_to(SOURCES["virtual"](device).resource)
    assert buffer.release_on_collection is False
    buffer.close()
    assert free_memory() == free


def test_a_failed_explicit_close_still_tells_the_collector_nothing_else():
    """Reported once for each allocation, whatever the reasons."""

    class Failing(Collective):
        def deallocate(self, ptr, size, *, stream=None):
            raise LookupError("not now")

    resource = Failing()
    buffer = resource.allocate(512)
    with pytest.raises(LookupError):
        buffer.close()
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert len(seen) == 1
    held_by_hand(resource)


@pytest.mark.parametrize("wrong", ["closed", "transferred"])
def test_a_buffer_that_has_ended_cannot_be_told(wrong):
    buffer = Plain().allocate(512)
    after = buffer.detach() if wrong == "transferred" else buffer.close()
    with pytest.raises(OwnershipError, match="Buffer has been closed"):
        buffer.release_on_collection = False
    if wrong == "transferred":
        Buffer.adopt(after).close()


def test_a_borrowed_buffer_has_nothing_to_free():
    buffer = Buffer.from_handle(4096, 16, owner=object())
    buffer.release_on_collection = False
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert seen == []


@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_a_loan_that_ends_after_an_explicit_close_frees(device, kind):
    """The close was explicit; when the last loan ends, whoever ends it, the decision was made."""
    source = SOURCES[kind](device)
    buffer = source.allocate()
    buffer.release_on_collection = False
    address = buffer.handle
    part = buffer[0:16]
    assert buffer.close() is CloseResult.LENT
    with warnings_seen() as seen:
        del part, buffer
        gc.collect()
    assert seen == []
    assert drain(20)  # a collection never waits: the memory may go back by the reaper
    assert not still_allocated(address)


def test_a_lent_buffer_that_is_dropped_is_not_freed_by_the_end_of_the_loan():
    """Nobody has closed it: the end of the loan is the collection of the buffer."""
    resource = Collective()
    buffer = resource.allocate(512)
    view = buffer.array_view()
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
        gc.collect()
        del view
        gc.collect()
    assert len(seen) == 1
    assert resource.asked == []
    assert still_allocated(address)
    held_by_hand(resource)


KEPT = """
import gc, sys, warnings
from buffer_kinds import SOURCES
from support import still_allocated
from cuda.core import CUDAWarning, Device
device = Device(0)
device.set_current()
source = SOURCES[sys.argv[1]](device)
if sys.argv[2] == "subclass":
    class Kept(type(source.resource)):
        release_on_collection = False
    resource = Kept(*source.arguments)
else:
    resource = source.resource
buffer = source.allocate(resource=resource)
if sys.argv[2] == "buffer":
    buffer.release_on_collection = False
address = buffer.handle
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    del buffer
    gc.collect()
print([w.category.__name__ for w in seen], hex(address) in str(seen[0].message), still_allocated(address))
kept = source.allocate(resource=resource)
kept.release_on_collection = False
"""


@pytest.mark.parametrize("said", ["buffer", "subclass"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_built_in_memory_that_a_collection_keeps(kind, said):
    """In a child, because it stays allocated; it ends silently with one more such buffer alive."""
    assert child_output(KEPT, kind, said) == "['CUDAWarning'] True True\n"


def test_memory_that_was_kept_can_be_freed_by_hand(device):
    source = SOURCES["python"](device)
    buffer = source.allocate()
    buffer.release_on_collection = False
    address, size = buffer.handle, buffer.size
    with warnings_seen() as seen:
        del buffer
        gc.collect()
    assert len(seen) == 1
    free_raw("python", address, size)
