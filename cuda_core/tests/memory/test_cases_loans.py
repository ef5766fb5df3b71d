# SPDX-License-Identifier: Apache-2.0
"""Failures of exports reported in the field, a test each, named by the id of its case.

The same cases with DLPack are in test_dlpack.py.
"""

import gc

import pytest

from buffer_kinds import SOURCES
from cuda.core import Buffer, CloseResult, LegacyPinnedMemoryResource, Ownership
from support import GRANULE, address_free, blocked, fill_granules, granules_hold, read, still_allocated, write

pytestmark = pytest.mark.usefixtures("device")

EXPORTS = {
    "memoryview": (memoryview, lambda export: export.release()),
    "sub-buffer": (lambda buffer: buffer[:16], lambda export: export.close()),
    "array view": (lambda buffer: buffer.array_view(), lambda export: export.close()),
}


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("kind", SOURCES)
def test_dl_02_ownership_is_not_given_away_while_somebody_looks(device, kind, name):
    source = SOURCES[kind](device)
    if name == "memoryview" and not source.at_host:
        name = "sub-buffer"
    begin, end = EXPORTS[name]
    buffer = source.allocate()
    exports = [begin(buffer), begin(buffer)]
    gc.disable()
    try:
        for export in exports:
            with pytest.raises(BufferError):
                buffer.detach()
            assert (buffer.ownership, buffer.transferred_to) == (Ownership.OWNED, None)
            end(export)
        allocation = buffer.detach()
    finally:
        gc.enable()
    assert still_allocated(allocation.handle)
    assert Buffer.adopt(allocation).close() is CloseResult.DONE


@pytest.mark.parametrize("name", ["sub-buffer", "array view"])
@pytest.mark.parametrize("grows", [1, 3])
def test_dl_03_a_grow_that_moves_leaves_a_consumer_its_addresses(resource, name, grows):
    begin, end = EXPORTS[name]
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    old, export = buffer.handle, begin(buffer)
    for granules in range(2, 2 + grows):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
        assert buffer.handle != old
    assert granules_hold(buffer, 1)
    write(old, b"written by the consumer")
    assert read(buffer.handle, 23) == b"written by the consumer"
    write(buffer.handle + 64, b"written by the owner")
    assert read(old + 64, 20) == b"written by the owner"
    assert not address_free(old, GRANULE)
    end(export)
    assert address_free(old, GRANULE)
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("offset", [1, 100, 4088])
def test_dl_04_an_export_of_a_slice_begins_at_its_offset(offset):
    with LegacyPinnedMemoryResource().allocate(4096) as buffer:
        pattern = bytes(index % 251 for index in range(4096))
        write(buffer.handle, pattern)
        with buffer[offset:] as part:
            assert part.handle == buffer.handle + offset
            with memoryview(part) as view, part.array_view() as array, part[1:] as rest:
                assert bytes(view[:4]) == pattern[offset : offset + 4]
                for interface in (array.__array_interface__, array.__cuda_array_interface__):
                    assert interface["data"][0] == buffer.handle + offset
                assert rest.handle == buffer.handle + offset + 1
                assert bytes(memoryview(rest)[:3]) == pattern[offset + 1 : offset + 4]
                gc.collect()
