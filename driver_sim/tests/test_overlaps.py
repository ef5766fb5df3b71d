# SPDX-License-Identifier: Apache-2.0
"""Calls of two threads at one time that a real driver does not keep apart are noted, and no others."""

import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cuda_driver_sim as sim
from sim_helpers import HostFunction, UserObjects, captured, cu, ok, soon

pytestmark = pytest.mark.skipif(sim.real_path() is not None, reason="nothing is seen in front of a driver")

MOST = 100  # that are listed
RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@pytest.fixture
def plain():
    pointer = ok(cu.cuMemAlloc(64))
    yield pointer
    ok(cu.cuMemFree(pointer))


@pytest.fixture
def slow_calls():
    """A third thread keeps the driver at work, so that calls of the others take long and meet."""
    stream, size, over = ok(cu.cuStreamCreate(1)), 4 << 20, threading.Event()
    pointer = ok(cu.cuMemAlloc(size))

    def work():
        while not over.is_set():
            ok(cu.cuMemsetD8Async(pointer, 1, size, stream))
            time.sleep(0.0002)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()
    ok(cu.cuMemFree(pointer))
    ok(cu.cuStreamDestroy(stream))


def together(*functions, rounds=1 << 60, until=lambda: False):
    """Call each function over and over in a thread of its own; tell whether something became true."""
    end = time.monotonic() + 30
    start = threading.Barrier(len(functions))

    def loop(function):
        start.wait()
        for _ in range(rounds):
            if until() or time.monotonic() > end:
                break
            function()

    with ThreadPoolExecutor(len(functions)) as pool:
        list(pool.map(loop, functions))
    return until()


def seen(*expected):
    """Whether one of these has been noted. A full list is emptied, as it has no room for them."""

    def look():
        noted = sim.overlaps()
        found = not set(expected).isdisjoint(noted)
        if noted.total >= MOST and not found:
            sim.reset()
        return found

    return look


def seen_beside(name, beside):
    """Whether one of these functions was called beside the other."""
    return seen(sim.Overlap(name, beside), sim.Overlap(beside, name))


def begin_and_end(stream):
    cu.cuStreamBeginCapture(stream, RELAXED)
    graph = cu.cuStreamEndCapture(stream)[1]
    if graph:
        cu.cuGraphDestroy(graph)


USES = {
    "cuMemsetD8Async": lambda stream, plain: cu.cuMemsetD8Async(plain, 1, 8, stream),
    "cuMemcpyDtoDAsync": lambda stream, plain: cu.cuMemcpyDtoDAsync(plain, int(plain) + 32, 8, stream),
    "cuMemFreeAsync": lambda stream, plain: cu.cuMemFreeAsync(0, stream),
    "cuStreamIsCapturing": lambda stream, plain: cu.cuStreamIsCapturing(stream),
    "cuStreamGetCaptureInfo": lambda stream, plain: cu.cuStreamGetCaptureInfo(stream),
}


@pytest.mark.parametrize(
    "overlap",
    [
        ("cuStreamBeginCapture", "use"),
        ("cuStreamEndCapture", "use"),
        ("use", "cuStreamEndCapture"),  # which comes at once behind the begin, and hides that
    ],
)
@pytest.mark.parametrize("use", USES)
def test_a_use_beside_the_begin_or_the_end_of_a_capture(use, overlap, stream, plain, slow_calls):
    expected = sim.Overlap(*(use if each == "use" else each for each in overlap))

    def call():
        USES[use](stream, plain)

    assert together(call, lambda: begin_and_end(stream), until=seen(expected)), sim.overlaps()


@pytest.mark.parametrize("use", USES)
def test_none_with_a_lock(use, stream, plain, slow_calls):
    lock = threading.Lock()

    def locked(function, *arguments):
        with lock:
            function(*arguments)

    together(lambda: locked(USES[use], stream, plain), lambda: locked(begin_and_end, stream), rounds=150)
    assert sim.overlaps() == ()
    assert sim.overlaps().total == 0


