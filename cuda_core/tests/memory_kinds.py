# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind that bytes can be copied to and from, as open buffers.

Beside the kinds of `buffer_kinds`: managed memory, memory that somebody else owns, and ordinary memory of the host.
"""

import ctypes

from buffer_kinds import SOURCES
from cuda.bindings import driver
from cuda.core import Buffer
from support import GRANULE, check, read, write

SIZE = GRANULE  # one that every kind can have


class _Owner:
    """Gives its memory back when it is collected."""

    def __init__(self, size):
        self.address = int(check(driver.cuMemAlloc(size)))

    def __del__(self):
        check(driver.cuMemFree(self.address))


def _managed(size):
    address = int(check(driver.cuMemAllocManaged(size, 1)))
    return Buffer.from_handle(
        address, size, deallocate=lambda ptr, size, stream: check(driver.cuMemFree(ptr))
    )


def _borrowed(size):
    owner = _Owner(size)
    return Buffer.from_handle(owner.address, size, owner=owner)


def _host(size):
    memory = ctypes.create_string_buffer(size + 8)
    address = -(-ctypes.addressof(memory) // 8) * 8
    return Buffer.from_handle(address, size, owner=memory)


def _slice(size):
    whole = SOURCES["virtual"](_device()).allocate(size + GRANULE)
    part = whole[4096 : 4096 + size]
    whole.close()  # the slice keeps the memory
    return part


def _device():
    from cuda.core import Device

    return Device(0)


def _of_source(name):
    return lambda size: SOURCES[name](_device()).allocate(size)


KINDS = {
    **{name: _of_source(name) for name in SOURCES},
    "managed": _managed,
    "borrowed": _borrowed,
    "slice": _slice,
    "host": _host,
}


def put(buffer, data):
    """Write to memory of any kind, without the package."""
    if buffer.is_host_accessible:
        ctypes.memmove(buffer.handle, bytes(data), len(data))
    else:
        write(buffer.handle, data)


def get(buffer):
    """Read memory of any kind, without the package."""
    return (
        ctypes.string_at(buffer.handle, buffer.size)
        if buffer.is_host_accessible
        else read(buffer.handle, buffer.size)
    )


def pattern(size, seed=0):
    """`size` bytes that no shift of themselves equals."""
    block = bytes((index * 7 + index // 251 + seed) % 256 for index in range(4096))
    return (block * (size // len(block) + 1))[:size]
