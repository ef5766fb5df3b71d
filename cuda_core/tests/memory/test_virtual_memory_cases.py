# SPDX-License-Identifier: Apache-2.0
"""Failures of virtual memory reported in the field, a test each, named by the id of its case."""

import gc
import itertools

import pytest

from cuda.bindings import driver
from cuda.core import (
    CloseResult,
    CUDAError,
    CUDAWarning,
    MemoryResource,
    Ownership,
    TransferredTo,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)
from support import (
    GRANULE,
    address_free,
    attempt,
    blocked,
    fill,
    fill_granules,
    foreign_reservations,
    free_memory,
    granules_hold,
    holds,
    place,
    rights_of_granules,
    simulated,
    warnings_seen,
    write,
)


def test_vmm_01_after_a_moving_grow_the_old_deleter_never_runs(resource, quiet):
    old = resource.allocate(GRANULE)
    address = old.handle
    fill(address, GRANULE, seed=1)
    with blocked(old):
        new = resource.modify_allocation(old, 2 * GRANULE)
        assert new.handle != address
        assert old.ownership is Ownership.TRANSFERRED
        assert old.transferred_to is TransferredTo.GROWN
        with warnings_seen() as seen:
            del old
        assert seen == []
        assert holds(new.handle, GRANULE, seed=1)
        assert address_free(address, GRANULE)
    assert new.close() is CloseResult.DONE


def test_vmm_02_closing_returns_the_physical_memory(resource):
    free = free_memory()
    total = int(driver.cuMemGetInfo()[2])
    size = free // 2 // GRANULE * GRANULE
    rounds = 3 * total // size + 1
    assert rounds * size > 3 * total
    for _ in range(rounds):
        buffer = resource.allocate(size)
        assert free_memory() == free - size
        buffer.close()
        assert free_memory() == free


def test_vmm_03_a_buffer_grows_as_often_as_asked(resource):
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    for granules in range(2, 6):
        address = buffer.handle
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
            assert buffer.handle != address
        fill_granules(buffer, first=granules - 1)
        assert granules_hold(buffer, granules)
    assert buffer.size == 5 * GRANULE
    buffer.close()
    assert free_memory() == free


def test_vmm_04_every_reservation_is_freed_by_its_own_pair(device, quiet):
    free = free_memory()
    buffer, resource = place(device, 2 * GRANULE, stretch=8)
    address = buffer.handle
    for granules in (3, 7):
        buffer = resource.modify_allocation(buffer, granules * GRANULE)
        assert buffer.handle == address
    assert buffer.close() is CloseResult.DONE
    assert free_memory() == free
    assert address_free(address, 7 * GRANULE), "the whole span, in one piece"


def test_vmm_05_the_address_stays_where_the_driver_grants_what_is_behind(device):
    buffer, resource = place(device, GRANULE, stretch=4)
    address = buffer.handle
    fill_granules(buffer)
    grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert grown.handle == address
    assert granules_hold(grown, 1)
    grown.close()


def test_vmm_06_addresses_reserved_ahead_keep_the_pointer_for_certain(device):
    buffer, resource = place(device, GRANULE, stretch=10, reserve_size=8 * GRANULE)
    address = buffer.handle
    assert buffer.capacity == 8 * GRANULE
    fill_granules(buffer)
    with foreign_reservations(address, 8 * GRANULE):
        if simulated():  # not every driver lets others have what is before
            assert not address_free(address - GRANULE, GRANULE)
        assert not address_free(address + 8 * GRANULE, GRANULE)
        for granules in range(2, 9):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
            assert buffer.handle == address
            fill_granules(buffer, first=granules - 1)
            assert granules_hold(buffer, granules)
        buffer = resource.modify_allocation(buffer, 9 * GRANULE)
        assert buffer.handle != address
        assert granules_hold(buffer, 8)
    buffer.close()


def test_vmm_06_without_it_no_more_than_the_size_is_reserved(device):
    buffer, _ = place(device, 2 * GRANULE, stretch=6)
    assert buffer.capacity == buffer.size
    assert address_free(buffer.handle + buffer.size, 4 * GRANULE)
    buffer.close()


def end(buffer, how):
    if how == "close":
        buffer.close()


