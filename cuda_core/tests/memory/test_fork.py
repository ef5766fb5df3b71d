# SPDX-License-Identifier: Apache-2.0
"""A forked child: what it inherited is lost, silently, and the parent's memory is the parent's."""

import pytest

from buffer_kinds import SOURCES
from support import child_output

# Each program runs in a process of its own: forking this one would copy pytest, and newer Pythons warn of threads.
FORK = """
import gc, os, sys, time, traceback, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
from support import GRANULE, blocked, check, driver, free_memory, still_allocated, watching_driver
from buffer_kinds import SOURCES
from cuda.core import Allocation, Buffer, CloseResult, Device, Ownership, OwnershipError
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain

device = Device(0)
device.set_current()
sim = watching_driver()
stream = device.create_stream()
sources = {kind: SOURCES[kind](device) for kind in SOURCES}
free = free_memory()
buffers = {kind: source.allocate(stream=stream) for kind, source in sources.items()}
buffers["borrowed"] = Buffer.from_handle(4096, 16, owner=device)

def in_child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    print("child", os.waitstatus_to_exitcode(status))

def calls():
    return dict(sim.calls()) if sim else None

def close_all():
    for kind, buffer in buffers.items():
        print(kind, buffer.close().name, buffer.ownership.name)
    drain()
    buffers.clear()
    stream.close()
    gc.collect()
    device.sync()  # a pool returns what it does not use with the next wait
    print(free_memory() == free, _counters.live().get("buffers", 0))
"""

KINDS = (*SOURCES, "borrowed")
PARENT_CLOSES = ["child 0", *(f"{kind} DONE RELEASED" for kind in KINDS), "True 0"]


def run(code, *arguments, **keywords):
    return child_output(FORK + code, *arguments, **keywords).splitlines()


def test_what_a_child_inherited_reads_lost_and_is_refused():
    assert (
        run("""
def child():
    before = calls()
    for kind, buffer in buffers.items():
        assert buffer.ownership is Ownership.RELEASED, kind
        assert buffer.transferred_to is None
        assert (buffer.handle, buffer.size, buffer.is_closed, buffer.loans) == (0, 0, True, 0), kind
        assert "RELEASED lost" in repr(buffer), repr(buffer)
        assert buffer.close() is CloseResult.NOTHING
        assert buffer.close(wait=False) is CloseResult.NOTHING
        for use in (buffer.detach, lambda: buffer[0:1], buffer.array_view, buffer.__enter__,
                    lambda: buffer.device_id, lambda: buffer.set_deallocation_stream(stream),
                    lambda: buffer.record_stream(stream), lambda: buffer.move_to(sources["virtual"].resource)):
            try:
                use()
            except OwnershipError as error:
                assert str(error).startswith("Buffer has been closed"), str(error)
                assert "lost" in str(error)
            else:
                raise AssertionError(f"{kind}: {use} was accepted")
        try:
            memoryview(buffer)
        except BufferError as error:
            assert isinstance(error.__cause__, OwnershipError)
        else:
            raise AssertionError(kind)
    try:
        sources["virtual"].resource.modify_allocation(buffers["virtual"], 2 * GRANULE)
    except OwnershipError:
        pass
    else:
        raise AssertionError("grown")
    assert sources["python"].frees() == sources["function"].frees() == 0
    assert calls() == before
in_child(child)
close_all()
""")
        == PARENT_CLOSES
    )


@pytest.mark.parametrize("how", ["drop", "cycle", "resource first", "with"])
def test_dropping_in_a_child_is_silent(how):
    assert (
        run(
            """
def child():
    before = calls()
    how = sys.argv[1]
    if how == "cycle":
        for buffer in buffers.values():
            cycle = [buffer]
            cycle.append(cycle)
        del buffer, cycle
    elif how == "resource first":
        sources.clear()
    elif how == "with":
        for buffer in buffers.values():
            buffer.__exit__(None, None, None)
        del buffer
    asked = [source.frees() for source in sources.values()]
    buffers.clear()
    gc.collect()
    assert asked == [source.frees() for source in sources.values()]
    assert calls() == before
in_child(child)
close_all()
""",
            how,
        )
        == PARENT_CLOSES
    )


