# SPDX-License-Identifier: Apache-2.0
"""Failures at the end of a process reported in the field, a test each, named by the id of its case."""

import random
import signal
import subprocess
import sys
import time

import pytest

from support import child_environment, child_output, free_memory, run_child

EVERYTHING = """
import sys
from support import GRANULE, blocked, check, driver
from buffer_kinds import SOURCES
from cuda.core import Buffer, Device
device = Device(0)
device.set_current()
stream = device.create_stream()
event = device.create_event()
sources = {kind: SOURCES[kind](device) for kind in SOURCES}
plain = [source.allocate() for source in sources.values()]
ordered = [source.allocate(stream=stream) for source in sources.values()]
recorded = [source.allocate(stream=stream) for source in sources.values()]
for buffer in recorded:
    buffer.record_stream(device.default_stream)
empty = [source.allocate(0) for source in sources.values() if source.built_in]
lent = [source.allocate() for source in sources.values()]
parts = [buffer[0:16] for buffer in lent]
views = [buffer.array_view() for buffer in lent]
exported = memoryview(lent[1])
left_to_loans = [source.allocate() for source in sources.values()]
loans = [buffer[0:16] for buffer in left_to_loans]
for buffer in left_to_loans:
    buffer.close()
allocations = [source.allocate().detach() for source in sources.values()]
resource = sources["virtual"].resource
old = resource.allocate(GRANULE)
with blocked(old):
    grown = resource.modify_allocation(old, 2 * GRANULE)
borrowed = Buffer.from_handle(plain[0].handle, 16, owner=plain[0])
kept = [source.allocate() for source in sources.values()]
for buffer in kept:
    buffer.release_on_collection = False
cycle = [source.allocate() for source in sources.values()]
cycle.append(cycle)
closed = resource.allocate(GRANULE)
closed.close()
"""


@pytest.mark.parametrize("options", [("-W", "error"), ("-X", "dev")], ids=["warnings are errors", "dev"])
@pytest.mark.parametrize(
    "how",
    ["plain", "sys.exit", "os._exit", "threads", "module", "builtins", "closed at exit", "collected at exit"],
)
def test_exit_01_everything_alive_at_exit_is_silent(how, options):
    more = {
        "plain": "",
        "sys.exit": "sys.exit(0)",
        "os._exit": "import os; os._exit(0)",
        "threads": """
import threading
def hold(things):
    device.set_current()
    threading.Event().wait()
threading.Thread(target=hold, args=([source.allocate() for source in sources.values()],), daemon=True).start()
""",
        "module": "sys.modules['keeps them'] = [plain, ordered, allocations, views, cycle]",
        "builtins": "import builtins; builtins.kept_things = [plain, ordered, lent, parts, loans, grown]",
        "closed at exit": "import atexit; atexit.register(lambda: [b.close() for b in plain])",
        "collected at exit": "import atexit, gc; atexit.register(gc.collect)",
    }[how]
    assert child_output(EVERYTHING + more, options=options) == ""


AUTHOR = """
import atexit
from support import check, driver
from python_resources import Plain
from cuda.core import Device
device = Device(0)
device.set_current()

class Author(Plain):
    closes = True
    def at_exit(self):
        print("at_exit", len(self.held))
        if self.closes:
            for buffer in self.buffers:
                buffer.close()
    def deallocate(self, ptr, size, *, stream=None):
        print("deallocate")
        super().deallocate(ptr, size, stream=stream)

resource = Author()
resource.buffers = [resource.allocate(512) for _ in range(2)]
"""


def test_exit_01_an_author_is_told_before_the_interpreter_finalizes():
    """After that no Python runs: what was not freed then is left to the end of the process."""
    assert child_output(AUTHOR) == "at_exit 2\ndeallocate\ndeallocate\n"
    assert child_output(AUTHOR + "Author.closes = False") == "at_exit 2\n"
    assert child_output(AUTHOR + "resource.buffers.clear(); del resource.buffers; resource = None") == (
        "deallocate\ndeallocate\n"
    )


def test_exit_01_an_author_that_fails_at_exit_does_not_stop_the_others():
    code = (
        AUTHOR
        + """
class Fails(Plain):
    def at_exit(self):
        raise LookupError("the only one")
first, second = Fails(), Fails()
kept = [first.allocate(16), second.allocate(16)]
"""
    )
    child = run_child(code)
    assert child.returncode == 0
    assert child.stdout == "at_exit 2\ndeallocate\ndeallocate\n"
    assert child.stderr.splitlines().count("LookupError: the only one") == 2
    assert "Fatal" not in child.stderr


