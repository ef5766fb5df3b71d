# SPDX-License-Identifier: Apache-2.0
"""Pausing virtual memory: the memory is the device's again, the addresses are the buffer's still (vmm-14)."""

import gc
import time

import numpy
import pytest

from captures import capture, end_capture
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from graph_tools import built, soon
from held_work import Gate
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    check,
    child_output,
    fill_granules,
    free_memory,
    granules_hold,
    in_context,
    place,
    race,
    read,
    rights_of_granules,
    still_allocated,
)

KEEP = pytest.mark.parametrize("keep", [False, True], ids=["lost", "kept"])


def grown(resource, *granules, stream=None):
    """Return a buffer that was allocated with the first size, and has grown to each of the others."""
    buffer = resource.allocate(granules[0] * GRANULE, stream=stream)
    for count in granules[1:]:
        buffer = resource.modify_allocation(buffer, count * GRANULE)
    return buffer


def pattern_of(buffer):
    fill_granules(buffer, seed=buffer.handle % 1000)
    return lambda: granules_hold(buffer, buffer.size // GRANULE, seed=buffer.handle % 1000)


# --- what pausing does --------------------------------------------------------------------------------------------


@KEEP
def test_vmm_14_the_memory_is_back_and_the_address_stays(resource, keep, quiet):
    free = free_memory()
    buffer = grown(resource, 1, 3, 4)
    whole, address = pattern_of(buffer), buffer.handle
    resource.pause(buffer, keep_contents=keep)
    assert free_memory() == free
    assert not still_allocated(address)
    assert not address_free(address, GRANULE)
    assert (buffer.handle, buffer.size, buffer.mapped_size) == (address, 4 * GRANULE, 0)
    assert buffer.is_paused
    assert (buffer.ownership, buffer.transferred_to) == (Ownership.OWNED, None)
    assert "OWNED paused" in repr(buffer)
    resource.resume(buffer)
    assert not buffer.is_paused
    assert (buffer.handle, buffer.size, buffer.mapped_size) == (address, 4 * GRANULE, 4 * GRANULE)
    assert free_memory() == free - 4 * GRANULE
    assert not keep or whole()
    again = pattern_of(buffer)
    assert again()
    assert buffer.close() is CloseResult.DONE
    assert free_memory() == free


@KEEP
def test_vmm_14_sizes_that_are_no_multiple_of_anything(resource, keep):
    buffer = resource.allocate(GRANULE + 1)
    buffer = resource.modify_allocation(buffer, 3 * GRANULE - 5)
    whole, address = pattern_of(buffer), buffer.handle
    for _ in range(3):
        resource.pause(buffer, keep_contents=keep)
        resource.resume(buffer)
        assert buffer.handle == address
        assert not keep or whole()
    buffer.close()


@KEEP
def test_vmm_14_closed_while_paused(device, keep, quiet):
    free = free_memory()
    buffer, resource = place(device, GRANULE, stretch=4)
    buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    address = buffer.handle
    resource.pause(buffer, keep_contents=keep)
    assert buffer.close() is CloseResult.DONE
    assert buffer.ownership is Ownership.RELEASED
    assert buffer.close() is CloseResult.NOTHING
    assert address_free(address, 3 * GRANULE)
    assert free_memory() == free
    with pytest.raises(OwnershipError, match="has been closed"):
        resource.resume(buffer)
    with pytest.raises(OwnershipError, match="has been closed"):
        _ = buffer.is_paused


@KEEP
def test_vmm_14_dropped_while_paused(resource, keep, quiet):
    buffer = grown(resource, 1, 2)
    resource.pause(buffer, keep_contents=keep)
    del buffer
    gc.collect()


def test_vmm_14_a_with_block_may_end_paused(resource):
    with grown(resource, 1, 2) as buffer:
        resource.pause(buffer, keep_contents=True)
    assert buffer.ownership is Ownership.RELEASED


def test_vmm_14_a_wrong_order_is_an_exception_and_changes_nothing(resource, driver_watch):
    buffer = grown(resource, 1, 2)
    whole = pattern_of(buffer)
    with driver_watch.no_call(), pytest.raises(OwnershipError, match="is not paused"):
        resource.resume(buffer)
    resource.pause(buffer, keep_contents=True)
    for keep in (False, True):
        with driver_watch.no_call(), pytest.raises(OwnershipError, match="is paused already"):
            resource.pause(buffer, keep_contents=keep)
    resource.resume(buffer)
    with driver_watch.no_call(), pytest.raises(OwnershipError, match="is not paused"):
        resource.resume(buffer)
    assert whole()
    buffer.close()


def test_an_empty_buffer_can_be_paused(resource, driver_watch):
    buffer = resource.allocate(0)
    with driver_watch.no_call():
        resource.pause(buffer, keep_contents=True)
        assert buffer.is_paused
        resource.resume(buffer)
        assert not buffer.is_paused
        resource.pause(buffer)
        assert buffer.close() is CloseResult.DONE


def test_buffers_of_other_kinds_are_never_paused(device, resource):
    with LegacyPinnedMemoryResource().allocate(64) as pinned:
        assert not pinned.is_paused
        with pytest.raises(ValueError, match="another resource"):
            resource.pause(pinned)


def test_room_that_was_reserved_stays_reserved(device):
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(reserve_size=6 * GRANULE))
    buffer = grown(resource, 1, 2)
    address = buffer.handle
    resource.pause(buffer)
    assert buffer.capacity == 6 * GRANULE
    resource.resume(buffer)
    buffer = resource.modify_allocation(buffer, 6 * GRANULE)
    assert buffer.handle == address
    whole = pattern_of(buffer)
    assert whole()
    resource.pause(buffer, keep_contents=True)
    resource.resume(buffer)
    assert whole()
    buffer.close()