def test_loans_and_allocations_in_a_child():
    """Views, sub-buffers, detached allocations, buffers closed while lent: all are lost, none calls the driver."""
    assert run("""
lent = [source.allocate() for source in sources.values()]
parts = [buffer[0:16] for buffer in lent]
views = [buffer.array_view() for buffer in lent]
left = [source.allocate() for source in sources.values()]
left_parts = [buffer[0:16] for buffer in left]
for buffer in left:
    assert buffer.close() is CloseResult.LENT
allocations = [source.allocate().detach() for source in sources.values()]
del buffer
def child():
    before = calls()
    for allocation in allocations:
        assert allocation.ownership is Ownership.RELEASED
        assert (allocation.handle, allocation.size) == (0, 0)
        for use in (lambda: Buffer.adopt(allocation), allocation.handed_over):
            try:
                use()
            except OwnershipError:
                pass
            else:
                raise AssertionError("accepted")
        repr(allocation)
    for part in parts + left_parts:
        assert part.close() is CloseResult.NOTHING
    for view in views:
        view.close()
    del allocation, part, view
    for things in (parts, views, left_parts, lent, left, allocations):
        things.clear()
    gc.collect()
    assert calls() == before
in_child(child)
for part in parts + left_parts:
    print(part.close().name)
for view in views:
    view.close()
for buffer in lent:
    print(buffer.close().name)
for allocation in allocations:
    Buffer.adopt(allocation).close()
del view, part, buffer
close_all()
""") == [PARENT_CLOSES[0], *["DONE"] * 3 * len(SOURCES), *PARENT_CLOSES[1:]]


@pytest.mark.parametrize("how", ["exit", "os._exit", "exec"])
def test_a_child_ends_silently_with_everything_alive(how):
    assert (
        run(
            """
allocation = sources["virtual"].allocate().detach()
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "exec":
        os.execv("/bin/true", ["true"])
    elif sys.argv[1] == "os._exit":
        os._exit(0)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status))
Buffer.adopt(allocation).close()
close_all()
""",
            how,
        )
        == PARENT_CLOSES
    )


def test_releases_that_are_queued_are_the_parents():
    assert run("""
from held_work import Gate
with Gate(stream) as gate:
    queued = sources["virtual"].allocate(stream=stream)
    address = queued.handle
    print(queued.close(wait=False).name)
    def child():
        before = calls()
        assert _counters.live().get("queued", 0) == 0
        assert drain(1) is True
        assert queued.close() is CloseResult.NOTHING
        assert calls() == before
    in_child(child)
    print(still_allocated(address))
    gate.open()
    print(drain(20), still_allocated(address))
close_all()
""") == ["QUEUED", "child 0", "True", "True False", *PARENT_CLOSES[1:]]


def test_a_grandchild():
    assert (
        run("""
def child():
    def grandchild():
        for buffer in buffers.values():
            assert buffer.ownership is Ownership.RELEASED
            assert buffer.close() is CloseResult.NOTHING
        del buffer
        buffers.clear()
        gc.collect()
    pid = os.fork()
    if pid == 0:
        try:
            grandchild()
            os._exit(0)
        finally:
            os._exit(3)
    assert os.waitpid(pid, 0)[1] == 0
in_child(child)
close_all()
""")
        == PARENT_CLOSES
    )


def test_forking_while_other_threads_allocate_grow_and_close():
    """No lock is left closed in the child, and no half-made transition does anything there."""
    printed = run("""
import threading
from fork_tools import end_of, show_where_it_hangs
stop = threading.Event()
show_where_it_hangs()
shared = {}
def work(number):
    device.set_current()
    own = device.create_stream()
    while not stop.is_set():
        for kind in ("virtual", "pinned", "device", "pool", "pinned pool", "managed pool"):
            shared[number, kind] = buffer = sources[kind].allocate(stream=own)
            part = buffer[0:16]
            part.close()
            if kind == "virtual":
                shared[number, "grown"] = buffer = sources[kind].resource.modify_allocation(buffer, 2 * GRANULE)
            buffer.close(wait=number % 2 == 0)
    own.close()
def child():
    while shared:
        _, buffer = shared.popitem()
        assert buffer.close() is CloseResult.NOTHING
        assert buffer.is_closed
    buffer = None
    assert drain(1)
    assert buffers["virtual"].close() is CloseResult.NOTHING
    buffers.clear()
    gc.collect()
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
try:
    while len({key[0] for key in list(shared)}) < len(threads):  # until each is at work
        time.sleep(0.001)
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(3)
        assert end_of(pid, 10) == 0
finally:
    stop.set()
    for thread in threads:
        thread.join(20)
shared.clear()
print("child 0", sim.calls_in_children() if sim else {})
close_all()
print([name for name in (sim.live() if sim else {}) if name.endswith(("allocation", "mapping", "reservation"))])
""")
    assert printed[:1] == ["child 0 {}"]
    assert printed[1:-2] == PARENT_CLOSES[1:-1]
    # Not how much memory is free: a real driver takes some for the threads and their streams.
    assert printed[-2].split()[1] == PARENT_CLOSES[-1].split()[1]
    assert printed[-1] == "[]"


def test_a_process_of_multiprocessing_that_forks():
    assert (
        run("""
import multiprocessing
def target(queue):
    queue.put([(buffer.ownership.name, buffer.close().name) for buffer in buffers.values()])
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=target, args=(queue,))
process.start()
assert set(queue.get()) == {("RELEASED", "NOTHING")}
process.join(20)
print("child", process.exitcode)
close_all()
""")
        == PARENT_CLOSES
    )
