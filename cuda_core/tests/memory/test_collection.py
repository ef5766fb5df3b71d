# SPDX-License-Identifier: Apache-2.0
"""Buffers that nobody closed: dropped, in cycles, without their resource, and at the end of the interpreter."""

import gc
import threading
import weakref

import pytest

from cuda.core import Buffer, VirtualMemoryResource
from python_resources import Plain
from support import (
    GRANULE,
    address_free,
    blocked,
    child_output,
    fill_granules,
    free_memory,
    granules_hold,
    race,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


class Holder:
    """Holds things, itself among them."""

    def __init__(self, *things):
        self.things = (self, *things)


@pytest.mark.parametrize("how", ["drop", "list cycle", "object cycle", "exception", "thread"])
def test_a_buffer_that_nobody_closed_gives_its_memory_back(resource, how):
    free = free_memory()
    buffer = resource.allocate(3 * GRANULE)
    address = buffer.handle
    assert free_memory() == free - 3 * GRANULE
    with warnings_seen() as seen:
        if how == "list cycle":
            cycle = [buffer]
            cycle.append(cycle)
            del cycle
        elif how == "object cycle":
            Holder(buffer)
        elif how == "exception":
            try:
                raise ValueError(buffer)
            except ValueError as error:
                kept = error
            del kept
        elif how == "thread":
            box = [buffer]
            del buffer
            race(box.clear)
        if how != "thread":
            del buffer
        gc.collect()
    assert seen == []
    assert free_memory() == free
    assert address_free(address, 3 * GRANULE)


def test_dropping_the_last_reference_gives_back_at_once(resource):
    free = free_memory()
    gc.disable()
    try:
        buffer = resource.allocate(GRANULE)
        del buffer
        assert free_memory() == free
    finally:
        gc.enable()


def test_a_grown_buffer_that_nobody_closed_gives_all_of_it_back(resource):
    free = free_memory()
    buffer = resource.allocate(GRANULE)
    addresses = [buffer.handle]
    for granules in (2, 3):
        with blocked(buffer):
            buffer = resource.modify_allocation(buffer, granules * GRANULE)
        addresses.append(buffer.handle)
    del buffer
    gc.collect()
    assert free_memory() == free
    for granules, address in enumerate(addresses, start=1):
        assert address_free(address, granules * GRANULE)


def test_a_buffer_needs_nothing_that_the_program_has_dropped(device):
    """The resource goes first; the buffer is written, grown no more, and closed."""
    resource = VirtualMemoryResource(device)
    gone = weakref.ref(resource)
    buffer = resource.allocate(2 * GRANULE)
    del resource
    gc.collect()
    fill_granules(buffer)
    assert granules_hold(buffer, 2)
    assert buffer.memory_resource is gone()
    buffer.close()
    gc.collect()
    assert gone() is None, "a closed buffer keeps no resource alive"


def test_buffer_and_resource_dropped_together(device):
    resource = VirtualMemoryResource(device)
    holder = Holder(resource, resource.allocate(GRANULE), resource.allocate(0))
    with warnings_seen() as seen:
        del holder, resource
    assert seen == []


def test_a_python_resource_dropped_first_is_still_asked():
    log = []

    class Logging(Plain):
        def deallocate(self, ptr, size, *, stream=None):
            log.append((ptr, size))
            super().deallocate(ptr, size, stream=stream)

    resource = Logging()
    buffer = resource.allocate(512)
    address = buffer.handle
    del resource
    gc.collect()
    assert log == []
    del buffer
    gc.collect()
    assert log == [(address, 512)]


def test_an_input_of_a_grow_collected_later_touches_nothing(resource, driver_watch):
    old = resource.allocate(GRANULE)
    new = resource.modify_allocation(old, 2 * GRANULE)
    fill_granules(new)
    cycle = [old]
    cycle.append(cycle)
    del old, cycle
    with driver_watch.no_call():
        gc.collect()
    assert granules_hold(new, 2)
    new.close()


def test_a_collection_may_happen_at_any_line(resource):
    """The collector runs all the time and always finds buffers, also inside the operations of this package."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for round_ in range(60):
            cycle = [resource.allocate(GRANULE), Buffer.from_handle(4096, 16, owner=object())]
            cycle.append(cycle)
            del cycle
            buffer = resource.allocate(GRANULE)
            if round_ % 2:
                with blocked(buffer):
                    buffer = resource.modify_allocation(buffer, 2 * GRANULE)
            else:
                buffer = resource.modify_allocation(buffer, 2 * GRANULE)
            buffer.close()
    finally:
        gc.set_threshold(*thresholds)


def test_buffers_dropped_by_many_threads(resource):
    def drop_some():
        for _ in range(25):
            cycle = [resource.allocate(GRANULE)]
            cycle.append(cycle)
        gc.collect()

    assert race(*[drop_some] * 4) == [None] * 4


def test_resurrected_buffers_stay_whole(resource):
    """An object that a finalizer brought back finds its buffer open, or closed, never half of each."""
    kept = []

    class Resurrects:
        def __init__(self, buffer):
            self.buffer = buffer
            self.me = self

        def __del__(self):
            kept.append(self.buffer)

    Resurrects(resource.allocate(GRANULE))
    gc.collect()
    buffer = kept.pop()
    if not buffer.is_closed:
        fill_granules(buffer)
        assert granules_hold(buffer, 1)
    buffer.close()


def test_threads_that_ended_leave_their_buffers_usable(device):
    resource = VirtualMemoryResource(device)
    made = []
    thread = threading.Thread(target=lambda: made.append(resource.allocate(GRANULE)))
    thread.start()
    thread.join(60)
    fill_granules(made[0])
    assert granules_hold(made[0], 1)
    made.pop().close()


# --- the end of the interpreter ----------------------------------------------------------------------------------

AT_EXIT = """
import sys
from support import GRANULE, driver, check
from cuda.core import Buffer, Device, MemoryResource, VirtualMemoryResource

class Plain(MemoryResource):
    is_device_accessible, is_host_accessible, device_id = True, False, 0
    def allocate(self, size, *, stream=None):
        return Buffer.from_handle(int(check(driver.cuMemAlloc(size))), size, self)
    def deallocate(self, ptr, size, *, stream=None):
        check(driver.cuMemFree(ptr))

device = Device(0)
device.set_current()
stream = device.create_stream()
resource = VirtualMemoryResource(device)
open_buffer = resource.allocate(GRANULE, stream=stream)
closed = resource.allocate(GRANULE)
closed.close()
transferred = resource.allocate(GRANULE)
grown = resource.modify_allocation(transferred, 2 * GRANULE)
empty = resource.allocate(0)
borrowed = Buffer.from_handle(open_buffer.handle, open_buffer.size, owner=open_buffer)
plain = Plain().allocate(1024)
cycle = [resource.allocate(GRANULE)]
cycle.append(cycle)

class Prints:
    def __del__(self):
        print(open_buffer.size, open_buffer.ownership.name, int(stream.handle) != 0, closed.is_closed)

if sys.argv[1] == "module":
    sys.modules["keeps buffers"] = [open_buffer, plain, cycle]
elif sys.argv[1] == "prints":
    prints = Prints()
elif sys.argv[1] == "builtins":
    import builtins
    builtins.kept = [open_buffer, plain, grown]
elif sys.argv[1] == "lent":
    class Late:
        pass
    late = Late()
    late.parts = [Plain().allocate(1024), resource.allocate(GRANULE)]
    late.parts = [buffer[:] for buffer in late.parts]  # the loans stay, and their buffers are closed by no one
    lent = Plain().allocate(1024)
    late.parts.append(lent[:])
    lent.close()
    late.itself = late
    sys.modules["keeps loans"] = late
elif sys.argv[1] == "exit":
    sys.exit(0)
elif sys.argv[1] == "thread":
    import threading
    def keep(buffer):
        device.set_current()
        threading.Event().wait()
    threading.Thread(target=keep, args=(open_buffer,), daemon=True).start()
"""


@pytest.mark.parametrize("how", ["globals", "module", "builtins", "lent", "exit", "thread"])
def test_buffers_alive_at_exit_are_silent(how):
    assert child_output(AT_EXIT, how) == ""


def test_attributes_can_be_read_in_a_finalizer_at_exit():
    assert child_output(AT_EXIT, "prints") == f"{GRANULE} OWNED True True\n"


def test_an_uncaught_exception_at_exit_adds_no_noise():
    from support import run_child

    child = run_child(AT_EXIT + "\nraise LookupError('the only message')", "globals")
    assert child.returncode == 1
    lines = child.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "LookupError: the only message"
    # Between them the one frame; some versions of Python show its source as well.
    assert [line for line in lines[1:-1] if not line.startswith("  ")] == []
    assert child.stderr.count('File "') == 1
    assert "Warning" not in child.stderr