@KEEP
def test_rights_come_back_chunk_by_chunk(device, keep):
    """Also where the device itself has none: the copy needs some for its time only."""
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(GRANULE)
    buffer = resource.modify_allocation(buffer, 2 * GRANULE, config={"self_access": "r"})
    buffer = resource.modify_allocation(buffer, 3 * GRANULE, config={"self_access": None})
    buffer = resource.modify_allocation(buffer, 4 * GRANULE)
    expected = rights_of_granules(buffer)
    assert expected == [3, 1, 0, 3]
    for index in (0, 3):
        check(driver.cuMemsetD8(buffer.handle + index * GRANULE, 40 + index, GRANULE))
    resource.pause(buffer, keep_contents=keep)
    resource.resume(buffer)
    assert rights_of_granules(buffer) == expected
    for index in (0, 3):
        assert not keep or read(buffer.handle + index * GRANULE, 9) == bytes([40 + index]) * 9
    buffer.close()


@KEEP
def test_rights_that_were_set_later_come_back(resource, keep):
    buffer = grown(resource, 1, 3)
    whole = pattern_of(buffer)
    resource.set_access(buffer, 0, "r")
    resource.pause(buffer, keep_contents=keep)
    resource.resume(buffer)
    assert rights_of_granules(buffer) == [1, 1, 1]
    assert not keep or whole()
    resource.set_access(buffer, 0, None)
    resource.pause(buffer, keep_contents=keep)
    resource.resume(buffer)
    assert rights_of_granules(buffer) == [0, 0, 0]
    resource.set_access(buffer, 0, "rw")
    assert not keep or whole()
    buffer.close()


@KEEP
@pytest.mark.parametrize("split", [False, True], ids=["whole chunks", "split"])
def test_a_buffer_that_was_shrunk_can_be_paused_and_grow_again(resource, keep, split):
    free = free_memory()
    buffer = grown(resource, 2, 6)
    address = buffer.handle
    buffer = resource.shrink(buffer, 3 * GRANULE, split=split)
    whole = pattern_of(buffer)
    mapped = buffer.mapped_size
    resource.pause(buffer, keep_contents=keep)
    assert free_memory() == free
    resource.resume(buffer)
    assert (buffer.handle, buffer.mapped_size) == (address, mapped)
    assert not keep or whole()
    buffer = resource.modify_allocation(buffer, 5 * GRANULE)
    assert buffer.handle == address
    resource.pause(buffer)
    buffer.close()
    assert free_memory() == free


def test_memory_that_is_mapped_ahead_is_paused_with_the_rest(device):
    free = free_memory()
    resource = VirtualMemoryResource(device, {"growth": "geometric"})
    buffer = resource.modify_allocation(resource.allocate(4 * GRANULE), 5 * GRANULE)
    mapped = buffer.mapped_size
    assert mapped > buffer.size
    whole = pattern_of(buffer)
    resource.pause(buffer, keep_contents=True)
    assert free_memory() == free
    resource.resume(buffer)
    assert buffer.mapped_size == mapped
    assert whole()
    buffer.close()


