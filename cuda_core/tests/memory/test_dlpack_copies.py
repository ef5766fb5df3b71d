# SPDX-License-Identifier: Apache-2.0
"""``copy=True``: the copy is as long as what was asked for, and an author's ``allocate`` that is wrong harms nobody."""

import numpy
import pytest

from buffer_kinds import SOURCES
from cuda.core import Buffer, LegacyPinnedMemoryResource, MemoryResource, OwnershipError, utils
from support import attempt, read, write

FRAME = 65536


class Copying:
    """An exporter whose consumers get copies."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.buffer.__dlpack__(**keywords, copy=True)


@pytest.mark.parametrize("kind", sorted(name for name, source in SOURCES.items() if source.built_in))
@pytest.mark.parametrize("size", [1, 100, 4096])
def test_a_copy_of_a_slice_is_as_long_as_the_slice(device, kind, size):
    """A resource may round up what it allocates; virtual memory does to 2 MiB."""
    source = SOURCES[kind](device)
    with source.allocate() as buffer:
        part = buffer[0:size]
        pattern = (bytes(range(1, 101)) * 41)[:4096]
        write(buffer.handle, pattern)
        with utils.StridedMemoryView.from_dlpack(Copying(part), stream_ptr=-1) as view:
            assert view.shape == (size,)
            assert view.ptr != buffer.handle
            assert bytes(read(view.ptr, size)) == pattern[:size]
        part.close()


class Wrong(MemoryResource):
    """Hands out pieces of one slab, the second with a mistake."""

    is_device_accessible, is_host_accessible = True, False

    def __init__(self, slab, mistake):
        self.slab, self.mistake, self.given = slab, mistake, []

    def allocate(self, size, *, stream=None):
        if self.given:
            return self.mistake(self, size)
        return self.piece(0, size)

    def piece(self, begin, size):
        self.given.append(begin)
        return Buffer.from_handle(self.slab.handle + begin, size, self)

    def deallocate(self, ptr, size, *, stream=None):
        self.given.remove(ptr - self.slab.handle)

    @property
    def device_id(self):
        return 0


def _closed(resource, size):
    buffer = resource.piece(FRAME, size)
    buffer.close()
    return buffer


def _detached(resource, size):
    allocation = resource.piece(FRAME, size).detach()
    allocation.handed_over()
    resource.given.remove(FRAME)
    return allocation


MISTAKES = {
    "too small": (lambda resource, size: resource.piece(FRAME, 64), ValueError),
    "closed": (_closed, OwnershipError),
    "None": (lambda resource, size: None, TypeError),
    "address": (lambda resource, size: resource.slab.handle + FRAME, TypeError),
    "allocation": (_detached, TypeError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_wrong_allocate_returns_is_not_written_to(device, mistake):
    """The bytes behind a piece of a slab are somebody else's, and no driver would refuse to write them."""
    function, wanted = MISTAKES[mistake]
    with LegacyPinnedMemoryResource().allocate(3 * FRAME) as slab:
        memory = numpy.frombuffer(slab, numpy.uint8)
        memory[:] = 7
        resource = Wrong(slab, function)
        with resource.allocate(FRAME) as buffer:
            memory[:FRAME] = 9
            for keywords in ({}, {"stream": 2}):
                _, error = attempt(lambda: buffer.__dlpack__(copy=True, **keywords))  # noqa: B023
                assert type(error) is wanted, error
                error = None
            device.sync()
            assert buffer.loans == 0
            assert (memory[FRAME:] == 7).all()
        assert resource.given == []
        del memory