def test_none_on_different_streams(stream, other_stream, plain, slow_calls):
    def everything():
        for use in USES.values():
            use(other_stream, plain)

    together(everything, lambda: begin_and_end(stream), lambda: cu.cuStreamQuery(other_stream), rounds=50)
    assert sim.overlaps() == ()


def test_none_of_one_thread(stream, plain, slow_calls):
    def everything():
        ok(cu.cuStreamBeginCapture(stream, RELAXED))
        for use in USES.values():
            use(stream, plain)
        graph = ok(cu.cuStreamEndCapture(stream))
        executable = ok(cu.cuGraphInstantiate(graph, 0))
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        ok(cu.cuGraphDestroy(graph))

    together(everything, rounds=50)
    assert sim.overlaps() == ()


def test_uses_of_a_stream_that_is_not_captured_are_kept_apart(stream, plain, slow_calls):
    def use():
        cu.cuMemsetD8Async(plain, 1, 8, stream)
        cu.cuStreamIsCapturing(stream)
        cu.cuStreamSynchronize(stream)

    together(use, use, rounds=100)
    assert sim.overlaps() == ()


def test_two_threads_put_something_into_one_capture(stream, plain, slow_calls):
    ok(cu.cuStreamBeginCapture(stream, RELAXED))

    def use():
        cu.cuMemsetD8Async(plain, 1, 8, stream)

    assert together(use, use, until=seen_beside("cuMemsetD8Async", "cuMemsetD8Async"))
    ok(cu.cuGraphDestroy(ok(cu.cuStreamEndCapture(stream))))


def test_the_graph_of_a_running_capture(stream, plain, slow_calls):
    objects = UserObjects()
    held = objects.make(1)
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    graph = ok(cu.cuStreamGetCaptureInfo(stream))[2]

    def lend():
        ok(cu.cuGraphRetainUserObject(graph, held, 1, 0))
        ok(cu.cuGraphReleaseUserObject(graph, held, 1))

    def use():
        cu.cuMemsetD8Async(plain, 1, 8, stream)

    for name in "cuGraphRetainUserObject", "cuGraphReleaseUserObject":
        assert together(lend, use, until=seen_beside(name, "cuMemsetD8Async"))
    ok(cu.cuGraphDestroy(ok(cu.cuStreamEndCapture(stream))))
    ok(cu.cuUserObjectRelease(held, 1))


def test_a_branch_of_a_capture(stream, other_stream, plain, slow_calls):
    """What is waited for, what joins, and the end of it all."""
    event = ok(cu.cuEventCreate(0))
    done = ok(cu.cuEventCreate(0))

    def fork():
        ok(cu.cuStreamBeginCapture(stream, RELAXED))
        ok(cu.cuEventRecord(event, stream))
        cu.cuStreamWaitEvent(other_stream, event, 0)
        cu.cuEventRecord(done, other_stream)
        cu.cuStreamWaitEvent(stream, done, 0)
        graph = cu.cuStreamEndCapture(stream)[1]
        if graph:
            ok(cu.cuGraphDestroy(graph))

    def use():
        cu.cuMemsetD8Async(plain, 1, 8, other_stream)

    for name in "cuStreamWaitEvent", "cuEventRecord", "cuStreamEndCapture":
        assert together(fork, use, until=seen_beside(name, "cuMemsetD8Async")), name
    ok(cu.cuEventDestroy(event))
    ok(cu.cuEventDestroy(done))


def test_an_event_of_a_capture(stream, plain, slow_calls):
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    ok(cu.cuEventRecord(event, stream))
    asked = together(
        lambda: cu.cuEventQuery(event),
        lambda: cu.cuMemsetD8Async(plain, 1, 8, stream),
        until=seen_beside("cuEventQuery", "cuMemsetD8Async"),
    )
    cu.cuStreamEndCapture(stream)  # which a question has broken
    ok(cu.cuEventDestroy(event))
    assert asked