def test_an_old_buffer_that_keeps_its_addresses_keeps_from_pausing(device):
    old, resource = place(device, GRANULE, stretch=4)
    with blocked(old):
        new = resource.modify_allocation(old, 2 * GRANULE, keep_old=True)
    with pytest.raises(BufferError, match="loans"):
        resource.pause(new)
    old.close()
    resource.pause(new)
    new.close()


@KEEP
def test_memory_at_the_host_can_be_paused(device, keep):
    resource = VirtualMemoryResource(device, {"location_type": "host", "handle_type": None})
    buffer = grown(resource, 1, 2)
    view = numpy.frombuffer(buffer, dtype=numpy.uint32)
    view[:] = numpy.arange(view.size)
    with pytest.raises(BufferError, match="loans"):
        resource.pause(buffer)
    del view
    resource.pause(buffer, keep_contents=keep)
    with pytest.raises(BufferError, match="is paused"):
        memoryview(buffer)
    resource.resume(buffer)
    if keep:
        view = numpy.frombuffer(buffer, dtype=numpy.uint32)
        assert (view == numpy.arange(view.size)).all()
        del view
    buffer.close()


def test_memory_that_was_adopted_by_its_address_can_be_paused(device, resource):
    made = VirtualMemoryResource(device)
    allocation = made.allocate(2 * GRANULE).detach()
    address, size = allocation.handle, allocation.size
    allocation.handed_over()
    buffer = Buffer.from_handle(address, size, mr=resource)
    whole = pattern_of(buffer)
    resource.pause(buffer, keep_contents=True)
    resource.resume(buffer)
    assert buffer.handle == address
    assert rights_of_granules(buffer) == [3, 3]
    assert whole()
    buffer.close()


# --- a paused buffer refuses use ----------------------------------------------------------------------------------

USES = {
    "fill": lambda b, s: b.fill(1, stream=s),
    "copy_to": lambda b, s: b.copy_to(stream=s),
    "copy_from itself": lambda b, s: b.copy_from(b, stream=s),
    "slice": lambda b, s: b[:10],
    "array_view": lambda b, s: b.array_view(),
    "dlpack": lambda b, s: b.__dlpack__(stream=-1),
    "dlpack copy": lambda b, s: b.__dlpack__(stream=-1, copy=True),
    "detach": lambda b, s: b.detach(),
    "move_to": lambda b, s: b.move_to(b.memory_resource),
    "grow": lambda b, s: b.memory_resource.modify_allocation(b, b.size + GRANULE),
    "shrink": lambda b, s: b.memory_resource.shrink(b, GRANULE),
    "trim": lambda b, s: b.memory_resource.trim(b),
    "set_access": lambda b, s: b.memory_resource.set_access(b, 0, "r"),
    "get_access": lambda b, s: b.memory_resource.get_access(b, 0),
    "export": lambda b, s: b.ipc_descriptor,
}


@pytest.mark.parametrize("use", USES)
def test_a_paused_buffer_refuses_use_without_a_driver_call(resource, stream, driver_watch, use):
    buffer = grown(resource, 1, 2, stream=stream)
    whole = pattern_of(buffer)
    resource.pause(buffer, keep_contents=True)
    with pytest.raises((OwnershipError, BufferError), match="is paused"):
        USES[use](buffer, stream)
    assert (buffer.is_paused, buffer.loans, buffer.ownership) == (True, 0, Ownership.OWNED)
    resource.resume(buffer)
    assert whole()
    buffer.close()


def test_a_borrower_of_a_paused_buffer_refuses_use(resource, stream):
    buffer = grown(resource, 1, 2)
    borrowed = Buffer.from_handle(buffer.handle, GRANULE, owner=buffer)
    resource.pause(buffer)
    with pytest.raises(OwnershipError, match="is paused and cannot be filled"):
        borrowed.fill(1, stream=stream)
    resource.resume(buffer)
    borrowed.fill(1, stream=stream)
    stream.sync()
    assert read(buffer.handle, 3) == b"\1\1\1"
    borrowed.close()
    buffer.close()


