# SPDX-License-Identifier: Apache-2.0
"""Python itself is out of memory: for each allocation of each operation, that one fails.

The operation then raises MemoryError or succeeds. In no case is anything lost: what a call that raised was given is
still its caller's, and closes; what a call that returned has made is whole.
"""

import contextlib
import gc
import sys
import sysconfig
import weakref

import pytest

from buffer_kinds import SOURCES
from cuda.core import (
    Buffer,
    Host,
    LegacyPinnedMemoryResource,
    MemoryResource,
    OwnershipError,
    VirtualMemoryResource,
    memory_report,
    utils,
)
from support import GRANULE, blocked, child_output, warnings_seen

short = pytest.importorskip("_testcapi", reason="this Python was built without its test module")
if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
    # Its collector walks the heaps of its allocator, which does not survive that another one is put before it.
    pytest.skip("a free-threaded Python 3.13 cannot be made to fail allocations", allow_module_level=True)

BUILT_IN = sorted(kind for kind, source in SOURCES.items() if source.built_in)
ENOUGH = 30  # allocations of an operation that went well, beyond the last failure


class Short:
    """Makes a call in which one allocation of Python's fails, the n-th behind its begin."""

    def __init__(self, number):
        self.number = number

    def __call__(self, function, *arguments, **keywords):
        """Return what the call has returned, or None where it ran out of memory."""
        short.set_nomemory(self.number, self.number + 1)
        try:
            return function(*arguments, **keywords)
        except MemoryError:
            return None
        finally:
            short.remove_mem_hooks()


def fail_each(operation):
    """Run ``operation(attempt)`` with a :class:`Short` for each n, until none fails any more.

    An operation makes one call through ``attempt``, looks at what is left, and tells whether the call has returned.
    """
    well = number = failures = 0
    while well < ENOUGH:
        number += 1
        if operation(Short(number)):
            well += 1
        else:
            failures += 1
            well = 0
    assert failures


@pytest.fixture(params=BUILT_IN)
def source(request, device):
    return SOURCES[request.param](device)


@pytest.fixture(autouse=True)
def warm():
    """Let what is made once be made before the counting begins."""
    with warnings_seen():
        pass
    Host()
    gc.collect()


def test_an_allocation_that_fails_leaves_nothing(source, stream):
    def operation(attempt):
        buffer = attempt(source.allocate, stream=stream)
        if buffer is None:
            return False
        buffer.close()
        return True

    fail_each(operation)


def test_a_close_needs_no_memory(source, stream):
    """What gives memory back must work where there is none."""
    for number in range(1, 20):
        buffer = source.allocate(stream=stream)
        assert Short(number)(buffer.close) is not None
        assert buffer.is_closed


def test_a_close_needs_no_memory_where_something_was_left_behind(source, stream):
    """A release looks whether what was left at its address ends with it."""
    allocation = source.allocate(stream=stream).detach()
    address = allocation.handle
    with warnings_seen():
        del allocation
    for number in range(1, 20):
        buffer = source.allocate(stream=stream)
        assert Short(number)(buffer.close) is not None
    assert address in [one.address for it in memory_report().resources for one in it.allocations]
    source.deallocate(address, source.size, stream=stream)
    assert address not in [one.address for it in memory_report().resources for one in it.allocations]


def test_a_detach_that_fails_leaves_the_buffer_its_memory(source, stream):
    def operation(attempt):
        buffer = source.allocate(stream=stream)
        allocation = attempt(buffer.detach)
        if allocation is None:
            assert buffer.ownership.name == "OWNED"
            buffer.close()
            return False
        Buffer.adopt(allocation).close()
        return True

    fail_each(operation)


def test_an_adoption_that_fails_leaves_the_allocation_its_memory(source, stream):
    def operation(attempt):
        allocation = source.allocate(stream=stream).detach()
        buffer = attempt(Buffer.adopt, allocation)
        if buffer is None:
            assert allocation.ownership.name == "OWNED"
            Buffer.adopt(allocation).close()
            return False
        buffer.close()
        return True

    fail_each(operation)


def test_a_move_that_fails_leaves_the_buffer_its_memory(source, stream, device):
    other = type(source)(device).resource

    def operation(attempt):
        buffer = source.allocate(stream=stream)
        moved = attempt(buffer.move_to, other)
        if moved is None:
            assert buffer.ownership.name == "OWNED"
            buffer.close()
            return False
        moved.close()
        return True

    fail_each(operation)


@pytest.mark.parametrize("how", ["in place", "moving", "lent"])
def test_a_grow_that_fails_leaves_the_buffer_what_it_was(device, how):
    """After its commit point nothing fails: what stayed claimed then could never be returned."""
    resource = VirtualMemoryResource(device)

    def operation(attempt):
        buffer = resource.allocate(GRANULE)
        part = buffer[0:16]
        if how != "lent":
            part.close()
        with blocked(buffer) if how == "moving" else contextlib.nullcontext():
            grown = attempt(resource.modify_allocation, buffer, 2 * GRANULE)
        part.close()
        if grown is None:
            assert (buffer.ownership.name, buffer.size) == ("OWNED", GRANULE)
            buffer.close()
            return False
        assert (buffer.ownership.name, grown.ownership.name) == ("TRANSFERRED", "OWNED")
        grown.close()
        return True

    fail_each(operation)