def test_an_event_of_a_capture_is_destroyed(stream, plain, context, slow_calls):
    ok(cu.cuStreamBeginCapture(stream, RELAXED))

    def end():
        ok(cu.cuCtxSetCurrent(context))
        event = ok(cu.cuEventCreate(0))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuEventDestroy(event))

    met = together(
        end,
        lambda: cu.cuMemsetD8Async(plain, 1, 8, stream),
        until=seen_beside("cuEventDestroy", "cuMemsetD8Async"),
    )
    ok(cu.cuGraphDestroy(ok(cu.cuStreamEndCapture(stream))))
    assert met


@pytest.mark.parametrize(
    "names", [("cuMemsetD8Async", "cuStreamDestroy"), ("cuStreamDestroy", "cuMemsetD8Async")]
)
def test_a_captured_stream_is_destroyed(names, plain, context, slow_calls):
    def both():
        ok(cu.cuCtxSetCurrent(context))
        stream = ok(cu.cuStreamCreate(1))
        ok(cu.cuStreamBeginCapture(stream, RELAXED))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(cu.cuMemsetD8Async, plain, 1, 8, stream)
            ok(cu.cuStreamDestroy(stream))

    assert together(both, until=seen(sim.Overlap(*names))), sim.overlaps()


@pytest.fixture
def graph(stream, plain):
    handle = captured(stream, lambda: cu.cuMemsetD8Async(plain, 1, 8, stream))
    yield handle
    ok(cu.cuGraphDestroy(handle))


@pytest.fixture
def executable(graph):
    handle = ok(cu.cuGraphInstantiate(graph, 0))
    yield handle
    ok(cu.cuGraphExecDestroy(handle))


def test_one_executable_graph(executable, graph, stream, other_stream, slow_calls):
    lock = threading.Lock()
    calls = {
        "cuGraphLaunch": lambda: cu.cuGraphLaunch(executable, stream),
        "cuGraphUpload": lambda: cu.cuGraphUpload(executable, stream),
        "cuGraphExecUpdate": lambda: cu.cuGraphExecUpdate(executable, graph),
    }

    def launch():
        cu.cuGraphLaunch(executable, other_stream)

    def with_lock(function):
        with lock:
            function()

    for call in calls.values():
        together(lambda call=call: with_lock(call), lambda: with_lock(launch), rounds=50)
    assert sim.overlaps() == ()
    for name, call in calls.items():
        assert together(call, launch, until=seen_beside("cuGraphLaunch", name)), name


@pytest.fixture
def make_keeping(stream, plain):
    """Makes executables of graphs that keep a user object."""
    objects, made = UserObjects(), []

    def make():
        graph = captured(stream, lambda: cu.cuMemsetD8Async(plain, 1, 8, stream))
        objects.give(graph, len(made))
        made.append(ok(cu.cuGraphInstantiate(graph, 0)))
        ok(cu.cuGraphDestroy(graph))
        return made[-1]

    yield make
    for each in made:
        ok(cu.cuGraphExecDestroy(each))
    assert soon(lambda: len(objects.ended) == len(made))


@pytest.fixture
def keeping(make_keeping):
    return make_keeping()


WAITS = {"cuStreamQuery": cu.cuStreamQuery, "cuStreamSynchronize": cu.cuStreamSynchronize}