BUSY = """
import itertools, signal, sys
from support import GRANULE, blocked, check, driver
from buffer_kinds import SOURCES
from cuda.core import Device
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background of a shell ignores it
device = Device(0)
device.set_current()
stream = device.create_stream()
sources = [SOURCES[kind](device) for kind in ("virtual", "pinned", "device", "python")]
if sys.argv[1] == "handler":
    def leave(number, frame):
        sys.exit(3)
    signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
for number in itertools.count():
    for source in sources:
        buffer = source.allocate(stream=stream)
        if source.name == "virtual":
            if number % 2:
                with blocked(buffer):
                    buffer = source.resource.modify_allocation(buffer, 2 * GRANULE)
            else:
                buffer = source.resource.modify_allocation(buffer, 2 * GRANULE)
        part = buffer[0:16]
        if number % 3 == 0 or source.name == "python":  # Python loses an interrupt in a finalizer that is Python
            part.close()
            buffer.close()
        elif number % 3 == 1:
            buffer.close(wait=False)
        part.close()
        del buffer, part
"""


@pytest.mark.parametrize(
    ("signal_sent", "how", "code"),
    [
        (signal.SIGTERM, "default", -signal.SIGTERM),
        (signal.SIGKILL, "default", -signal.SIGKILL),
        (signal.SIGINT, "default", -signal.SIGINT),
        (signal.SIGTERM, "handler", 3),
    ],
    ids=["terminated", "killed", "interrupted", "handled"],
)
def test_exit_02_a_child_that_is_stopped_in_the_middle_ends_by_its_signal(device, signal_sent, how, code):
    free = free_memory()
    delays = random.Random(7)
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", BUSY, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(delays.uniform(0, 0.15))
            child.send_signal(signal_sent)
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
        assert child.returncode == code, errors
        if signal_sent == signal.SIGINT:
            assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
            assert "Exception ignored" not in errors
        else:
            assert errors == ""
    for _ in range(100):
        if free_memory() >= free:
            break
        time.sleep(0.05)
    assert free_memory() >= free


ATTRIBUTES = (
    EVERYTHING
    + """
class Prints:
    # Everything it needs is held by itself, whatever the module has lost by then.
    def __init__(self, *things):
        self.things, self.print = things, print

    def __del__(self):
        stream, buffer, old, allocation, part = self.things
        self.print(int(stream.handle) != 0, stream.is_closed, repr(stream)[:7], stream.__cuda_stream__()[0])
        for each in (buffer, old, part):
            taker = each.transferred_to and each.transferred_to.name
            self.print(each.ownership.name, taker, each.handle != 0, each.size)
            self.print(each.is_closed, bool(each), each.loans, repr(each)[:7], hash(each) != 0, each == each)
        self.print(buffer.memory_resource is not None, buffer.owner, buffer.device_id, buffer.capacity)
        self.print(allocation.ownership.name, allocation.handle != 0, allocation.size, len(allocation.streams))

prints = Prints(stream, grown, old, allocations[0], parts[0])
if sys.argv[1] == "module":
    sys.modules["keeps it"] = prints
elif sys.argv[1] == "cycle":
    prints.me = prints
"""
)


@pytest.mark.parametrize("how", ["global", "module", "cycle"])
def test_exit_03_attributes_can_be_read_in_a_finalizer(how):
    granule = 2 << 20
    assert child_output(ATTRIBUTES, how).splitlines() == [
        "True False <Stream 0",
        f"OWNED None True {2 * granule}",
        "False True 0 <Buffer True True",
        "TRANSFERRED GROWN False 0",
        "True True 0 <Buffer True True",
        "BORROWED None True 16",
        "False True 0 <Buffer True True",
        f"True None 0 {2 * granule}",
        f"OWNED True {granule} 1",
    ]