def test_a_from_handle_that_fails_has_taken_nothing(source, stream):
    resource = source.resource

    def operation(attempt):
        allocation = source.allocate(stream=stream).detach()
        address, size = allocation.handle, allocation.size
        allocation.handed_over()
        buffer = attempt(Buffer.from_handle, address, size, resource, stream=stream)
        if buffer is None:
            gc.collect()
            Buffer.from_handle(address, size, resource, stream=stream).close()
            return False
        buffer.close()
        return True

    fail_each(operation)


class Watched(MemoryResource):
    """Has each address once."""

    is_device_accessible, is_host_accessible, device_id, unique_addresses = True, False, 0, True

    def __init__(self):
        self.freed = []

    def deallocate(self, ptr, size, *, stream=None):
        self.freed.append(ptr)


def test_a_from_handle_that_fails_asks_no_author_to_free(stream):
    resource = Watched()

    def operation(attempt):
        resource.freed.clear()
        buffer = attempt(Buffer.from_handle, 0x10000, 64, resource, stream=stream)
        if buffer is None:
            gc.collect()
            assert resource.freed == []
            return False
        buffer.close()
        assert resource.freed == [0x10000]
        return True

    fail_each(operation)


def test_a_stream_that_fails_to_be_made_is_none(device):
    def operation(attempt):
        stream = attempt(device.create_stream)
        if stream is None:
            return False
        stream.close()
        return True

    fail_each(operation)


@pytest.mark.parametrize("what", ["copy_batch", "prefetch_batch"])
def test_a_batch_that_fails_ends_its_loans(device, stream, what):
    resource = SOURCES["managed pool"](device).resource
    with resource.allocate(64, stream=stream) as one, resource.allocate(64, stream=stream) as other:
        # Tuples, because some versions of Python lose a list of which they fail to make another list.
        sources, targets, places = (one,), (other,), (Host(),)

        def operation(attempt):
            done = attempt(run)
            assert (one.loans, other.loans) == (0, 0)
            return done

        def run():
            if what == "copy_batch":
                utils.copy_batch(stream, sources, targets)
            else:
                utils.prefetch_batch(stream, sources, places)
            return True

        fail_each(operation)
        stream.sync()


@pytest.mark.parametrize("export", ["memory view", "slice", "capsule", "view"])
def test_an_export_that_fails_is_no_loan(device, export):
    exports = {
        "memory view": memoryview,
        "slice": lambda buffer: buffer[0:16],
        "capsule": lambda buffer: buffer.__dlpack__(),
        "view": lambda buffer: utils.StridedMemoryView.from_buffer(buffer, (16,), itemsize=1),
    }
    with LegacyPinnedMemoryResource().allocate(4096) as buffer:

        def operation(attempt):
            made = attempt(exports[export], buffer)
            well = made is not None
            assert buffer.loans == well
            del made
            assert buffer.loans == 0
            return well

        fail_each(operation)


def test_a_collection_needs_no_memory(source, stream):
    for number in range(1, 20):
        buffer = source.allocate(stream=stream)
        reference = weakref.ref(buffer)
        with warnings_seen() as seen:
            short.set_nomemory(number, number + 1)
            try:
                del buffer
            finally:
                short.remove_mem_hooks()
        assert reference() is None
        assert seen == []


@pytest.mark.parametrize("kind", ["DeviceMemoryResource(0)", "VirtualMemoryResource(0)"])
def test_a_resource_that_fails_to_be_made_does_no_harm(kind):
    """Before, what ended the half-made object used fields that were not there yet."""
    output = child_output(
        f"""
import _testcapi
from cuda.core import DeviceMemoryResource, VirtualMemoryResource
{kind}
failed = 0
for number in range(60):
    _testcapi.set_nomemory(number, number + 1)
    try:
        {kind}
    except MemoryError:
        failed += 1
    finally:
        _testcapi.remove_mem_hooks()
print(failed > 0)  # how many there are depends on what Python keeps for reuse
"""
    )
    assert output.strip() == "True"


def test_an_index_that_fails_to_be_built_is_built_later(device, stream):
    """Half an index would call addresses unknown that have an owner."""
    for number in range(1, 60):
        resource = SOURCES["pool"](device).resource
        buffers = [resource.allocate(64, stream=stream) for _ in range(3)]
        allocation = Short(number)(buffers[0].detach)
        for buffer in buffers[1:]:
            with pytest.raises(OwnershipError, match="an open buffer owns"):
                resource.deallocate(buffer.handle, 64, stream=stream)
            buffer.close()
        (Buffer.adopt(allocation) if allocation is not None else buffers[0]).close()


def test_a_shape_that_fails_to_be_read_stays_whole():
    """Before, each of these took a reference from its caller's integer: its end came while it was in use."""
    output = child_output(
        """
import sys, _testcapi
from cuda.core._layout import _StridedLayout
extents = tuple(int(text) for text in ("4096", "5000", "6000"))
steps = tuple(int(text) for text in ("30000000", "6000", "1000"))
layout = _StridedLayout(extents, steps, 1)
calls = {
    "made": lambda: _StridedLayout(extents, steps, 1),
    "reshaped": lambda: layout.reshaped(extents),
    "permuted": lambda: layout.permuted((0, 1, 2)),
}
for name, call in calls.items():
    failed = taken = 0
    for number in range(1, 40):
        before = [sys.getrefcount(number) for number in extents + steps]
        _testcapi.set_nomemory(number, number + 1)
        try:
            call()
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        after = [sys.getrefcount(number) for number in extents + steps]
        # Some versions of Python lose a tuple of which they fail to make a list: no less is what counts.
        taken += any(new < old for new, old in zip(after, before))
    print(name, failed > 0, taken)
"""
    )
    assert output.splitlines() == ["made True 0", "reshaped True 0", "permuted True 0"]
