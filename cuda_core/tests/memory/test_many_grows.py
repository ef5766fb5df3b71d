# SPDX-License-Identifier: Apache-2.0
"""Growth repeated until anything that is kept by mistake must show."""

from contextlib import ExitStack

from support import (
    GRANULE,
    address_free,
    blocked,
    fill_granules,
    free_memory,
    granules_hold,
    holds,
    place,
)

MIB = 1 << 20


def test_sixty_four_rounds_retain_nothing(resource, quiet):
    free = free_memory()
    for round_ in range(64):
        buffer = resource.allocate(64 * MIB)
        with ExitStack() as stack:
            if round_ % 2:
                stack.enter_context(blocked(buffer))
            grown = resource.modify_allocation(buffer, 128 * MIB)
        assert grown.size == 128 * MIB
        assert free_memory() == free - 128 * MIB
        grown.close()
        assert free_memory() == free, f"round {round_} retained memory"


def test_one_buffer_grows_sixty_four_times(device, quiet):
    """Something else occupies the addresses behind it every second time."""
    free = free_memory()
    buffer, resource = place(device, GRANULE, stretch=160)
    fill_granules(buffer)
    handles = [buffer.handle]
    for granules in range(2, 66):
        with ExitStack() as stack:
            if granules % 2:
                stack.enter_context(blocked(buffer))
            old = buffer
            buffer = resource.modify_allocation(old, granules * GRANULE)
            assert (buffer.handle != handles[-1]) or granules % 2 == 0
        assert old.is_closed
        handles.append(buffer.handle)
        fill_granules(buffer, first=granules - 1)
        last = granules - 1
        assert holds(buffer.handle, GRANULE, seed=0)
        assert holds(buffer.handle + last * GRANULE, GRANULE, seed=last)
        if granules % 8 == 0:
            assert granules_hold(buffer, granules)
        assert free_memory() == free - granules * GRANULE
    assert buffer.size == 65 * GRANULE
    assert granules_hold(buffer, 65)
    address = buffer.handle
    buffer.close()
    assert free_memory() == free
    assert address_free(address, 65 * GRANULE)


def test_many_small_buffers_grown_in_turn(resource):
    free = free_memory()
    buffers = [resource.allocate(GRANULE) for _ in range(16)]
    for index, buffer in enumerate(buffers):
        fill_granules(buffer, seed=100 * index)
    for granules in (2, 3, 5):
        for index, buffer in enumerate(buffers):
            before = buffer.size // GRANULE
            buffers[index] = grown = resource.modify_allocation(buffer, granules * GRANULE)
            fill_granules(grown, first=before, seed=100 * index)
    for index, buffer in enumerate(buffers):
        assert granules_hold(buffer, 5, seed=100 * index)
    assert free_memory() == free - 16 * 5 * GRANULE
    for buffer in buffers[::2] + buffers[1::2]:
        buffer.close()
    assert free_memory() == free