def test_what_needs_no_memory_works_while_paused(device, resource, stream):
    buffer = grown(resource, 1, 2)
    resource.pause(buffer)
    buffer.record_stream(stream)
    buffer.set_deallocation_stream(stream)
    assert buffer.device_id == device.device_id
    assert buffer.memory_resource is resource
    assert (buffer.is_device_accessible, buffer.is_host_accessible, buffer.is_managed) == (True, False, False)
    assert resource.modify_allocation(buffer, GRANULE) is buffer, "a request already covered does nothing"
    assert hash(buffer) is not None
    assert buffer == buffer
    buffer.close()


# --- loans --------------------------------------------------------------------------------------------------------


def slice_of(buffer):
    return buffer[: GRANULE // 2]


def capsule_of(buffer):
    return buffer.__dlpack__(stream=-1)


def view_of(buffer):
    return buffer.array_view()


@pytest.mark.parametrize("lend", [slice_of, capsule_of, view_of])
def test_who_looks_at_the_data_refuses_a_pause(resource, lend, driver_watch):
    buffer, other = grown(resource, 1, 2), grown(resource, 1)
    whole = pattern_of(buffer)
    loan = lend(buffer)
    with pytest.raises(BufferError, match="loans"):
        resource.pause([other, buffer])
    assert not buffer.is_paused
    assert not other.is_paused
    assert whole()
    del loan
    gc.collect()
    resource.pause([other, buffer])
    buffer.close()
    other.close()


def graph_that(device, *uses):
    with built(device) as builder:
        for use in uses:
            use(builder)
    graph = builder.complete()
    builder.close()
    return graph


@KEEP
def test_a_captured_graph_is_valid_after_a_resume(device, resource, stream, keep):
    buffer = grown(resource, 1, 2, stream=stream)
    target = LegacyPinnedMemoryResource().allocate(GRANULE)
    graph = graph_that(
        device,
        lambda b: buffer[:GRANULE].fill(9, stream=b),
        lambda b: target.copy_from(buffer[:GRANULE], stream=b),
    )
    assert buffer.loans >= 1
    whole = pattern_of(buffer)
    resource.pause(buffer, keep_contents=keep)
    with pytest.raises(OwnershipError, match="is paused; resume it first"):
        graph.launch(stream)
    with pytest.raises(OwnershipError, match="is paused and cannot be filled"):
        buffer.fill(1, stream=stream)
    resource.resume(buffer)
    assert not keep or whole()
    graph.launch(stream)
    stream.sync()
    assert read(buffer.handle, GRANULE) == b"\x09" * GRANULE
    assert bytes(memoryview(target)[:5]) == b"\x09" * 5
    graph.close()
    target.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()


def test_pausing_waits_for_a_graph_that_runs_in_any_stream(device, resource, stream):
    """The buffer has recorded another stream. Without the wait the work would find no memory."""
    buffer = resource.allocate(2 * GRANULE, stream=stream)
    graph = graph_that(device, lambda b: buffer.fill(7, stream=b))
    other = device.create_stream()
    with Gate(other) as gate:
        graph.launch(other)
        done = []

        def pause():
            resource.pause(buffer, keep_contents=True)
            done.append(True)

        def open_later():
            time.sleep(0.1)
            _, error = attempt(lambda: graph.launch(stream), OwnershipError)
            seen = list(done), str(error)
            gate.open()
            return seen

        _, seen = race(in_context(pause), in_context(open_later))
    assert seen[0] == []
    assert "is paused; resume it first" in seen[1]
    assert done == [True]
    other.sync()
    assert buffer.is_paused
    resource.resume(buffer)
    assert read(buffer.handle, 2 * GRANULE) == b"\x07" * 2 * GRANULE
    graph.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()
    other.close()


def test_a_pause_that_cannot_wait_for_a_graph_changes_nothing(device, resource, stream):
    """The stream of the last launch is being captured, and must not be waited for."""
    buffer = resource.allocate(2 * GRANULE, stream=stream)
    graph = graph_that(device, lambda b: buffer.fill(7, stream=b))
    other = device.create_stream()
    graph.launch(other)
    other.sync()
    capture(other)
    with pytest.raises(CUDAError):
        resource.pause(buffer, keep_contents=True)
    end_capture(other)
    assert not buffer.is_paused
    graph.launch(stream)
    stream.sync()
    resource.pause(buffer)
    resource.resume(buffer)
    graph.launch(stream)
    stream.sync()
    graph.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()
    other.close()


def test_of_racing_pauses_and_launches_none_finds_no_memory(device, resource, stream):
    """A launch that comes too late is refused; one that came before is waited for."""
    buffer = resource.allocate(2 * GRANULE, stream=stream)
    graph = graph_that(device, lambda b: buffer.fill(5, stream=b))
    streams = [device.create_stream() for _ in range(2)]

    def launch(other):
        device.set_current()
        refused = 0
        for _ in range(200):
            _, error = attempt(lambda: graph.launch(other), OwnershipError)
            refused += error is not None
        return refused

    def pause():
        device.set_current()
        for _ in range(40):
            resource.pause(buffer)
            resource.resume(buffer)
        return 0

    launched = race(lambda: launch(streams[0]), lambda: launch(streams[1]), pause)
    assert all(isinstance(refused, int) for refused in launched)
    for each in streams:
        each.sync()  # the context has met no fault
        each.close()
    graph.close()
    assert soon(lambda: buffer.loans == 0)
    buffer.close()


def test_a_buffer_with_a_graph_may_be_closed_while_paused(device, resource, stream, quiet):
    free = free_memory()
    buffer = grown(resource, 1, 2, stream=stream)
    graph = graph_that(device, lambda b: buffer.fill(9, stream=b))
    resource.pause(buffer, keep_contents=True)
    address = buffer.handle
    assert buffer.close() is CloseResult.LENT
    assert buffer.transferred_to is TransferredTo.LOANS
    assert not address_free(address, GRANULE)
    with pytest.raises(OwnershipError, match="paused"):
        graph.launch(stream)
    graph.close()
    assert soon(lambda: address_free(address, 2 * GRANULE))
    assert free_memory() == free


def test_a_slice_that_only_a_graph_uses_does_not_keep_from_pausing(device, resource, stream):
    buffer = grown(resource, 2, stream=stream)
    part = buffer[GRANULE:]
    graph = graph_that(device, lambda b: part.fill(9, stream=b))
    with pytest.raises(BufferError, match="loans"):
        resource.pause(buffer)
    part.close()
    resource.pause(buffer)
    resource.resume(buffer)
    graph.launch(stream)
    stream.sync()
    assert read(buffer.handle + GRANULE, GRANULE) == b"\x09" * GRANULE
    assert buffer.close() is CloseResult.LENT
    graph.close()


def test_a_slice_stays_valid_for_its_graph_when_all_else_is_closed(device, resource, stream):
    buffer = grown(resource, 2, stream=stream)
    part = buffer[GRANULE:]
    address = part.handle
    graph = graph_that(device, lambda b: part.fill(9, stream=b))
    part.close()
    assert buffer.close() is CloseResult.LENT
    graph.launch(stream)
    stream.sync()
    assert read(address, GRANULE) == b"\x09" * GRANULE
    graph.close()
    assert soon(lambda: not still_allocated(address))


def test_an_updated_graph_asks_for_the_memory_of_its_update(device, resource, stream):
    one, other = grown(resource, 1, stream=stream), grown(resource, 1, stream=stream)
    graph = graph_that(device, lambda b: one.fill(1, stream=b))
    with built(device) as builder:
        other.fill(2, stream=builder)
    graph.update(builder)
    builder.close()
    assert soon(lambda: one.loans == 0)
    resource.pause(one)
    graph.launch(stream)
    stream.sync()
    assert read(other.handle, 4) == b"\2\2\2\2"
    resource.pause(other)
    with pytest.raises(OwnershipError, match="paused"):
        graph.launch(stream)
    graph.close()
    one.close()
    other.close()


def test_addresses_that_a_graph_has_from_before_a_grow_keep_from_pausing(device, stream):
    buffer, resource = place(device, GRANULE, stretch=4)
    graph = graph_that(device, lambda b: buffer.fill(9, stream=b))
    with blocked(buffer):
        moved = resource.modify_allocation(buffer, 2 * GRANULE)
    assert moved.handle != buffer.handle
    with pytest.raises(BufferError, match="addresses that it had before a grow"):
        resource.pause(moved)
    graph.close()
    assert soon(lambda: moved.loans == 0)
    free = free_memory()
    resource.pause(moved)
    assert free_memory() == free + 2 * GRANULE
    moved.close()


# --- several at a time --------------------------------------------------------------------------------------------


@KEEP
def test_several_are_paused_and_resumed_together(resource, keep):
    free = free_memory()
    buffers = [grown(resource, 1, 2), grown(resource, 3), resource.allocate(0), grown(resource, 1, 2, 5)]
    checks = [pattern_of(buffer) for buffer in buffers]
    resource.pause((buffer for buffer in buffers), keep_contents=keep)
    assert all(buffer.is_paused for buffer in buffers)
    assert free_memory() == free
    resource.resume(buffers)
    assert not any(buffer.is_paused for buffer in buffers)
    assert not keep or all(check() for check in checks)
    for buffer in buffers:
        buffer.close()


def test_none_is_paused_where_one_cannot_be(device, resource, driver_watch):
    one, two = grown(resource, 1), grown(resource, 1, 2)
    elsewhere, closed = grown(VirtualMemoryResource(device), 1), grown(resource, 1)
    borrowed = Buffer.from_handle(one.handle, GRANULE, owner=one)
    closed.close()
    whole = pattern_of(one), pattern_of(two)
    for wrong, kind, text in (
        ([one, two, elsewhere], ValueError, "another resource"),
        ([one, closed], OwnershipError, "has been closed"),
        ([one, borrowed], OwnershipError, "BORROWED"),
        ([one, two, one], ValueError, "given twice"),
        ([one, None], TypeError, "must be a Buffer"),
        ([one, 5], TypeError, "must be a Buffer"),
        (None, TypeError, "an iterable"),
        (7, TypeError, "an iterable"),
        ("ab", TypeError, "must be a Buffer"),
    ):
        for operation in (resource.pause, resource.resume):
            with driver_watch.no_call(), pytest.raises(kind, match=text):
                operation(wrong)
    for value in (1, None, "yes", 0):
        with driver_watch.no_call(), pytest.raises(TypeError, match="keep_contents must be True or False"):
            resource.pause(one, keep_contents=value)
    assert [each.is_paused for each in (one, two, elsewhere)] == [False] * 3
    with driver_watch.no_call():
        resource.pause([])
        resource.resume([])
    resource.pause(two)
    for operation, text in ((resource.pause, "paused already"), (resource.resume, "not paused")):
        with driver_watch.no_call(), pytest.raises(OwnershipError, match=text):
            operation([one, two])
    assert (one.is_paused, two.is_paused) == (False, True)
    assert whole[0]()
    for buffer in (borrowed, one, two, elsewhere):
        buffer.close()


def test_a_resource_that_was_not_made_pauses_nothing():
    class Forgetful(VirtualMemoryResource):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError, match="was not called"):
        Forgetful().pause([])