EXPORTS = """
import pickle, sys
from multiprocessing.reduction import ForkingPickler
from cuda.core import Buffer, Device
from shared_pools import SHARED_EVENT, make, opened
device = Device(0)
device.set_current()
stream = device.create_stream()
pools = [make(kind) for kind in ("device", "pinned")]
buffers = [pool.allocate(4096, stream=stream) for pool in pools]
handles = [pool.allocation_handle for pool in pools]
names = [buffer.ipc_descriptor for buffer in buffers]
event = stream.record(options=SHARED_EVENT)
name = event.ipc_descriptor
there = [opened(pool) for pool in pools]
imports = [Buffer.from_ipc_descriptor(*pair, stream=stream) for pair in zip(there, names)]
again = [Buffer.from_ipc_descriptor(*pair, stream=stream) for pair in zip(there, names)]
parts = [buffer[0:16] for buffer in again]
detached = [Buffer.from_ipc_descriptor(*pair, stream=stream).detach() for pair in zip(there, names)]
for pool in pools:
    pool.register(pool.uuid)
peers = pools[0].peer_accessible_by
if sys.argv[1] == "on the way":
    # Not the views that dumps() returns: since 3.14 the end of Python tells of those that are still there.
    messages = [bytes(ForkingPickler.dumps(thing)) for thing in (pools, buffers, handles, event)]
elif sys.argv[1] == "cycle":
    everything = [pools, buffers, handles, there, imports, again, parts]
    everything.append(everything)
elif sys.argv[1] == "module":
    sys.modules["keeps them"] = [pools, buffers, handles, there, imports, again, parts]
"""


@pytest.mark.parametrize("how", ["globals", "on the way", "cycle", "module"])
def test_exit_04_what_is_exported_and_imported_at_exit_is_silent(how):
    assert child_output(EXPORTS, how) == ""


UNDER_FORK = """
import multiprocessing, pickle, sys, warnings
from multiprocessing.reduction import ForkingPickler
from cuda.core import Device
from shared_pools import SHARED_EVENT, make
if __name__ == "__main__":
    if sys.argv[1] != "nothing":
        multiprocessing.set_start_method(sys.argv[1])
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pool = make()
    buffer = pool.allocate(64, stream=stream)
    event = stream.record(options=SHARED_EVENT)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            for thing in (pool, buffer, event, pool.allocation_handle):
                ForkingPickler.dumps(thing)
            pickle.dumps(pool)
            pickle.dumps(buffer)
    for entry in seen:
        print(entry.category.__name__, "'fork'" in str(entry.message), "'spawn'" in str(entry.message))
"""


@pytest.mark.parametrize(
    ("method", "said"),
    [("fork", "UserWarning True True\n"), ("spawn", ""), ("forkserver", ""), ("nothing", "")],
)
def test_exit_06_pickling_under_fork_warns_once_and_names_spawn(method, said):
    assert child_output(UNDER_FORK, method) == said


def test_exit_06_a_program_with_a_context_of_its_own_is_not_warned(tmp_path):
    """Starting a process with spawn settles the program's own method as fork, on most systems."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, sys, warnings
warnings.simplefilter("error")
from cuda.core import Device
from shared_pools import make

def work(queue, answers):
    buffer = queue.get()
    answers.put(buffer.size)
    buffer.close()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pool = make()
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(queue, answers))
    process.start()
    buffer = pool.allocate(64, stream=stream)
    queue.put(buffer)
    print(answers.get(timeout=60))
    process.join(60)
"""
    )
    child = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, env=child_environment()
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "64\n", "")


THREADS = """
import sys, threading
from buffer_kinds import SOURCES
from cuda.core import Device
devices = Device.get_all_devices()
devices[0].set_current()
kept, started = [], []
def work(number, ends):
    devices[number % len(devices)].set_current()
    source = SOURCES["virtual"](devices[number % len(devices)])
    buffer = source.allocate()
    kept.append(source.allocate())
    stream = devices[number % len(devices)].create_stream()
    started[number].set()
    if not ends:
        threading.Event().wait()
for number in range(6):
    started.append(threading.Event())
    thread = threading.Thread(target=work, args=(number, number % 2), daemon=True)
    thread.start()
    started[number].wait(20)
if sys.argv[1] == "exit from a thread":
    import os
    threading.Thread(target=lambda: os._exit(0)).start()
    threading.Event().wait()
"""


@pytest.mark.parametrize("how", ["plain", "exit from a thread"])
def test_exit_05_threads_that_used_devices_end_well(how):
    assert child_output(THREADS, how) == ""
