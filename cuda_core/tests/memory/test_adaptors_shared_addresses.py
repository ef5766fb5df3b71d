# SPDX-License-Identifier: Apache-2.0
"""Adaptors around a resource that gives one address to several owners, and counts them."""

import itertools

import pytest

from adaptor_kinds import EVERY
from cuda.core import Buffer, LegacyPinnedMemoryResource, MemoryResource
from support import given_back, still_allocated

pytestmark = pytest.mark.usefixtures("device")


class Shared(MemoryResource):
    is_device_accessible, is_host_accessible, device_id = True, True, -1

    def __init__(self):
        self.inner, self.block, self.owners = LegacyPinnedMemoryResource(), None, []

    def allocate(self, size, *, stream=None):
        if self.block is None:
            self.block = self.inner.allocate(4096)
        self.owners.append(size)
        return Buffer.from_handle(self.block.handle, size, mr=self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.owners.remove(size)
        if not self.owners:
            self.block.close(stream)
            self.block = None


@pytest.mark.parametrize("sizes", [(64, 64, 64), (64, 128, 64)], ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_each_owner_of_an_address_frees_once(kind, sizes):
    for order in itertools.permutations(range(3)):
        shared = Shared()
        resource = EVERY[kind](shared)
        buffers = [resource.allocate(size) for size in sizes]
        address = buffers[0].handle
        left = list(sizes)
        for index in order:
            assert still_allocated(address)
            assert sorted(shared.owners) == sorted(left)
            if kind == "tracking":
                assert sorted(entry.size for entry in resource.open_allocations()) == sorted(left)
            assert buffers[index].close().name == "DONE"
            left.remove(sizes[index])
        assert (shared.owners, shared.block) == ([], None)
        assert given_back(address)
        with pytest.raises(ValueError, match="allocated nothing that is open"):
            resource.deallocate(address, 64)


@pytest.mark.parametrize("kind", EVERY)
def test_a_call_by_hand_at_what_was_never_allocated_counts_for_nothing(kind):
    resource = EVERY[kind](LegacyPinnedMemoryResource())
    with pytest.raises(ValueError, match="0xdead000"):
        resource.deallocate(0xDEAD000, 0)
    resource.deallocate(0, 64)
    if kind == "statistics":
        assert (resource.statistics.current_count, resource.statistics.current_bytes) == (0, 0)
    if kind == "limit":
        assert resource.used == 0