def test_a_subclass_is_asked_to_free_what_was_paused(device):
    asked = []

    class Watching(VirtualMemoryResource):
        def deallocate(self, ptr, size, *, stream=None):
            asked.append(ptr)
            super().deallocate(ptr, size, stream=stream)

    resource = Watching(device)
    buffer = grown(resource, 1, 2)
    address = buffer.handle
    resource.pause(buffer, keep_contents=True)
    buffer.close()
    assert asked == [address]


# --- order --------------------------------------------------------------------------------------------------------


def test_pausing_waits_for_the_recorded_streams(device, resource, stream):
    buffer, other = grown(resource, 1, 2, stream=stream), device.create_stream()
    buffer.record_stream(other)
    for each in (stream, other):
        with Gate(each) as gate:
            buffer.fill(3, stream=each)
            done = []

            def pause(done=done):
                resource.pause(buffer, keep_contents=True)
                done.append(buffer.is_paused)

            def open_later(gate=gate, done=done):
                time.sleep(0.1)
                seen = list(done)
                gate.open()
                return seen

            _, seen = race(in_context(pause), in_context(open_later))
            assert seen == []
            assert done == [True]
        resource.resume(buffer)
        assert read(buffer.handle, 8) == b"\3" * 8
    other.close()
    buffer.close()