@pytest.mark.parametrize("second", ["launch", "wait"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_launch_with_a_user_object_beside_a_wait(wait, second, keeping, stream, slow_calls):
    """A real driver answers such a launch with CUDA_ERROR_UNKNOWN now and then, although the graph runs."""
    names = ("cuGraphLaunch", wait)
    expected = sim.Overlap(*(names if second == "launch" else reversed(names)))

    def launch():
        ok(cu.cuGraphLaunch(keeping, stream))

    assert together(launch, lambda: WAITS[wait](stream), until=seen(expected)), sim.overlaps()


def launched_in_a_wait(keeping, stream, then=lambda: None):
    """Launch while another thread waits for the stream; return what the wait was answered with."""
    gate = threading.Event()
    function = HostFunction(lambda _: gate.wait(20))
    ok(function.on(stream)())
    sim.reset()
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(cu.cuStreamSynchronize, stream)
        assert soon(lambda: sim.calls().get("cuStreamSynchronize"))
        time.sleep(0.02)
        try:
            ok(cu.cuGraphLaunch(keeping, stream))
            then()
        finally:
            gate.set()
        return wait.result()[0]


def test_a_launch_that_begins_while_a_wait_is_under_way(keeping, stream):
    expected = sim.Overlap("cuStreamSynchronize", "cuGraphLaunch")
    assert together(lambda: launched_in_a_wait(keeping, stream), until=seen(expected)), sim.overlaps()


def test_a_wait_whose_stream_goes_meanwhile(keeping):
    stream = ok(cu.cuStreamCreate(1))
    result = launched_in_a_wait(keeping, stream, then=lambda: ok(cu.cuStreamDestroy(stream)))
    assert result == cu.CUresult.CUDA_SUCCESS
    assert sim.overlaps() == ()


def waits(stream):
    for call in WAITS.values():
        call(stream)


def test_a_launch_without_a_user_object_beside_a_wait(executable, stream, slow_calls):
    together(lambda: cu.cuGraphLaunch(executable, stream), lambda: waits(stream), rounds=100)
    assert sim.overlaps() == ()


def test_a_launch_with_a_user_object_and_a_lock(keeping, stream, slow_calls):
    lock = threading.Lock()

    def launch():
        with lock:
            ok(cu.cuGraphLaunch(keeping, stream))

    def wait():
        with lock:
            waits(stream)

    together(launch, wait, rounds=100)
    assert sim.overlaps() == ()


def test_a_launch_with_a_user_object_beside_a_wait_for_another_stream(
    keeping, stream, other_stream, slow_calls
):
    together(lambda: cu.cuGraphLaunch(keeping, stream), lambda: waits(other_stream), rounds=100)
    assert sim.overlaps() == ()


def test_a_launch_with_a_user_object_beside_other_calls_on_its_stream(
    make_keeping, stream, plain, context, slow_calls
):
    keeping, other = make_keeping(), make_keeping()
    event = ok(cu.cuEventCreate(0))

    def calls():
        ok(cu.cuCtxSetCurrent(context))
        for use in USES.values():
            use(stream, plain)
        ok(cu.cuStreamGetFlags(stream))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuEventSynchronize(event))
        ok(cu.cuGraphLaunch(other, stream))
        ok(cu.cuCtxSynchronize())

    together(lambda: cu.cuGraphLaunch(keeping, stream), calls, rounds=50)
    ok(cu.cuEventDestroy(event))
    assert sim.overlaps() == ()


def test_one_graph(graph, slow_calls, tmp_path):
    def instantiate():
        ok(cu.cuGraphExecDestroy(ok(cu.cuGraphInstantiate(graph, 0))))

    node = ok(cu.cuGraphGetNodes(graph, 1))[0][0]
    calls = {
        "cuGraphInstantiateWithFlags": instantiate,
        "cuGraphGetNodes": lambda: cu.cuGraphGetNodes(graph, 1),
        "cuGraphNodeGetType": lambda: cu.cuGraphNodeGetType(node),
        "cuGraphDebugDotPrint": lambda: cu.cuGraphDebugDotPrint(graph, os.fsencode(tmp_path / "dot"), 0),
    }
    for name, call in calls.items():
        assert together(call, instantiate, until=seen_beside("cuGraphInstantiateWithFlags", name)), name
    sim.reset()
    together(instantiate, rounds=20)
    assert sim.overlaps() == ()


def test_executables_of_one_graph_are_things_of_their_own(graph, stream, other_stream, slow_calls):
    executables = [ok(cu.cuGraphInstantiate(graph, 0)) for _ in range(2)]
    together(
        lambda: cu.cuGraphLaunch(executables[0], stream),
        lambda: cu.cuGraphLaunch(executables[1], other_stream),
        rounds=100,
    )
    for each in executables:
        ok(cu.cuGraphExecDestroy(each))
    assert sim.overlaps() == ()


@pytest.mark.parametrize("first", ["destroy", "launch"])
def test_an_end_beside_a_use(first, graph, stream, slow_calls):
    """Also when the end comes first, and the use finds nothing."""
    names = ("cuGraphExecDestroy", "cuGraphLaunch")
    expected = sim.Overlap(*(reversed(names) if first == "destroy" else names))

    def both():
        executable = ok(cu.cuGraphInstantiate(graph, 0))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(cu.cuGraphLaunch, executable, stream)
            ok(cu.cuGraphExecDestroy(executable))

    assert together(both, until=seen(expected)), sim.overlaps()


def test_reset_forgets(executable, stream, slow_calls):
    def launch():
        cu.cuGraphLaunch(executable, stream)

    assert together(launch, launch, until=lambda: sim.overlaps().total > 0)
    first = sim.overlaps()
    assert first[0] == sim.Overlap("cuGraphLaunch", "cuGraphLaunch")
    assert first.total == len(first)
    sim.reset()
    assert (sim.overlaps(), sim.overlaps().total) == ((), 0)


def test_the_list_is_bounded_and_has_a_total(executable, stream, slow_calls):
    def launch():
        for _ in range(20):
            cu.cuGraphLaunch(executable, stream)

    assert together(*[launch] * 8, until=lambda: sim.overlaps().total > MOST + 10), sim.overlaps().total
    assert len(sim.overlaps()) == MOST


# The process at the top and one that it starts. Their forked children have nothing to tell of their parents.
LAUNCH_TOGETHER = """
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import cuda_driver_sim as sim
from sim_helpers import captured, cu, ok, start

start()
stream, other, size = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1)), 4 << 20
pointer = ok(cu.cuMemAlloc(size))
executable = ok(cu.cuGraphInstantiate(captured(stream), 0))

def call(number):
    while sim.overlaps().total == 0:
        ok(cu.cuGraphLaunch(executable, stream) if number else cu.cuMemsetD8Async(pointer, 1, size, other))

if sys.argv[1] != "none":
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(3)))
    if (child := os.fork()) == 0:
        assert sim.overlaps() == ()  # those of the parent
        cu.cuMemFree(1)
        os._exit(0)
    os.waitpid(child, 0)
if sys.argv[1] == "child":
    os._exit(0)
if sys.argv[1] == "top":
    sim.reset() if "reset" in sys.argv else None
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""

WHAT = (
    r"[12] calls? beside another thread's: a real driver may crash or answer with an error "
    r"\(first: cuGraphLaunch beside cuGraphLaunch\)\n"
)


@pytest.mark.parametrize("what", ["top", "top reset", "none"])
def test_the_process_at_the_top_says_so(what, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LAUNCH_TOGETHER)
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "CUDA_DRIVER_SIM_REPORTS")}
    done = subprocess.run(
        [sys.executable, "-m", "cuda_driver_sim", program, *what.split()],
        capture_output=True,
        text=True,
        timeout=60,
        env={**env, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode == 0, done.stderr
    assert bool(re.search("^cuda_driver_sim: " + WHAT, done.stderr, re.MULTILINE)) == (what == "top"), (
        done.stderr
    )
    children = re.findall("^cuda_driver_sim:   " + WHAT, done.stderr, re.MULTILINE)
    assert len(children) == (what != "none"), done.stderr
