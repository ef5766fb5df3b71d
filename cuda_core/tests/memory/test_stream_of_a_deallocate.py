# SPDX-License-Identifier: Apache-2.0
"""The stream that an author's ``deallocate`` is given means, on its thread, what the buffer was ordered by."""

import threading

import pytest

from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    MemoryResource,
)
from held_work import Gate
from support import race

SIZE = 64


class Clearing(MemoryResource):
    """Memory of a pool that is set to zero, in the order of the stream, before it goes back."""

    is_device_accessible, is_host_accessible, device_id = True, False, 0

    def __init__(self, device):
        self.pool, self.inner, self.given = DeviceMemoryResource(device), {}, []

    def allocate(self, size, *, stream=None):
        inner = self.pool.allocate(size, stream=stream)
        self.inner[int(inner.handle)] = inner
        return Buffer.from_handle(inner.handle, size, mr=self, stream=stream)

    def deallocate(self, ptr, size, *, stream=None):
        inner = self.inner.pop(int(ptr))
        self.given.append((int(stream.handle), threading.get_ident()))
        inner.fill(0, stream=stream)
        stream.record().close()
        inner.close(stream)


@pytest.mark.parametrize("how", ["close", "drop", "behind another stream"])
@pytest.mark.parametrize("where", ["here", "on another thread"])
@pytest.mark.parametrize(
    "order", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "thread"]
)
def test_what_a_deallocate_does_comes_behind_the_work_of_the_buffer(device, order, where, how):
    """The number of a per-thread stream means another stream on another thread: memory was cleared under a copy."""
    resource, second = Clearing(device), device.create_stream()
    out = LegacyPinnedMemoryResource().allocate(SIZE)

    def end(box):
        device.set_current()
        if how == "close":
            box[0].close()
        box.clear()

    with Gate(order) as gate:
        box = [resource.allocate(SIZE, stream=order)]
        box[0].fill(5, stream=order)
        box[0].copy_to(out, stream=order)
        if how == "behind another stream":
            box[0].record_stream(second)
        ended = threading.Thread(target=end, args=(box,)) if where != "here" else None
        if ended is None:
            end(box)
        else:
            ended.start()
            ended.join(30)
            assert not ended.is_alive()
        gate.open_with_gil()
    order.sync()
    LEGACY_DEFAULT_STREAM.sync()
    assert bytes(memoryview(out)) == b"\x05" * SIZE
    ((named, thread),) = resource.given  # without a GIL, what another thread drops may end on this one
    as_named = 2 if order is PER_THREAD_DEFAULT_STREAM and thread == threading.get_ident() else 1
    assert named == as_named
    out.close()
    second.close()


def test_a_stream_that_was_bound_on_a_thread_orders_what_other_threads_put_into_it(device):
    """It was given to a ``deallocate``, which has kept it: what it is asked for elsewhere is of the legacy stream."""
    resource = Clearing(device)
    given = []
    resource.deallocate = lambda ptr, size, *, stream=None: (
        given.append(stream),
        resource.inner.pop(int(ptr)).close(stream),
    )
    resource.allocate(SIZE, stream=PER_THREAD_DEFAULT_STREAM).close()
    kept = given[0]
    other = device.create_stream()
    with Gate(PER_THREAD_DEFAULT_STREAM) as gate:

        def use():
            device.set_current()
            other.wait(kept)
            mark = other.record()
            done = mark.is_done
            other.wait(kept.record())
            kept.wait(other)
            return done

        assert race(use) == [False]  # behind the gate
        gate.open_with_gil()
    other.sync()
    kept.sync()
    other.close()