def test_a_capturing_stream_is_refused_and_the_capture_goes_on(device, resource, stream, driver_watch):
    buffer, other = grown(resource, 1, stream=stream), grown(resource, 1, 2)
    whole = pattern_of(other)
    capture(stream)
    with pytest.raises(CUDAError, match="is being captured"):
        resource.pause([other, buffer])
    assert (other.is_paused, buffer.is_paused) == (False, False)
    end_capture(stream)
    assert whole()
    resource.pause([other, buffer])
    buffer.close()
    other.close()


@KEEP
@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_pausing_and_resuming_disturb_no_capture_of_this_thread(device, resource, stream, keep, mode):
    buffer = grown(resource, 1, 2, stream=device.create_stream())
    whole = pattern_of(buffer)
    capture(stream, mode)
    resource.pause(buffer, keep_contents=keep)
    resource.resume(buffer)
    end_capture(stream)
    assert not keep or whole()
    buffer.close()


def test_no_current_context_is_needed_and_none_is_left(device, resource):
    buffer = grown(resource, 1, 2)
    whole = pattern_of(buffer)
    before = check(driver.cuCtxPopCurrent())
    try:
        resource.pause(buffer, keep_contents=True)
        assert int(check(driver.cuCtxGetCurrent())) == 0
        resource.resume(buffer)
        assert int(check(driver.cuCtxGetCurrent())) == 0
    finally:
        check(driver.cuCtxSetCurrent(before))
    assert whole()
    buffer.close()


