# SPDX-License-Identifier: Apache-2.0
"""``memory_report`` has what is still allocated though its buffer is gone: queued, lent, kept, failed, or dropped."""

import gc
import os
import threading
from typing import ClassVar

import pytest

from buffer_kinds import BUILT_IN, SOURCES, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CUDAWarning,
    LegacyPinnedMemoryResource,
    MemoryResource,
    VirtualMemoryResource,
)
from cuda.core._memory import _left_behind
from cuda.core._memory._queue import drain
from cuda.core.adaptors import MemoryResourceAdaptor
from held_work import Gate
from python_resources import Plain, Refusing
from report_tools import begin_report, report
from support import GRANULE, check, child_output, given_back, still_allocated, warnings_seen


@pytest.fixture(autouse=True)
def begin_here():
    begin_report()


@pytest.fixture(params=sorted(SOURCES))
def source(request, device):
    return SOURCES[request.param](device)


@pytest.fixture(params=sorted(WITH_RESOURCE))
def with_resource(request, device):
    return SOURCES[request.param](device)


def seen():
    """Return (size, state, failed) of each allocation of the report, the queue's included."""
    now = report()
    found = [(one.size, one.state, one.failed) for it in now.resources for one in it.allocations]
    return found + [(one.size, one.state, False) for one in now.queued]


def by_hand(source, address):
    """Free as a program does that has the address and the size."""
    source.deallocate(address, source.size)


def test_kept_by_the_rule_of_its_resource(device):
    resource = Plain()
    resource.release_on_collection = False
    buffer = resource.allocate(512)
    address = buffer.handle
    with warnings_seen() as warnings:
        del buffer
        gc.collect()
    assert len(warnings) == 1
    (found,) = report().resources
    assert (found.resource, found.resource_id, found.device_id) == ("Plain", id(resource), 0)
    (one,) = found.allocations
    assert (one.address, one.size, one.state, one.failed, one.loans) == (address, 512, "KEPT", False, 0)
    assert "KEPT" in str(report())
    assert report().to_dict()["resources"][0]["allocations"][0]["state"] == "KEPT"
    with Buffer.from_handle(address, 512, mr=resource):
        assert seen() == [(512, "OWNED", False)]
    assert seen() == []


def test_kept_by_the_rule_of_the_buffer(source):
    buffer = source.allocate()
    address = buffer.handle
    buffer.release_on_collection = False
    with warnings_seen() as warnings:
        del buffer
        gc.collect()
    assert len(warnings) == 1
    assert still_allocated(address)
    assert seen() == [(source.size, "KEPT", False)]
    if source.resource is None:
        check(driver.cuMemFree(address))
    else:
        by_hand(source, address)
    assert given_back(address)
    if source.built_in:
        assert seen() == []
    _left_behind.end(address)  # a resource that says nothing of a call by hand


REFUSED = """
import gc, sys, warnings
import cuda_driver_sim as sim
sim.activate()
from buffer_kinds import FREES, SOURCES
from cuda.core import Device, memory_report
from cuda.core._memory._queue import drain
warnings.simplefilter("ignore")
device = Device(0)
device.set_current()
source = SOURCES[sys.argv[1]](device)
buffer = source.allocate()
size = buffer.size
with sim.fail(FREES[source.name], sticky=True, result="CUDA_ERROR_UNKNOWN"):
    del buffer
    gc.collect()
    drain(20)
seen = memory_report()
print(seen.count, seen.size == size)
print(*[one.state for one in seen.queued], *[one.state for it in seen.resources for one in it.allocations])
"""


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", sorted(BUILT_IN))
def test_dropped_where_the_driver_refuses_the_free(kind):
    """In a process of its own: what a collection was refused is never tried again."""
    count, states = child_output(REFUSED, kind).splitlines()
    assert count == "1 True"
    assert states in ("DROPPED", "GIVEN UP")


def test_dropped_where_deallocate_raises(device):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with warnings_seen() as warnings:
        del buffer
        gc.collect()
    assert [one.category for one in warnings] == [CUDAWarning]
    assert seen() == [(512, "DROPPED", True)]
    assert "DROPPED, failed" in str(report())
    Buffer.from_handle(address, 512, mr=resource).close()
    assert seen() == []


def test_dropped_after_a_close_that_failed(device):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    with pytest.raises(LookupError):
        buffer.close()
    with warnings_seen():
        del buffer
        gc.collect()
    assert seen() == [(512, "DROPPED", True)]
    Buffer.from_handle(address, 512, mr=resource).close()
    assert seen() == []


def test_a_last_loan_whose_free_failed(device):
    resource = Refusing(refusals=1)
    buffer = resource.allocate(512)
    address = buffer.handle
    part = buffer[:64]
    buffer.close()
    del buffer
    assert seen() == [(512, "LENT", False)]
    with warnings_seen():
        part.close()
        del part
        gc.collect()
    assert [(size, failed) for size, _, failed in seen()] == [(512, True)]
    Buffer.from_handle(address, 512, mr=resource).close()
    assert seen() == []


