# SPDX-License-Identifier: Apache-2.0
"""What a parent has before it forks; the end of a forked child, and where it is when it does not come."""

import faulthandler
import os
import re
import signal
import sys
import time

# One of everything that a process can have, and a function that forks it.
EVERYTHING = """
import gc, os, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
from support import check, driver, watching_driver
from buffer_kinds import SOURCES
from cuda.core import Buffer, CUDAError, Device, DeviceMemoryResource, EventOptions, GraphMemoryResource, Stream
from cuda.core import VirtualMemoryResource
from cuda.core._memory._queue import drain
from cuda.core.utils import StridedMemoryView

device = Device(0)
device.set_current()
sim = watching_driver()
alive = {}
alive["stream"] = stream = device.create_stream()
alive["owner"] = device.create_stream()
alive["foreign stream"] = Stream.from_handle(int(alive["owner"].handle))
alive["default stream"] = device.default_stream
alive["event"] = device.create_event(EventOptions(timing_enabled=True))
alive["recorded event"] = stream.record()
alive["context"] = device.context
sources = {kind: SOURCES[kind](device) for kind in SOURCES}
for kind, source in sources.items():
    alive[kind] = source.allocate(stream=stream)
    alive["legacy " + kind] = source.allocate()
    alive["slice of " + kind] = alive[kind][0:16]
    alive["view of " + kind] = alive[kind].array_view()
    alive["capsule of " + kind] = alive[kind].__dlpack__(stream=1 if source.has_device else None)
    alive["tensor of " + kind] = StridedMemoryView.from_dlpack(alive["legacy " + kind], stream_ptr=-1)
    lent = source.allocate(stream=stream)
    alive["rest of " + kind] = lent[0:16]
    lent.close()
    alive["allocation of " + kind] = source.allocate(stream=stream).detach()
    if source.resource is not None:
        alive["resource " + kind] = source.resource
alive["two streams"] = sources["pool"].allocate(stream=stream)
alive["two streams"].record_stream(device.create_stream())
alive["emptied pool"] = DeviceMemoryResource(device, {})  # whose frees are remembered
alive["emptied pool"].allocate(4096, stream=stream).close()
alive["numpy"] = memoryview(alive["pinned"])
alive["borrowed"] = Buffer.from_handle(4096, 16, owner=object())
alive["grown"] = sources["virtual"].resource.modify_allocation(sources["virtual"].allocate(), 4 << 20)
if sim:  # a resource that could not return everything
    alive["left over"] = VirtualMemoryResource(device)
    with sim.fail("cuMemSetAccess"), sim.fail("cuMemUnmap", sticky=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of that
        try:
            alive["left over"].allocate(1)
        except CUDAError:
            pass
alive["ended builder"] = device.create_graph_builder().begin_building()
alive["ended builder"].end_building()
alive["graph"] = alive["ended builder"].complete()
alive["graph"].launch(stream)
alive["captured buffer"] = sources["device"].allocate(stream=stream)
alive["builder"] = device.create_graph_builder().begin_building("relaxed")
alive["captured buffer"].fill(b"x", stream=alive["builder"])
alive["graph memory"] = GraphMemoryResource(device).allocate(4096, stream=alive["builder"])
alive["fork builder"] = alive["builder"].split(2)[1]
alive["new builder"] = device.create_graph_builder()
del lent, source

def in_child(function):
    sys.stdout.flush()
    if sim:
        sim.reset()
    pid = os.fork()
    if pid == 0:
        function()
        sys.exit(0)  # with everything that a Python program does at its end
    _, status = os.waitpid(pid, 0)
    print("child", os.waitstatus_to_exitcode(status), dict(sim.calls_in_children()) if sim else {})
"""

_WORD = 8


def show_where_it_hangs():
    """Let this process and what it forks print where their Python is when they get SIGUSR1, also inside C code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


def end_of(pid, seconds):
    """Return the exit code of a child; tell where it is, and end it, if it does not end in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)  # silent before the first Python of the child: then the stack below tells
    time.sleep(0.5)
    text = f"the child hangs in\n{native_stack(pid)}"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit(text)


def native_stack(pid):
    """Say what a child waits for in the kernel, and which code has left return addresses on its stack."""
    with open(f"/proc/{pid}/status") as file:
        lines = [line.strip() for line in file if line.startswith(("State", "Threads"))]
    try:
        with open(f"/proc/{pid}/syscall") as file:
            numbers = file.read().split()
        lines.append(f"system call {' '.join(numbers)}")
        lines += _code_on_stack(pid, int(numbers[-2], 16), int(numbers[-1], 16))
    except (OSError, IndexError, ValueError) as error:
        lines.append(f"its stack cannot be read: {error!r}")
    return "\n".join(lines)


def _code_on_stack(pid, stack, here):
    code = []  # first and last address, offset, file
    bottom = 0
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            found = re.match(r"(\w+)-(\w+) (\S+) (\w+) \S+ \d+\s*(.*)", line)
            begin, end = int(found[1], 16), int(found[2], 16)
            if begin <= stack < end:
                bottom = end
            if "x" in found[3]:
                code.append((begin, end, int(found[4], 16), found[5] or "code without a file"))
    with open(f"/proc/{pid}/mem", "rb") as file:
        file.seek(stack)
        content = file.read(min(bottom - stack, 1 << 15))
    words = [here]
    words += [int.from_bytes(content[at : at + _WORD], sys.byteorder) for at in range(0, len(content), _WORD)]
    return [
        f"{path}+{word - begin + offset:#x}"
        for word in words
        for begin, end, offset, path in code
        if begin <= word < end
    ]