# --- threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_of_racing_pauses_and_closes_each_ends_well(resource, keep):
    free = free_memory()
    for _ in range(30):
        one, two = grown(resource, 1), grown(resource, 1, 2)
        outcomes = race(
            lambda one=one, two=two: resource.pause([one, two], keep_contents=keep),
            lambda one=one, two=two: resource.pause([two, one]),
            two.close,
        )
        for outcome in outcomes[:2]:
            assert outcome is None or isinstance(outcome, OwnershipError), outcome
        assert outcomes[2] in (CloseResult.DONE, CloseResult.IN_PROGRESS) or isinstance(
            outcomes[2], OwnershipError
        )
        two.close()
        paused = one.is_paused
        assert sum(outcome is None for outcome in outcomes[:2]) == paused
        one.close()
    assert free_memory() == free


def test_of_racing_pauses_and_loans_one_wins(resource):
    for _ in range(60):
        buffer = grown(resource, 1)
        part, paused = race(
            lambda buffer=buffer: buffer[:8], lambda buffer=buffer: attempt(lambda: resource.pause(buffer))
        )
        lent = isinstance(part, Buffer)
        assert lent or isinstance(part, OwnershipError), part
        if lent:
            assert not buffer.is_paused
            assert isinstance(paused[1], BufferError)
            part.close()
        else:
            assert buffer.is_paused or isinstance(paused[1], (OwnershipError, BufferError))
        buffer.close()


def test_of_racing_resumes_one_wins(resource):
    for _ in range(30):
        buffer = grown(resource, 1, 2)
        whole = pattern_of(buffer)
        resource.pause(buffer, keep_contents=True)
        outcomes = race(*[lambda buffer=buffer: resource.resume(buffer)] * 3)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert all(outcome is None or isinstance(outcome, OwnershipError) for outcome in outcomes)
        assert whole()
        buffer.close()


# --- exit, fork ---------------------------------------------------------------------------------------------------


def test_paused_buffers_alive_at_exit_are_silent():
    output = child_output(
        """
from cuda.core import Device, VirtualMemoryResource
device = Device(0)
device.set_current()
resource = VirtualMemoryResource(device)
kept = [resource.allocate(4 << 20) for _ in range(3)]
resource.pause(kept[:2], keep_contents=True)
resource.pause(kept[2])
print([buffer.is_paused for buffer in kept])
"""
    )
    assert output.strip() == "[True, True, True]"


def test_in_a_forked_child_a_paused_buffer_is_lost():
    output = child_output(
        """
import os
import warnings
from cuda.core import Device, OwnershipError, VirtualMemoryResource
warnings.filterwarnings("ignore", category=DeprecationWarning)  # a fork beside the driver's threads is what is tested
device = Device(0)
device.set_current()
resource = VirtualMemoryResource(device)
buffer = resource.allocate(4 << 20)
resource.pause(buffer, keep_contents=True)
child = os.fork()
if not child:
    for use in (resource.resume, resource.pause):
        try:
            use(buffer)
            os._exit(1)
        except OwnershipError as error:
            if "forked" not in str(error):
                os._exit(2)
    buffer.close()
    del buffer
    os._exit(0)
print(os.waitpid(child, 0)[1])
resource.resume(buffer)
buffer.close()
"""
    )
    assert output.strip() == "0"