def test_an_allocation_that_was_dropped(with_resource):
    source = with_resource
    allocation = source.allocate().detach()
    address = allocation.handle
    with warnings_seen() as warnings:
        del allocation
        gc.collect()
    assert len(warnings) == 1
    assert seen() == [(source.size, "DROPPED", False)]
    by_hand(source, address)
    if source.built_in:
        assert seen() == []
    _left_behind.end(address)


def test_what_was_handed_over_is_somebody_elses(with_resource):
    source = with_resource
    allocation = source.allocate().detach()
    address = allocation.handle
    allocation.handed_over()
    del allocation
    assert seen() == []
    by_hand(source, address)


def test_lent_and_dropped(source):
    buffer = source.allocate()
    part = buffer[:64]
    buffer.close()
    del buffer
    gc.collect()
    assert seen() == [(source.size, "LENT", False)]
    part.close()
    drain(20)
    assert seen() == []


def test_dropped_while_it_is_lent(source):
    buffer = source.allocate()
    part = buffer[:64]
    del buffer
    gc.collect()
    assert [(size, failed) for size, _, failed in seen()] == [(source.size, False)]
    part.close()
    del part
    gc.collect()
    drain(20)
    assert seen() == []


def test_queued_and_dropped(device, stream):
    buffer = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
    with Gate(stream):
        del buffer
        gc.collect()
        assert seen() == [(GRANULE, "WAITING", False)]
    assert drain(20)
    assert seen() == []


def test_a_new_owner_of_the_address_ends_it(device):
    resource = LegacyPinnedMemoryResource()
    allocation = resource.allocate(64).detach()
    address = allocation.handle
    with warnings_seen():
        del allocation
    assert seen() == [(64, "DROPPED", False)]
    buffer = Buffer.from_handle(address, 64, mr=resource)
    assert seen() == [(64, "OWNED", False)]
    buffer.close()
    assert seen() == []


def test_what_an_adaptor_kept_goes_with_it(device):
    """The adaptor's buffer was dropped; the inner one is the adaptor's, and returns the memory when that goes."""
    adaptor = MemoryResourceAdaptor(LegacyPinnedMemoryResource())
    buffer = adaptor.allocate(64)
    buffer.release_on_collection = False
    with warnings_seen():
        del buffer
    assert sorted(state for _, state, _ in seen()) == ["KEPT", "OWNED"]
    del adaptor
    gc.collect()
    assert seen() == []


def test_it_keeps_nothing_alive_and_knows_a_resource_that_is_gone(device):
    resource = Refusing(refusals=1)
    number = id(resource)
    buffer = resource.allocate(512)
    address = buffer.handle
    with warnings_seen():
        del buffer
    held = resource.held
    del resource
    gc.collect()
    (found,) = report().resources
    assert (found.resource, found.resource_id, found.size) == ("Refusing", number, 512)
    other = Plain()
    other.held = held
    Buffer.from_handle(address, 512, mr=other).close()
    assert seen() == []


CHILD = """
import os, warnings
warnings.simplefilter("ignore")
from cuda.core import Device, LegacyPinnedMemoryResource, memory_report
Device(0).set_current()
allocation = LegacyPinnedMemoryResource().allocate(64).detach()
del allocation
print(memory_report().count, flush=True)
pid = os.fork()
if not pid:
    print(memory_report().count, flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_has_nothing_of_the_parents():
    assert child_output(CHILD).split() == ["1", "0"]


def test_an_earlier_free_of_the_address_does_not_end_the_row(stream):
    """A deallocate may return late: by then the address is another allocation's, which may have been left behind."""
    freed, go = threading.Event(), threading.Event()

    class Late(MemoryResource):
        is_device_accessible, is_host_accessible, device_id = False, True, -1
        release_on_collection = False
        addresses: ClassVar[list] = [0x100000]

        def allocate(self, size, *, stream=None):
            return Buffer.from_handle(self.addresses.pop(), size, mr=self, stream=stream)

        def deallocate(self, ptr, size, *, stream=None):
            self.addresses.append(ptr)
            freed.set()
            assert go.wait(30)

    resource = Late()
    first = resource.allocate(64, stream=stream)
    closing = threading.Thread(target=first.close, daemon=True)
    closing.start()
    assert freed.wait(30)
    second = resource.allocate(64, stream=stream)
    with warnings_seen():
        del second
        gc.collect()
    assert (64, "KEPT", False) in seen()
    go.set()
    closing.join(30)
    assert seen() == [(64, "KEPT", False)]
    _left_behind.end(0x100000)


def test_what_was_left_and_freed_does_not_gather(device, stream):
    resource = LegacyPinnedMemoryResource()
    addresses = []
    with warnings_seen():
        for _ in range(500):
            buffer = resource.allocate(64, stream=stream)
            buffer.release_on_collection = False
            addresses.append(buffer.handle)
            del buffer
        for address in addresses:
            resource.deallocate(address, 64)
        for _ in range(2):  # at one address again and again
            last = resource.allocate(64, stream=stream)
            last.release_on_collection = False
            address = last.handle
            del last
            resource.deallocate(address, 64)
    assert len(_left_behind.entries) < 100
