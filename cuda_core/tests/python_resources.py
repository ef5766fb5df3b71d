# SPDX-License-Identifier: Apache-2.0
"""Memory resources written in Python, as authors outside this package write them.

They hand out real device memory through the bindings and keep a list of what they were asked.
"""

import threading

from cuda.bindings import driver
from cuda.core import Buffer, MemoryResource
from support import check


class Plain(MemoryResource):
    """Plain device memory. ``asked`` has one entry (address, size, stream) for each call of ``deallocate``."""

    def __init__(self):
        self.asked = []
        self.held = {}

    def take(self, size):
        address = int(check(driver.cuMemAlloc(size)))
        self.held[address] = size
        return address

    def allocate(self, size, *, stream=None):
        return Buffer.from_handle(self.take(size), size, self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.asked.append((ptr, size, stream))
        self.give_back(ptr)

    def give_back(self, ptr):
        del self.held[ptr]  # KeyError: freed twice, or never handed out
        check(driver.cuMemFree(ptr))

    @property
    def is_device_accessible(self):
        return True

    @property
    def is_host_accessible(self):
        return False

    @property
    def device_id(self):
        return 0


class Refusing(Plain):
    """Raises as often as it is told to before it frees."""

    def __init__(self, refusals):
        super().__init__()
        self.refusals = refusals

    def deallocate(self, ptr, size, *, stream=None):
        if self.refusals:
            self.refusals -= 1
            self.asked.append("refused")
            raise LookupError("not now")
        super().deallocate(ptr, size, stream=stream)


class ClosesWhatItFrees(Plain):
    """Closes, inside ``deallocate``, the buffer that is being freed, and uses the library in other ways."""

    def __init__(self, other):
        super().__init__()
        self.buffers = {}
        self.other = other
        self.inner = []

    def allocate(self, size, *, stream=None):
        buffer = super().allocate(size, stream=stream)
        self.buffers[buffer.handle] = buffer
        return buffer

    def deallocate(self, ptr, size, *, stream=None):
        buffer = self.buffers.pop(ptr, None)
        if buffer is not None:
            self.inner.append(buffer.close())
        with self.other.allocate(size) as between:
            self.inner.append(between.size)
        super().deallocate(ptr, size, stream=stream)


class NoInitialiser(MemoryResource):
    """Keeps its own buffers, and never calls the base class's initialiser."""

    def __init__(self):
        self.buffers = {}
        self.log = []

    def allocate(self, size, stream=None):
        address = int(check(driver.cuMemAlloc(size)))
        buffer = Buffer.from_handle(address, size, self)
        self.buffers[address] = buffer
        return buffer

    def deallocate(self, ptr, size, stream=None):
        self.log.append((self.name, ptr, size))
        check(driver.cuMemFree(ptr))

    name = "no initialiser"
    is_device_accessible = True
    is_host_accessible = False
    device_id = 0


class KeywordSignature(Plain):
    """``deallocate`` with its stream by keyword only."""

    def deallocate(self, ptr, size, *, stream):
        super().deallocate(ptr, size, stream=stream)


class PositionalSignature(Plain):
    """``deallocate`` with three plain parameters."""

    def deallocate(self, ptr, size, stream):
        super().deallocate(ptr, size, stream=stream)


class WideSignature(Plain):
    """``deallocate`` with further keyword parameters."""

    def deallocate(self, ptr, size, stream=None, manual=False, **more):
        assert not manual
        assert more == {}
        super().deallocate(ptr, size, stream=stream)


class Slow(Plain):
    """Waits inside ``deallocate`` until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def deallocate(self, ptr, size, *, stream=None):
        self.entered.set()
        assert self.let_go.wait(60)
        super().deallocate(ptr, size, stream=stream)
