# SPDX-License-Identifier: Apache-2.0
"""A forked child calls no driver by dropping, closing or ending: a real one crashes or hangs in it."""

import pytest

from fork_tools import EVERYTHING
from support import child_output


def run(code):
    return child_output(EVERYTHING + code + "\nos._exit(0)")


@pytest.mark.parametrize("how", ["keep", "drop", "cycles", "resources first"])
def test_a_child_that_ends_with_everything_alive_calls_no_driver(how):
    code = {
        "keep": "pass",
        "drop": "alive.clear(); sources.clear(); gc.collect()",
        "cycles": "alive.update(cycle=alive); globals().pop('alive'); globals().pop('sources'); gc.collect()",
        "resources first": "sources.clear(); [alive.pop(n) for n in list(alive) if n.startswith('resource')]; "
        "gc.collect(); alive.clear()",
    }[how]
    names = "globals().pop('stream', None);" if how != "keep" else ""
    assert run(f"def child():\n    {names}{code}\nin_child(child)\n") == "child 0 {}\n"


def test_each_close_in_a_child_is_silent_and_calls_no_driver():
    output = run("""
def child():
    closed = set()
    for name, thing in alive.items():
        for _ in range(2):
            if isinstance(thing, memoryview):
                thing.release()
            elif hasattr(thing, "close"):
                thing.close()
                closed.add(name)
        if sim:
            assert not sim.calls_in_children(), (name, sim.calls_in_children())
    assert closed >= {"stream", "event", "context", "graph", "builder", "fork builder", "new builder", "pool",
                      "ended builder", "slice of pool", "view of pool", "resource pool", "graph memory"}, closed
    assert drain(1)
in_child(child)
""")
    assert output == "child 0 {}\n"


def test_each_use_of_an_inherited_stream_or_event_is_refused_without_a_driver_call():
    output = run("""
def refused(use, kind=RuntimeError):
    try:
        use()
    except kind as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("accepted")

def child():
    event = alive["event"]
    for each in (stream, alive["foreign stream"]):
        assert each.is_closed and int(each.handle) == 0 and "lost in a forked process" in repr(each)
        for use in (each.sync, each.record, lambda: each.wait(event), lambda: each.record(event),
                    each.__cuda_stream__, lambda: each.is_nonblocking, lambda: each.priority, lambda: each.context,
                    lambda: each.device, each.create_graph_builder,
                    lambda: sources["pinned"].resource.allocate(16, stream=each),
                    lambda: sources["pool"].resource.allocate(16, stream=each),
                    lambda: Buffer.from_handle(4096, 16, mr=sources["pinned"].resource, stream=each)):
            refused(use)
    assert event.is_closed and int(event.handle) == 0 and "lost in a forked process" in repr(event)
    for use in (event.sync, lambda: event.is_done, lambda: event.context, lambda: event.device,
                lambda: event - event, lambda: event.is_timing_enabled):
        refused(use)
    refused(lambda: alive["graph"].launch(device.default_stream))
    for use in (device.create_stream, device.create_event, device.sync, device.set_current,
                lambda: device.default_stream.sync(), lambda: sources["virtual"].resource.allocate(1),
                lambda: sources["pinned"].resource.allocate(1), lambda: sources["device"].resource.allocate(1),
                lambda: sources["pool"].resource.allocate(1, stream=device.default_stream),
                lambda: sources["pool"].resource.attributes.used_mem_current):
        refused(use, CUDAError)
    if sim:
        assert not sim.calls_in_children(), sim.calls_in_children()
in_child(child)
""")
    assert output == "child 0 {}\n"


def test_a_process_that_forks_before_it_uses_cuda_has_children_that_can():
    program = """
import os, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
from support import check
from cuda.core import Device, LegacyPinnedMemoryResource, PER_THREAD_DEFAULT_STREAM
pid = os.fork()
device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = LegacyPinnedMemoryResource().allocate(4096, stream=PER_THREAD_DEFAULT_STREAM)
os.write(1, f"{buffer.close().name} {stream.record().is_done}\\n".encode())
stream.close()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    assert child_output(program).splitlines() == ["DONE True"] * 2