@pytest.mark.parametrize("moving", [False, True], ids=["in place", "moved"])
@pytest.mark.parametrize("input_how", ["close", "drop"])
@pytest.mark.parametrize("result_how", ["close", "drop"])
@pytest.mark.parametrize("first", ["input", "result"])
def test_vmm_07_input_and_result_end_in_any_order(device, driver_watch, moving, input_how, result_how, first):
    free = free_memory()
    old, resource = place(device, GRANULE, stretch=4)
    address = old.handle
    fill_granules(old)
    if moving:
        with blocked(old):
            new = resource.modify_allocation(old, 2 * GRANULE)
    else:
        new = resource.modify_allocation(old, 2 * GRANULE)
    assert new is not old
    assert (new.handle != address) == moving
    assert (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
    handle = new.handle
    buffers = {"input": old, "result": new}
    del old, new

    def finish(which):
        how = input_how if which == "input" else result_how
        end(buffers[which], how)
        del buffers[which]
        gc.collect()

    if first == "input":
        with driver_watch.no_call():
            finish("input")
        assert granules_hold(buffers["result"], 1)
        assert free_memory() == free - 2 * GRANULE
        freed = driver_watch.calls_of(lambda: finish("result"))
    else:
        assert granules_hold(buffers["result"], 1)
        freed = driver_watch.calls_of(lambda: finish("result"))
        with driver_watch.no_call():
            finish("input")
    if driver_watch.sim:
        assert freed["cuMemUnmap"] == 2
        assert freed["cuMemAddressFree"] == (1 if moving else 2)
    assert free_memory() == free
    assert address_free(handle, 2 * GRANULE)


GOOD_CONFIGS = {
    "options": lambda: VirtualMemoryResourceOptions(self_access="r"),
    "dict": lambda: {"self_access": "r"},
}
BAD_CONFIGS = {
    "managed": ({"allocation_type": "managed"}, ValueError),
    "unknown access": ({"self_access": "rwx"}, ValueError),
    "unknown handle type": ({"handle_type": "posix"}, ValueError),
    "handle type of another system": ({"handle_type": "win32_kmt"}, ValueError),
    "alignment": ({"addr_align": 3}, ValueError),
    "another location": ({"location_type": "host"}, ValueError),
    "unknown location": ({"location_type": "moon"}, ValueError),
    "unknown option": ({"no_such_option": 1}, TypeError),
    "wrong type of an option": ({"reserve_size": "8"}, TypeError),
    "not options at all": (17, TypeError),
}


@pytest.mark.parametrize("moving", [False, True], ids=["in place", "moved"])
@pytest.mark.parametrize("form", GOOD_CONFIGS)
def test_vmm_08_a_config_counts_for_the_new_chunk_alone(device, moving, form):
    buffer, resource = place(device, GRANULE, stretch=6)
    own = resource.config
    fields = repr(own)
    if moving:
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, 2 * GRANULE, config=GOOD_CONFIGS[form]())
    else:
        buffer = resource.modify_allocation(buffer, 2 * GRANULE, config=GOOD_CONFIGS[form]())
    assert rights_of_granules(buffer) == [3, 1]
    assert resource.config is own
    assert repr(resource.config) == fields
    later = resource.allocate(GRANULE)
    assert rights_of_granules(later) == [3]
    buffer = resource.modify_allocation(buffer, 3 * GRANULE)
    assert rights_of_granules(buffer) == [3, 1, 3]
    buffer.close()
    later.close()


@pytest.mark.parametrize("new_size", [GRANULE, 4 * GRANULE], ids=["covered", "larger"])
@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_vmm_08_a_bad_config_is_refused_before_any_driver_call(resource, driver_watch, case, new_size):
    config, error = BAD_CONFIGS[case]
    buffer = resource.allocate(2 * GRANULE)
    fill_granules(buffer)
    address, own = buffer.handle, repr(resource.config)
    with driver_watch.no_call():
        with pytest.raises(error):
            resource.modify_allocation(buffer, new_size, config=config)
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 2 * GRANULE)
    assert repr(resource.config) == own
    assert granules_hold(buffer, 2)
    buffer.close()


class PlainDeviceMemory(MemoryResource):
    """Device memory of the plain kind, owned by Python code."""

    def allocate(self, size, *, stream=None):
        from cuda.core import Buffer

        error, address = driver.cuMemAlloc(size)
        assert error == 0
        return Buffer.from_handle(int(address), size, self)

    def deallocate(self, ptr, size, *, stream=None):
        assert driver.cuMemFree(ptr)[0] == 0

    is_device_accessible = True
    is_host_accessible = False
    device_id = 0


def test_vmm_09_a_buffer_of_another_resource_is_refused(device, resource, driver_watch):
    other = VirtualMemoryResource(device)
    buffer = other.allocate(GRANULE)
    fill_granules(buffer)
    address = buffer.handle
    for size in (GRANULE, 2 * GRANULE):
        with driver_watch.no_call():
            with pytest.raises(ValueError):
                resource.modify_allocation(buffer, size)
    assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, GRANULE)
    assert buffer.memory_resource is other
    grown = other.modify_allocation(buffer, 2 * GRANULE)
    assert granules_hold(grown, 1)
    assert grown.close() is CloseResult.DONE


def test_vmm_09_memory_that_is_not_virtual_is_refused(device, resource, driver_watch):
    plain = PlainDeviceMemory()
    buffer = plain.allocate(GRANULE)
    fill(buffer.handle, GRANULE, seed=3)
    with driver_watch.no_call():
        with pytest.raises(ValueError):
            resource.modify_allocation(buffer, 2 * GRANULE)
    assert buffer.ownership is Ownership.OWNED
    assert buffer.memory_resource is plain
    assert holds(buffer.handle, GRANULE, seed=3)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize(
    "config", [None, {"self_access": "r"}, VirtualMemoryResourceOptions(self_access="r")]
)
@pytest.mark.parametrize("size", [0, 1, GRANULE, 2 * GRANULE])
def test_vmm_10_a_request_already_covered_does_nothing(resource, driver_watch, size, config):
    buffer = resource.allocate(2 * GRANULE)
    with driver_watch.no_call():
        assert resource.modify_allocation(buffer, size, config=config) is buffer
    assert buffer.ownership is Ownership.OWNED
    assert rights_of_granules(buffer) == [3, 3]
    write(buffer.handle, b"still writable")
    buffer.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("operation", ["allocate", "grow in room", "grow adjacent", "grow by moving"])
def test_vmm_12_a_failed_map_undoes_exactly_what_was_done(device, driver_watch, operation):
    for k in itertools.count(1):
        options = {"reserve_size": 8 * GRANULE} if operation == "grow in room" else {}
        buffer, resource = place(device, GRANULE, stretch=10, **options)
        for granules in (2, 3):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
        fill_granules(buffer)
        address, live = buffer.handle, driver_watch.live()

        def act(buffer=buffer, resource=resource):
            if operation == "allocate":
                return resource.allocate(4 * GRANULE)
            if operation == "grow by moving":
                with blocked(buffer):
                    return resource.modify_allocation(buffer, 5 * GRANULE)
            return resource.modify_allocation(buffer, 5 * GRANULE)

        with driver_watch.fail("cuMemMap", nth=k) as failure:
            result, error = attempt(act, CUDAError)
        if not failure.fired:
            break
        assert error is not None, "a failed map is an error"
        assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error)
        assert "cuMemMap" in str(error)
        assert driver_watch.live() == live
        assert (buffer.ownership, buffer.handle, buffer.size) == (Ownership.OWNED, address, 3 * GRANULE)
        assert granules_hold(buffer, 3)
        buffer.close()
    result.close()
    buffer.close()
    maps = k - 1
    assert maps == (4 if operation == "grow by moving" else 1), "three old chunks and the new one"


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_vmm_13_after_the_commit_point_the_new_buffer_is_returned(resource, driver_watch):
    free = free_memory()
    old = resource.allocate(GRANULE)
    fill_granules(old)
    address = old.handle
    with blocked(old):
        # The grow asks for the adjacent addresses first, is given others, and gives those back: the failure has
        # to hit the free of the old addresses.
        rehearsal, rehearsed = resource.allocate(GRANULE), []
        with blocked(rehearsal):
            calls = driver_watch.calls_of(
                lambda: rehearsed.append(resource.modify_allocation(rehearsal, 2 * GRANULE))
            )
        rehearsed.pop().close()
        frees = calls["cuMemAddressFree"]
        with warnings_seen() as seen, driver_watch.fail("cuMemAddressFree", nth=frees) as failure:
            new = resource.modify_allocation(old, 2 * GRANULE)
        assert failure.fired == 1
        assert [warning.category for warning in seen] == [CUDAWarning]
        assert "cuMemAddressFree" in str(seen[0].message)
        assert (old.ownership, old.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.GROWN)
        assert new.ownership is Ownership.OWNED
        assert granules_hold(new, 1)
        assert not address_free(address, GRANULE), "still reserved, and not forgotten"
        moved_to = new.handle
        with warnings_seen() as seen:
            assert new.close() is CloseResult.DONE
        assert seen == []
        assert address_free(address, GRANULE)
    assert address_free(moved_to, 2 * GRANULE)
    assert free_memory() == free
